/* The residency word: one 64-bit atomic per mapped arena, in the page that a session and the daemon share.
 *
 *   bits 0-30   count    locks held on the arena by this session, over all its leases and threads
 *   bit  31     RECLAIM  set by the daemon: please let go when the count is 0
 *   bit  32     AWAY     set by libhbm: the arena is unmapped here; locking needs a round trip
 *   bit  33     LANDING  set by libhbm: mapped, and not to be locked yet (see lockword_land)
 *   bit  34     HOST     set by the daemon as it grants the arena: it lies in host memory; 0: on its device
 *   bit  35     WANTED   set by libhbm: in the window of this client's order; other clients' windows leave it where it is
 *   bit  47     USED     set by every lock, cleared by the daemon as it looks what was used meanwhile
 *   bits 48-63  epoch    moves the arena has made under this mapping
 *
 * While the count is above 0 a lock succeeds whatever RECLAIM says. At 0 with RECLAIM set, libhbm swaps the word
 * to AWAY, unmaps, and sends RELEASED. The daemon trusts the word for nothing but this session's own residency:
 * a client that lies about it only hurts itself. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOCKWORD_COUNT ((uint64_t)0x7fffffff)
#define LOCKWORD_RECLAIM ((uint64_t)1 << 31)
#define LOCKWORD_AWAY ((uint64_t)1 << 32)
#define LOCKWORD_LANDING ((uint64_t)1 << 33)
#define LOCKWORD_HOST ((uint64_t)1 << 34)
#define LOCKWORD_WANTED ((uint64_t)1 << 35)
#define LOCKWORD_USED ((uint64_t)1 << 47)
#define LOCKWORD_EPOCH_SHIFT 48
#define LOCKWORD_SLOTS 8192 /* words in a session's page: arenas it can map at once */
#define LOCKWORD_PAGE_BYTES (LOCKWORD_SLOTS * sizeof(uint64_t))

enum lockword_result {
    LOCKWORD_DONE,    /* the count was changed */
    LOCKWORD_ABSENT,  /* lock: the arena is away, or must be let go first (see lockword_try_release) */
    LOCKWORD_RELEASE, /* unlock: done, and the daemon wants the arena: call lockword_try_release */
    LOCKWORD_MISUSE,  /* unlock without a lock, or too many locks */
};

static inline enum lockword_result lockword_lock(_Atomic uint64_t *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    for (;;) {
        uint64_t count = old & LOCKWORD_COUNT;

        if ((old & (LOCKWORD_AWAY | LOCKWORD_LANDING)) || ((old & LOCKWORD_RECLAIM) && count == 0))
            return LOCKWORD_ABSENT;
        if (count == LOCKWORD_COUNT)
            return LOCKWORD_MISUSE;
        uint64_t locked = (old + 1) | LOCKWORD_USED;
        if (atomic_compare_exchange_weak_explicit(word, &old, locked, memory_order_acquire, memory_order_relaxed))
            return LOCKWORD_DONE;
    }
}

static inline enum lockword_result lockword_unlock(_Atomic uint64_t *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    for (;;) {
        if ((old & LOCKWORD_COUNT) == 0)
            return LOCKWORD_MISUSE;
        if (atomic_compare_exchange_weak_explicit(word, &old, old - 1, memory_order_release, memory_order_relaxed))
            return (old & LOCKWORD_RECLAIM) && (old & LOCKWORD_COUNT) == 1 ? LOCKWORD_RELEASE : LOCKWORD_DONE;
    }
}

/* True for exactly one caller, which must unmap and send RELEASED; false if it is locked, away or not wanted. */
static inline bool lockword_try_release(_Atomic uint64_t *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_acquire);

    for (;;) {
        if ((old & (LOCKWORD_AWAY | LOCKWORD_LANDING | LOCKWORD_COUNT)) || !(old & LOCKWORD_RECLAIM))
            return false;
        uint64_t away = (old & ~LOCKWORD_RECLAIM) | LOCKWORD_AWAY;
        if (atomic_compare_exchange_weak_explicit(word, &old, away, memory_order_acq_rel, memory_order_acquire))
            return true;
    }
}

/* The arena is mapped (again), by what a connection brought that may be gone by now: the daemon counts it as mapped
 * from here on, and nobody can lock it. If the connection still lives afterwards, a daemon that comes later finds it
 * counted, and lockword_arrive follows; else one may have read AWAY already and moved the arena: lockword_turn_back,
 * unmap. */
static inline void lockword_land(_Atomic uint64_t *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(word, &old, (old & ~LOCKWORD_AWAY) | LOCKWORD_LANDING))
        ;
}

static inline void lockword_turn_back(_Atomic uint64_t *word)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(word, &old,
                                         (old & ~(LOCKWORD_LANDING | LOCKWORD_COUNT)) | LOCKWORD_AWAY))
        ;
}

/* The arena is mapped (again): present, next epoch, `locks` locks held. Only while AWAY or LANDING, or before first
 * use. A RECLAIM that came while the fd was on its way stays set: it asks for what has just been mapped. */
static inline void lockword_arrive(_Atomic uint64_t *word, uint64_t locks)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed), fresh;

    do
        fresh = ((old >> LOCKWORD_EPOCH_SHIFT) + 1) << LOCKWORD_EPOCH_SHIFT |
                (old & (LOCKWORD_RECLAIM | LOCKWORD_HOST | LOCKWORD_WANTED)) | locks;
    while (!atomic_compare_exchange_weak_explicit(word, &old, fresh, memory_order_release, memory_order_relaxed));
}

/* Daemon side. Before the grant is sent: where that is. */
static inline void lockword_place(_Atomic uint64_t *word, bool host)
{
    if (host)
        atomic_fetch_or_explicit(word, LOCKWORD_HOST, memory_order_release);
    else
        atomic_fetch_and_explicit(word, ~LOCKWORD_HOST, memory_order_release);
}

/* Both return the word as it was. */
static inline uint64_t lockword_request(_Atomic uint64_t *word)
{
    return atomic_fetch_or_explicit(word, LOCKWORD_RECLAIM, memory_order_acq_rel);
}

static inline uint64_t lockword_withdraw(_Atomic uint64_t *word)
{
    return atomic_fetch_and_explicit(word, ~LOCKWORD_RECLAIM, memory_order_acq_rel);
}

static inline bool lockword_was_used(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed) & LOCKWORD_USED &&
           atomic_fetch_and_explicit(word, ~LOCKWORD_USED, memory_order_relaxed) & LOCKWORD_USED;
}
