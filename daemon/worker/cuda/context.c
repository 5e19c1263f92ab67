#include "daemon/worker/cuda/context.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/worker/cufile.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"
#include "daemon/worker/staging.h"

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned users;
    bool made, watched;
    uint64_t idle_ms;
    struct timespec drop_at; /* while users is 0 */
    cudaStream_t streams[DEVICE_STREAMS];
} context = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void context_start(uint64_t idle_ms)
{
    context.idle_ms = idle_ms;
}

cudaStream_t context_stream(enum device_stream stream)
{
    return context.streams[stream];
}

static void drop(void)
{
    staging_drop();
    keep_drop();
    hashes_drop();
    scratch_drop();
    for (unsigned i = 0; i < DEVICE_STREAMS; i++) {
        if (context.streams[i])
            runtime_note("cudaStreamDestroy", cudaStreamDestroy(context.streams[i]));
        context.streams[i] = NULL;
    }
    cufile_drop(); /* it needs the context in this thread, which the streams' end has brought */
    runtime_note("cudaDeviceReset", cudaDeviceReset());
    context.made = false;
}

static bool due(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > context.drop_at.tv_sec ||
           (now.tv_sec == context.drop_at.tv_sec && now.tv_nsec >= context.drop_at.tv_nsec);
}

/* Holds the mutex while it drops: a job that comes then waits, and makes a new one. */
static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&context.mutex);
    for (;;) {
        if (!context.made || context.users)
            pthread_cond_wait(&context.changed, &context.mutex);
        else if (due())
            drop();
        else
            pthread_cond_clockwait(&context.changed, &context.mutex, CLOCK_MONOTONIC, &context.drop_at);
    }
    return NULL;
}

static void start_watching(void)
{
    pthread_t thread;

    if (context.watched)
        return;
    if (pthread_create(&thread, NULL, watch, NULL)) {
        log_warning("no thread to drop the idle context with: it stays");
        return;
    }
    pthread_detach(thread);
    context.watched = true;
}

static int make(struct failure *failure)
{
    int least = 0, greatest = 0;

    if (runtime_check(failure, "cudaSetDevice", cudaSetDevice(0)) ||
        runtime_check(failure, "cudaFree(0), which makes the context", cudaFree(NULL)) ||
        runtime_check(failure, "cudaDeviceGetStreamPriorityRange",
                      cudaDeviceGetStreamPriorityRange(&least, &greatest)))
        return failure->error;
    /* The inference engine's own work on the device goes first. */
    for (unsigned i = 0; i < DEVICE_STREAMS; i++)
        if (runtime_check(failure, "cudaStreamCreateWithPriority",
                          cudaStreamCreateWithPriority(&context.streams[i], cudaStreamNonBlocking, least)))
            return failure->error;
    context.made = true;
    return 0;
}

int device_enter(struct failure *failure)
{
    int error = 0;

    pthread_mutex_lock(&context.mutex);
    if (context.made) /* this thread may still hold the context that was dropped */
        error = runtime_check(failure, "cudaSetDevice", cudaSetDevice(0));
    else if ((error = make(failure)))
        drop();
    if (!error) {
        start_watching();
        context.users++;
    }
    pthread_mutex_unlock(&context.mutex);
    return error;
}

bool context_free_bytes(uint64_t *bytes)
{
    struct failure failure = {0};
    size_t free_now = 0, total = 0;

    pthread_mutex_lock(&context.mutex);
    bool told = context.made && !runtime_check(&failure, "cudaSetDevice", cudaSetDevice(0)) &&
                !runtime_check(&failure, "cudaMemGetInfo", cudaMemGetInfo(&free_now, &total));
    pthread_mutex_unlock(&context.mutex);
    *bytes = free_now;
    return told;
}

void device_leave(void)
{
    pthread_mutex_lock(&context.mutex);
    if (--context.users == 0) {
        clock_gettime(CLOCK_MONOTONIC, &context.drop_at);
        context.drop_at.tv_sec += (time_t)(context.idle_ms / 1000);
        context.drop_at.tv_nsec += (long)(context.idle_ms % 1000) * 1000000;
        if (context.drop_at.tv_nsec >= 1000000000) {
            context.drop_at.tv_nsec -= 1000000000;
            context.drop_at.tv_sec++;
        }
        pthread_cond_signal(&context.changed);
    }
    pthread_mutex_unlock(&context.mutex);
}
