#include "daemon/worker/crew.h"

#include "daemon/worker/job.h"

/* With the mutex held. */
static struct job *next_of(struct crew_engine *engine)
{
    struct list *first = list_first(&engine->waiting);

    if (!first)
        return NULL;
    list_unlink(first);
    return list_entry(first, struct job, queued);
}

/* With the mutex held, but not while a job runs: this one, and those that came for its engine meanwhile. */
static void work(struct crew *crew, struct job *job)
{
    struct crew_engine *engine = &crew->engines[crew->engine_of(job)];

    if (engine->running == engine->limit) {
        list_append(&engine->waiting, &job->queued);
        return;
    }
    engine->running++;
    pthread_cond_signal(&crew->turn);
    for (; job; job = next_of(engine)) {
        pthread_mutex_unlock(&crew->mutex);
        crew->run(job);
        pthread_mutex_lock(&crew->mutex);
    }
    engine->running--;
}

static void *member_main(void *argument)
{
    struct crew *crew = argument;

    pthread_mutex_lock(&crew->mutex);
    while (!crew->over) {
        struct job *job = NULL;

        if (crew->receiving) {
            pthread_cond_wait(&crew->turn, &crew->mutex);
            continue;
        }
        crew->receiving = true;
        pthread_mutex_unlock(&crew->mutex);
        bool more = crew->receive(&job);
        pthread_mutex_lock(&crew->mutex);
        crew->receiving = false;
        if (job)
            work(crew, job);
        if (!more) {
            crew->over = true;
            pthread_cond_broadcast(&crew->turn);
            pthread_cond_broadcast(&crew->ended);
        }
    }
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

int crew_start(struct crew *crew, const unsigned *limits, unsigned n_engines)
{
    unsigned n = 1; /* one who receives while all engines run */

    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->turn, NULL);
    pthread_cond_init(&crew->ended, NULL);
    for (unsigned i = 0; i < n_engines; i++) {
        list_init(&crew->engines[i].waiting);
        crew->engines[i].limit = limits[i];
        n += limits[i];
    }
    for (crew->n_threads = 0; crew->n_threads < n; crew->n_threads++) {
        int error = pthread_create(&crew->threads[crew->n_threads], NULL, member_main, crew);
        if (error)
            return -error;
    }
    return 0;
}

void crew_wait(struct crew *crew)
{
    pthread_mutex_lock(&crew->mutex);
    while (!crew->over)
        pthread_cond_wait(&crew->ended, &crew->mutex);
    pthread_mutex_unlock(&crew->mutex);
}

void crew_leave(struct crew *crew)
{
    for (unsigned i = 0; i < crew->n_threads; i++)
        pthread_detach(crew->threads[i]);
}

void crew_join(struct crew *crew)
{
    for (unsigned i = 0; i < crew->n_threads; i++)
        pthread_join(crew->threads[i], NULL);
}
