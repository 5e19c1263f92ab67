/* A queue and its threads: jobs that would compete for the same link, disk or engine wait for each other. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "daemon/base/list.h"

#define QUEUE_THREADS_MAX 2

struct job;

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct list jobs;
    bool stopping;
    void (*run)(struct job *job); /* consumes the job */
    pthread_t threads[QUEUE_THREADS_MAX];
    unsigned n_threads;
};

/* -errno if not all threads could be started. */
int queue_start(struct queue *queue, unsigned n_threads, void (*run)(struct job *job));
void queue_push(struct queue *queue, struct job *job);
/* Returns when the last job has run. */
void queue_stop(struct queue *queue);
