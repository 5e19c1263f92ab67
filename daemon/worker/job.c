#include "daemon/worker/job.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/channel.h"

#define PROGRESS_NS ((uint64_t)50 * 1000 * 1000)

uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct job *job_new(struct channel *channel, struct packet *packet)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job) {
        packet_close_fds(packet);
        return NULL;
    }
    list_init(&job->queued);
    list_init(&job->alive);
    job->channel = channel;
    job->opcode = packet->header.opcode;
    job->serial = packet->header.serial;
    job->reply_fd = -1;
    job->told_ns = monotonic_ns();
    memcpy(&job->request, packet->body,
           packet->body_size < sizeof(job->request) ? packet->body_size : sizeof(job->request));
    while (job->n_fds < JOB_FDS_MAX && job->n_fds < packet->n_fds) {
        job->fds[job->n_fds] = packet_take_fd(packet, job->n_fds);
        job->n_fds++;
    }
    packet_close_fds(packet);
    return job;
}

void job_close_fds(struct job *job)
{
    for (unsigned i = 0; i < job->n_fds; i++)
        job->fds[i] = fd_close(job->fds[i]);
    job->n_fds = 0;
    if (job->failure.error) /* what it made by then is nobody's */
        job->reply_fd = fd_close(job->reply_fd);
}

struct job *job_free(struct job *job)
{
    if (!job)
        return NULL;
    list_unlink(&job->queued);
    job_close_fds(job);
    fd_close(job->reply_fd);
    free(job);
    return NULL;
}

int job_poll(struct job *job, struct failure *failure)
{
    if (atomic_load_explicit(&job->cancelled, memory_order_relaxed))
        return fail(failure, HBM_E_CANCELLED, "stopped after %llu bytes", (unsigned long long)job->done_bytes);
    return 0;
}

void job_tell(struct job *job)
{
    uint64_t done = atomic_load(&job->done_bytes);

    atomic_store(&job->told_bytes, done);
    channel_progress(job->channel, job->serial, done);
}

void job_advance(struct job *job, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&job->done_bytes, bytes) + bytes, now = monotonic_ns();
    uint_fast64_t told = atomic_load(&job->told_ns);

    if (done != atomic_load(&job->told_bytes) && now > told && now - told >= PROGRESS_NS &&
        atomic_compare_exchange_strong(&job->told_ns, &told, now))
        job_tell(job);
}
