/* The order in which this process uses a model's groups, as it has declared it, what is asked for by it, and the window of
 * it that alone stays on the device, if one was asked for. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct hbm_model;
struct hold;

struct ahead {
    _Atomic uint32_t depth; /* 0: nothing is asked for */
    pthread_mutex_t mutex;  /* guards what follows */
    uint32_t *order, *turn; /* arenas by turn; turns by arena, UINT32_MAX for those that have none */
    uint32_t n;
    _Atomic uint64_t told; /* the connection in which the daemon was told of the order */
    _Atomic bool window;
    uint32_t behind, at; /* with a window: turns that stay before the one locked last; that one, UINT32_MAX if none */
};

void ahead_init(struct ahead *ahead);
void ahead_clear(struct ahead *ahead);
/* Before a lock of the arena, and after an unlock: what is outside of the window from then on may leave. No-ops without
 * one. */
void ahead_moves_to(struct hbm_model *model, const struct hold *hold);
void ahead_leaves(struct hbm_model *model, const struct hold *hold);
/* The model is let go of: it keeps nothing from leaving. */
void ahead_end(struct hbm_model *model);
/* After a lock of these holds: asks for the next groups that are away, unless they have been asked for. A daemon that came
 * since is told of the order first. */
void ahead_of(struct hbm_model *model, struct hold *const *holds, unsigned n);
