/* Lanes: a few threads that share the steps of one job. Steps are claimed in order; the first failure stops the
 * claiming. The caller of lanes_join takes steps too, so that a job ends even where no thread could be started. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "daemon/worker/failure.h"

#define LANES_MAX 16

/* `lane` is 0..lanes: no two running steps share one. Returns 0 or an error, already recorded in *failure. */
typedef int (*lanes_step)(void *context, uint64_t index, unsigned lane, struct failure *failure);

struct lanes {
    lanes_step step;
    void *context;
    uint64_t count;
    atomic_uint_fast64_t next;
    atomic_bool stopped;
    pthread_mutex_t mutex;
    struct failure failure; /* under mutex */
    pthread_t threads[LANES_MAX];
    unsigned n_threads;
    atomic_uint next_lane;
};

/* Starts up to lanes - 1 threads; lanes_join is the last lane. */
void lanes_start(struct lanes *lanes, unsigned n, uint64_t count, lanes_step step, void *context);
void lanes_stop(struct lanes *lanes);
int lanes_join(struct lanes *lanes, struct failure *failure);
/* Both at once. */
int lanes_run(unsigned n, uint64_t count, lanes_step step, void *context, struct failure *failure);
/* As many lanes as hashing and copying on the CPU pays for on this machine. */
unsigned lanes_of_cpu(void);
