#include <stdlib.h>
#include <string.h>

#include "daemon/core/coming.h"
#include "daemon/core/lock_waits.h"
#include "daemon/core/recency.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/residency.h"
#include "daemon/core/verbs.h"
#include "proto/messages.h"

struct lock {
    struct core *core;
    struct call *call;
    uint32_t slots[WIRE_SLOTS_MAX], n;
    uint64_t arenas[WIRE_SLOTS_MAX]; /* ids of those that can move; a retired mapping keeps what it has */
    bool in_place[WIRE_SLOTS_MAX];
    size_t n_arenas;
    uint8_t found[WIRE_SLOTS_MAX]; /* enum lock_finds, one an arena */
    uint64_t since_ms;
    struct residency residency;
};

/* Two slots may map one arena, ro and rw: it comes back once, or its second move would wait for its first for ever. */
static void add_arena(struct lock *lock, const struct arena *arena, bool in_place)
{
    size_t i = 0;

    while (i < lock->n_arenas && lock->arenas[i] != arena->id)
        i++;
    if (i == lock->n_arenas) {
        lock->arenas[lock->n_arenas++] = arena->id;
        lock->in_place[i] = true;
    }
    lock->in_place[i] &= in_place;
    lock->found[i] = lock_finds(arena, lock->in_place[i]);
}

/* Every slot again, since the session may have detached while we waited. */
static bool arrive(struct lock *lock, uint64_t fetched[2])
{
    for (uint32_t i = 0; i < lock->n; i++)
        if (!mapping_by_slot(lock->call->session, lock->slots[i]))
            return false;
    for (uint32_t i = 0; i < lock->n; i++) {
        struct mapping *mapping = mapping_by_slot(lock->call->session, lock->slots[i]);
        mapping_arrives(mapping);
        if (mapping->arena)
            recency_note(mapping->arena);
        fetched[i / 64] |= (uint64_t)1 << (i % 64);
    }
    return true;
}

static void resident(struct residency *residency)
{
    struct lock *lock = container_of(residency, struct lock, residency);
    struct call *call = lock->call;
    uint64_t fetched[2] = {0, 0};

    lock_waits_book(lock->core, lock->arenas, lock->found, lock->n_arenas, core_now(lock->core) - lock->since_ms);
    if (!call->session)
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    else if (residency->error)
        call_refuse(call, residency->error, "%s", residency->detail);
    else if (!arrive(lock, fetched))
        call_refuse(call, HBM_E_STALE, "a slot was detached while its lock waited");
    else {
        lock_has_ended(call->session, lock->n_arenas ? arena_get(lock->core, lock->arenas[0]) : NULL);
        call_done(call, fetched);
    }
    free(lock);
}

void verb_lock(struct core *core, struct call *call, const uint32_t *slots, uint32_t n, uint32_t timeout_ms)
{
    struct lock *lock;

    for (uint32_t i = 0; i < n; i++) {
        if (!mapping_by_slot(call->session, slots[i])) {
            call_refuse(call, HBM_E_NOT_FOUND, "slot %u maps nothing", slots[i]);
            return;
        }
    }
    lock = calloc(1, sizeof(*lock));
    if (!lock) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    lock->core = core;
    lock->call = call;
    lock->since_ms = core_now(core);
    lock->n = n;
    memcpy(lock->slots, slots, n * sizeof(*slots));
    for (uint32_t i = 0; i < n; i++) {
        const struct mapping *mapping = mapping_by_slot(call->session, slots[i]);
        if (mapping->arena)
            add_arena(lock, mapping->arena, mapping->in_place);
    }
    lock_begins(call->session, lock->n_arenas ? arena_get(core, lock->arenas[0]) : NULL);
    lock->residency = (struct residency){.core = core,
                                         .who = call->who,
                                         .arenas = lock->arenas,
                                         .in_place = lock->in_place,
                                         .n = lock->n_arenas,
                                         .timeout_ms = timeout_ms,
                                         .done = resident};
    residency_start(&lock->residency);
}

void verb_released(struct core *core, struct session *session, uint32_t slot)
{
    struct mapping *mapping = mapping_by_slot(session, slot);

    (void)core;
    if (mapping)
        coming_forget(mapping);
    if (!mapping || !mapping->present)
        return;
    mapping->present = false;
    mapping->reclaimed = false;
    if (mapping->arena)
        reclaim_check(mapping->arena);
}
