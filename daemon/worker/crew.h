/* The threads of a worker, and what runs beside what. One of them receives at a time. Who has received a job does it
 * himself if its engine is free, and another receives meanwhile: so a job waits for no thread to wake up. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "daemon/base/list.h"

#define CREW_ENGINES_MAX 9
#define CREW_THREADS_MAX 16

struct job;

struct crew_engine {
    unsigned limit, running; /* jobs at a time */
    struct list waiting;
};

struct crew {
    pthread_mutex_t mutex;
    pthread_cond_t turn; /* to receive */
    pthread_cond_t ended;
    bool receiving, over;
    struct crew_engine engines[CREW_ENGINES_MAX];
    /* Waits for what comes: false at the end. *job may be NULL: nothing is to be done. */
    bool (*receive)(struct job **job);
    unsigned (*engine_of)(const struct job *job);
    void (*run)(struct job *job); /* consumes the job */
    pthread_t threads[CREW_THREADS_MAX];
    unsigned n_threads;
};

/* Fields receive, engine_of and run are the caller's. -errno if not all threads could be started. */
int crew_start(struct crew *crew, const unsigned *limits, unsigned n_engines);
/* Returns when receive has come to the end; jobs may still run. */
void crew_wait(struct crew *crew);
/* Before _exit, where a job does not end: nobody waits for its thread. */
void crew_leave(struct crew *crew);
/* Returns when the last job has run. */
void crew_join(struct crew *crew);
