/* A bucket a link, in debt instead of full: whoever finds none goes, owes his bytes, and those after him wait until
 * they are paid off at the link's rate. */
#include "daemon/worker/pace.h"

#include <pthread.h>
#include <time.h>

#include "daemon/worker/fault.h"

#define LOOK_NS ((uint64_t)20 * 1000 * 1000) /* for a cancel, while it waits */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct bucket {
        uint64_t limit, paid_ns;
        double owed; /* bytes */
    } buckets[JOB_LINKS];
} pace = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void pay(struct bucket *bucket, uint64_t now)
{
    bucket->owed -= (double)bucket->limit * (double)(now - bucket->paid_ns) / 1e9;
    bucket->paid_ns = now;
    if (bucket->owed < 0 || !bucket->limit)
        bucket->owed = 0;
}

void pace_limit(const uint64_t limits[JOB_LINKS])
{
    uint64_t now = monotonic_ns();

    pthread_mutex_lock(&pace.mutex);
    for (unsigned i = 0; i < JOB_LINKS; i++) {
        pay(&pace.buckets[i], now); /* at the rate until now */
        pace.buckets[i].limit = limits[i];
    }
    pthread_cond_broadcast(&pace.changed);
    pthread_mutex_unlock(&pace.mutex);
}

bool pace_is_limited(const struct job *job)
{
    enum job_link link = job_link_of(job->opcode, &job->request);

    pthread_mutex_lock(&pace.mutex);
    bool limited = link != JOB_LINK_NONE && pace.buckets[link].limit;
    pthread_mutex_unlock(&pace.mutex);
    return limited;
}

/* With the mutex held. */
static void wait_a_little(const struct bucket *bucket)
{
    double left = bucket->owed / (double)bucket->limit * 1e9;
    uint64_t until = monotonic_ns() + (left < (double)LOOK_NS ? (uint64_t)left + 1 : LOOK_NS);
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

    pthread_cond_clockwait(&pace.changed, &pace.mutex, CLOCK_MONOTONIC, &at);
}

int pace_wait(struct job *job, uint64_t bytes, struct failure *failure)
{
    enum job_link link = job_link_of(job->opcode, &job->request);
    int error = fault_strike_chunk(job, failure);

    if (!error)
        error = job_poll(job, failure);
    if (error || link == JOB_LINK_NONE)
        return error;
    struct bucket *bucket = &pace.buckets[link];
    pthread_mutex_lock(&pace.mutex);
    while (!error && bucket->limit) {
        pay(bucket, monotonic_ns());
        if (bucket->owed <= 0) {
            bucket->owed += (double)bytes;
            break;
        }
        wait_a_little(bucket);
        job_advance(job, 0);
        error = job_poll(job, failure);
    }
    pthread_mutex_unlock(&pace.mutex);
    return error;
}
