/* Bringing arenas to the device, and asking clients to let them go. */
#pragma once

#include "daemon/core/session.h"

/* Waits until all arenas (by id) are resident, restoring those that are not, all or nothing: one internal op (and, of what
 * is wanted in place but lies on disk, one to host memory). BUSY if those who map one in place do not let go of it in time.
 * Cancels an offload that is under way on them. done is called exactly once, possibly at once. The struct and the array are the caller's until then. */
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

/* Somebody has a lock on it, or has it in the window of its order. */
bool arena_is_in_use(const struct arena *arena);

/* Asks every client to unmap the arena. done(0) when the last has let go (at once if none maps it), done(BUSY) at the
 * deadline with the pids in detail: then the request is withdrawn. */
struct reclaim {
    struct arena *arena;
    int error;
    char detail[HBM_DETAIL_MAX];
    void (*done)(struct reclaim *reclaim);
    /* own */
    struct timer timer;
};
void reclaim_start(struct reclaim *reclaim, uint32_t deadline_ms);
/* Withdraws; done is not called. */
void reclaim_cancel(struct reclaim *reclaim);
/* A mapping of it has let go or ended: ends the reclaims that waited for the last one. */
void reclaim_check(struct arena *arena);
