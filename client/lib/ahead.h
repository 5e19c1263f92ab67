/* The order in which this process uses a model's groups, as it has declared it, and what is asked for by it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct hbm_model;
struct hold;

struct ahead {
    _Atomic uint32_t depth; /* 0: nothing is asked for */
    pthread_mutex_t mutex;  /* guards what follows */
    uint32_t *order, *turn; /* arenas by turn; turns by arena, UINT32_MAX for those that have none */
    uint32_t n;
};

void ahead_init(struct ahead *ahead);
void ahead_clear(struct ahead *ahead);
/* After a lock of these holds: asks for the next groups that are away, unless they have been asked for. */
void ahead_of(struct hbm_model *model, struct hold *const *holds, unsigned n);
