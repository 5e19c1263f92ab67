#include "daemon/worker/lanes.h"

#include <unistd.h>

static void work(struct lanes *lanes, unsigned lane)
{
    while (!atomic_load(&lanes->stopped)) {
        uint64_t index = atomic_fetch_add(&lanes->next, 1);
        struct failure failure = {0};

        if (index >= lanes->count)
            return;
        if (lanes->step(lanes->context, index, lane, &failure)) {
            pthread_mutex_lock(&lanes->mutex);
            fail(&lanes->failure, failure.error, "%s", failure.detail);
            pthread_mutex_unlock(&lanes->mutex);
            lanes_stop(lanes);
        }
    }
}

static void *lane_main(void *argument)
{
    struct lanes *lanes = argument;

    work(lanes, atomic_fetch_add(&lanes->next_lane, 1));
    return NULL;
}

void lanes_start(struct lanes *lanes, unsigned n, uint64_t count, lanes_step step, void *context)
{
    *lanes = (struct lanes){.step = step, .context = context, .count = count};
    pthread_mutex_init(&lanes->mutex, NULL);
    if (n > LANES_MAX)
        n = LANES_MAX;
    while (lanes->n_threads + 1 < n && lanes->n_threads + 1 < count) {
        if (pthread_create(&lanes->threads[lanes->n_threads], NULL, lane_main, lanes))
            break;
        lanes->n_threads++;
    }
}

void lanes_stop(struct lanes *lanes)
{
    atomic_store(&lanes->stopped, true);
}

int lanes_join(struct lanes *lanes, struct failure *failure)
{
    work(lanes, lanes->n_threads);
    for (unsigned i = 0; i < lanes->n_threads; i++)
        pthread_join(lanes->threads[i], NULL);
    pthread_mutex_destroy(&lanes->mutex);
    if (lanes->failure.error)
        return fail(failure, lanes->failure.error, "%s", lanes->failure.detail);
    return 0;
}

int lanes_run(unsigned n, uint64_t count, lanes_step step, void *context, struct failure *failure)
{
    struct lanes lanes;

    lanes_start(&lanes, n, count, step, context);
    return lanes_join(&lanes, failure);
}

unsigned lanes_of_cpu(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    /* Some cores stay free for the inference engine and for the threads that feed the links. */
    return cores <= 4 ? 2 : cores >= 16 ? 12 : (unsigned)cores - 2;
}
