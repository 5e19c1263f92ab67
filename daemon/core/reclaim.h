/* Asking clients to let an arena go. The request is a bit in each session's residency word; the event only wakes.
 */
#pragma once

#include "daemon/core/session.h"

/* Somebody has a lock on it, or has it in the window of its order. */
bool arena_is_in_use(const struct arena *arena);

/* Asks every client to unmap the arena. done(0) when the last has let go (at once if none maps it), done(BUSY) at
 * the deadline with the pids in detail: then the request is withdrawn. */
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
