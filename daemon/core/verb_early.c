/* A lock for a client whose device waits, and not its CPU: memory first, then how its filling ends. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/core/coming.h"
#include "daemon/core/lock_waits.h"
#include "daemon/core/recency.h"
#include "daemon/core/residency.h"
#include "daemon/core/verbs.h"

struct early {
    struct core *core;
    struct call *call;
    uint32_t slot;
    uint64_t arena; /* id */
    bool in_place;
    uint8_t found; /* enum lock_finds */
    uint64_t since_ms;
    struct residency residency;
};

static void give(struct early *early, struct mapping *mapping)
{
    struct arena *arena = mapping->arena;
    struct extent *extent = early->residency.coming && arena ? coming_to(arena) : NULL;
    uint64_t coming = extent != NULL;

    if (coming)
        coming_give(mapping, extent);
    else
        mapping_arrives(mapping);
    if (arena)
        recency_note(arena);
    lock_has_ended(early->call->session, arena);
    call_done(early->call, &coming);
}

/* Counted is what the CPU has waited until here. */
static void settled(struct residency *residency)
{
    struct early *early = container_of(residency, struct early, residency);
    struct call *call = early->call;
    struct mapping *mapping = call->session ? mapping_by_slot(call->session, early->slot) : NULL;

    lock_waits_book(early->core, &early->arena, &early->found, 1, core_now(early->core) - early->since_ms);
    if (!call->session)
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    else if (residency->error)
        call_refuse(call, residency->error, "%s", residency->detail);
    else if (!mapping)
        call_refuse(call, HBM_E_STALE, "a slot was detached while its lock waited");
    else
        give(early, mapping);
    free(early);
}

void verb_lock_early(struct core *core, struct call *call, uint32_t slot, uint32_t timeout_ms)
{
    struct mapping *mapping = mapping_by_slot(call->session, slot);
    struct early *early = mapping ? calloc(1, sizeof(*early)) : NULL;
    uint64_t coming = 0;

    if (!early) {
        call_refuse(call, mapping ? HBM_E_NO_MEMORY : HBM_E_NOT_FOUND,
                    mapping ? OWNER_OUT_OF_MEMORY : "slot %" PRIu32 " maps nothing", slot);
        return;
    }
    coming_forget(mapping);
    if (!mapping->arena) { /* retired: it keeps what it has */
        free(early);
        mapping_arrives(mapping);
        call_done(call, &coming);
        return;
    }
    mapping->arena->early = true;
    *early = (struct early){.core = core,
                            .call = call,
                            .slot = slot,
                            .arena = mapping->arena->id,
                            .in_place = mapping->in_place,
                            .found = lock_finds(mapping->arena, mapping->in_place),
                            .since_ms = core_now(core)};
    lock_begins(call->session, mapping->arena);
    early->residency = (struct residency){.core = core,
                                          .who = call->who,
                                          .arenas = &early->arena,
                                          .in_place = &early->in_place,
                                          .n = 1,
                                          .timeout_ms = timeout_ms,
                                          .early = true,
                                          .done = settled};
    residency_start(&early->residency);
}

/* ---- Arrival ---- */

struct arrival {
    struct core *core;
    struct call *call;
    uint32_t slot;
    uint64_t extent; /* id: a slot may be another mapping's by then */
    struct arena_wait wait;
    struct timer timer;
};

static void end(struct arrival *arrival)
{
    timer_stop(arrival->core, &arrival->timer);
    list_unlink(&arrival->wait.node);
    free(arrival);
}

/* False: it is still coming. */
static bool answer(struct arrival *arrival)
{
    struct call *call = arrival->call;
    const struct mapping *mapping = call->session ? mapping_by_slot(call->session, arrival->slot) : NULL;

    if (!call->session)
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    else if (mapping && mapping->present && mapping->extent->id == arrival->extent)
        call_done(call, NULL);
    else if (!mapping || !mapping->early || mapping->early->id != arrival->extent)
        call_refuse(call, HBM_E_STALE, "slot %" PRIu32 " was let go of meanwhile", arrival->slot);
    else if (mapping->early_error)
        call_refuse(call, mapping->early_error, "%s", mapping->early_why ? mapping->early_why : "");
    else if (!mapping->arena || !mapping->arena->transition)
        call_refuse(call, HBM_E_STALE, "its move has ended without it");
    else
        return false;
    return true;
}

static void arena_is_free(struct arena_wait *wait)
{
    struct arrival *arrival = container_of(wait, struct arrival, wait);

    if (!answer(arrival)) /* another move has begun already */
        call_refuse(arrival->call, HBM_E_STALE, "its move has ended without it");
    end(arrival);
}

static void waited_out(struct timer *timer)
{
    struct arrival *arrival = container_of(timer, struct arrival, timer);

    call_refuse(arrival->call, HBM_E_TIMEOUT, "the memory was not back on its device in time");
    end(arrival);
}

void verb_arrived(struct core *core, struct call *call, uint32_t slot, uint32_t timeout_ms)
{
    const struct mapping *mapping = mapping_by_slot(call->session, slot);
    struct arrival *arrival = mapping ? calloc(1, sizeof(*arrival)) : NULL;

    if (!arrival) {
        call_refuse(call, mapping ? HBM_E_NO_MEMORY : HBM_E_NOT_FOUND,
                    mapping ? OWNER_OUT_OF_MEMORY : "slot %" PRIu32 " maps nothing", slot);
        return;
    }
    *arrival = (struct arrival){.core = core,
                                .call = call,
                                .slot = slot,
                                .extent = mapping->early ? mapping->early->id : mapping->extent->id,
                                .wait.ready = arena_is_free,
                                .timer.fire = waited_out};
    list_init(&arrival->wait.node);
    list_init(&arrival->timer.node);
    if (answer(arrival)) {
        end(arrival);
        return;
    }
    list_append(&mapping->arena->waiters, &arrival->wait.node);
    if (timeout_ms != UINT32_MAX)
        timer_arm(core, &arrival->timer, timeout_ms);
}
