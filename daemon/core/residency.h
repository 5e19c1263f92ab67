/* Bringing arenas to where they can be used. */
#pragma once

#include "daemon/core/session.h"

/* Waits until all arenas (by id) are resident, restoring those that are not, all or nothing: one internal op (and, of what
 * is wanted in place but lies on disk, one to host memory). BUSY if those who map one in place do not let go of it in time.
 * Cancels an offload that is under way on them. done is called exactly once, possibly at once. The struct and the arrays are
 * the caller's until then. */
struct residency {
    struct core *core;
    struct principal who;
    const uint64_t *arenas;
    const bool *in_place; /* one an arena: host memory will do */
    size_t n;
    uint32_t timeout_ms;
    bool early;  /* of one arena, on the device: memory that its bytes are on their way to will do (coming.h) */
    bool coming; /* that is what there is */
    int error; /* 0, LOST, NO_MEMORY, TIMEOUT, STALE (one was freed), ... */
    char detail[HBM_DETAIL_MAX];
    void (*done)(struct residency *residency);
    /* own */
    struct arena_wait wait, begins;
    struct op_wait op_wait;
    struct timer timer;
};
void residency_start(struct residency *residency);
