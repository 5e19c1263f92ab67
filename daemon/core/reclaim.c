#include "daemon/core/reclaim.h"

#include <stdio.h>

#include "daemon/base/usdt.h"

static bool anyone_maps(const struct arena *arena)
{
    list_for_each(node, &arena->mappings)
        if (list_entry(node, struct mapping, arena_node)->present)
            return true;
    return false;
}

bool arena_is_in_use(const struct arena *arena)
{
    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        uint64_t word = atomic_load(&mapping->session->words[mapping->slot]);
        if ((mapping->present && (word & LOCKWORD_COUNT)) || (word & LOCKWORD_WANTED))
            return true;
    }
    return false;
}

static void withdraw(struct arena *arena)
{
    list_for_each(node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping->reclaimed)
            lockword_withdraw(&mapping->session->words[mapping->slot]);
        mapping->reclaimed = false;
    }
}

static void end(struct reclaim *reclaim, int error)
{
    struct arena *arena = reclaim->arena;

    timer_stop(arena->core, &reclaim->timer);
    USDT2(reclaim_end, arena->id, error);
    arena->reclaim = NULL;
    reclaim->error = error;
    reclaim->done(reclaim);
}

static void too_late(struct timer *timer)
{
    struct reclaim *reclaim = container_of(timer, struct reclaim, timer);
    char pids[128];

    arena_mappers(reclaim->arena, pids, sizeof(pids));
    snprintf(reclaim->detail, sizeof(reclaim->detail), "%s did not let go in time", pids);
    withdraw(reclaim->arena);
    end(reclaim, HBM_E_BUSY);
}

void reclaim_start(struct reclaim *reclaim, uint32_t deadline_ms)
{
    struct arena *arena = reclaim->arena;

    arena->reclaim = reclaim;
    list_init(&reclaim->timer.node);
    reclaim->timer.at_ms = 0;
    reclaim->timer.fire = too_late;
    list_for_each(node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        struct session *session = mapping->session;
        if (!mapping->present)
            continue;
        mapping->reclaimed = true;
        lockword_request(&session->words[mapping->slot]);
        USDT3(reclaim, session->pid, arena->id, deadline_ms);
        if (session->link)
            session->send_reclaim(session, mapping->slot, deadline_ms);
    }
    if (!anyone_maps(arena))
        end(reclaim, 0);
    else
        timer_arm(arena->core, &reclaim->timer, deadline_ms);
}

void reclaim_cancel(struct reclaim *reclaim)
{
    timer_stop(reclaim->arena->core, &reclaim->timer);
    withdraw(reclaim->arena);
    reclaim->arena->reclaim = NULL;
}

void reclaim_check(struct arena *arena)
{
    if (arena->reclaim && !anyone_maps(arena))
        end(arena->reclaim, 0);
}
