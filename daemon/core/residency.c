#include "daemon/core/residency.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/coming.h"
#include "daemon/core/verbs.h"

static void advance(struct residency *residency);

/* Nothing of it goes, for want of room for the rest. */
static void want(const struct residency *residency, int n)
{
    for (size_t i = 0; i < residency->n; i++) {
        struct arena *arena = arena_get(residency->core, residency->arenas[i]);
        if (arena)
            arena->wanted += (uint32_t)n;
    }
}

static void end(struct residency *residency, int error)
{
    want(residency, -1);
    timer_stop(residency->core, &residency->timer);
    list_unlink(&residency->wait.node);
    list_unlink(&residency->begins.node);
    list_unlink(&residency->op_wait.node);
    residency->error = error;
    residency->done(residency);
}

static void waited_out(struct timer *timer)
{
    struct residency *residency = container_of(timer, struct residency, timer);

    snprintf(residency->detail, sizeof(residency->detail), "the memory was not back on its device within %" PRIu32 " ms", residency->timeout_ms);
    end(residency, HBM_E_TIMEOUT);
}

/* Once it has to wait: what is there already needs no clock. */
static void set_deadline(struct residency *residency)
{
    bool bounded = residency->timeout_ms && residency->timeout_ms != UINT32_MAX;

    if (bounded && !residency->timer.at_ms)
        timer_arm(residency->core, &residency->timer, residency->timeout_ms);
}

static void arena_is_free(struct arena_wait *wait)
{
    advance(container_of(wait, struct residency, wait));
}

/* Someone else moves one of them at this moment: what was BUSY then may not be for long. */
static bool is_moving(const struct residency *residency)
{
    for (size_t i = 0; i < residency->n; i++) {
        const struct arena *arena = arena_get(residency->core, residency->arenas[i]);
        if (arena && arena->transition)
            return true;
    }
    return false;
}

static void restored(struct op_wait *wait, struct op *op)
{
    struct residency *residency = container_of(wait, struct residency, op_wait);

    if (!op->error || (op->error == HBM_E_BUSY && is_moving(residency))) {
        advance(residency);
        return;
    }
    memcpy(residency->detail, op->detail, sizeof(residency->detail));
    end(residency, op->error);
}

/* Before it has ended, that will do. */
static void wait_for_beginning(struct residency *residency, struct arena *arena)
{
    list_unlink(&residency->begins.node);
    if (residency->early)
        list_append(&arena->early_waiters, &residency->begins.node);
}

static bool is_any_coming(const struct residency *residency)
{
    for (size_t i = 0; i < residency->n; i++) {
        const struct arena *arena = arena_get(residency->core, residency->arenas[i]);
        if (arena && coming_to(arena))
            return true;
    }
    return false;
}

static void move_begins(struct arena_wait *wait)
{
    struct residency *residency = container_of(wait, struct residency, begins);

    /* Its own move, of which nothing is given out before it has ended, to host memory say: how it ends is still to be heard. */
    if (!list_empty(&residency->op_wait.node) && !is_any_coming(residency))
        return;

    list_unlink(&residency->wait.node);
    list_unlink(&residency->op_wait.node);
    advance(residency);
}

static bool is_coming(struct residency *residency, const struct arena *arena)
{
    residency->coming = residency->early && arena && coming_to(arena);
    return residency->coming;
}

/* Waits for the move that is under way, calling it off if it is an offload. True if there is something to wait for. */
static bool wait_for_move(struct residency *residency, struct arena *arena)
{
    uint64_t id = arena->id;

    if (!arena->transition)
        return false;
    if (arena->transition->cancellable_by_lock)
        transition_cancel(arena->transition, "a client locked the memory");
    arena = arena_get(residency->core, id);
    if (!arena || !arena->transition)
        return false;
    list_append(&arena->waiters, &residency->wait.node);
    wait_for_beginning(residency, arena);
    return true;
}

/* Where it is to come; the tier that it is in if it may stay there. */
static enum hbm_tier tier_for(const struct arena *arena, bool in_place)
{
    if (arena_is_resident(arena, in_place))
        return arena_tier(arena);
    bool via_host = in_place && arena_tier(arena) == HBM_TIER_DISK && arena->handle == HBM_HANDLE_FD &&
                    !arena->extent->packing && arena->device->capacity[HBM_TIER_HOST];
    return via_host ? HBM_TIER_HOST : HBM_TIER_DEVICE;
}

/* True: there is nothing more to do for now, since it has ended, or waits for a move that is under way. */
static bool settle(struct residency *residency, struct arena *arena)
{
    if (!arena) {
        snprintf(residency->detail, sizeof(residency->detail), "it was freed meanwhile");
        end(residency, HBM_E_STALE);
        return true;
    }
    if (arena->extent->lost) {
        struct buffer *buffer = list_entry(list_first(&arena->buffers), struct buffer, arena_node);
        snprintf(residency->detail, sizeof(residency->detail), "%.200s", buffer->name ? buffer->name : arena->group);
        end(residency, HBM_E_LOST);
        return true;
    }
    if (is_coming(residency, arena)) {
        end(residency, 0);
        return true;
    }
    if (!wait_for_move(residency, arena))
        return false;
    set_deadline(residency);
    return true;
}

static void restore(struct residency *residency, const uint64_t *away, size_t n_away, enum hbm_tier to)
{
    int error = 0;

    if (!residency->timeout_ms) {
        snprintf(residency->detail, sizeof(residency->detail),
                 "%zu arenas are not where they can be used and the timeout is 0", n_away);
        end(residency, HBM_E_TIMEOUT);
        return;
    }
    set_deadline(residency);
    struct op *op = restore_arenas(residency->core, away, n_away, to, &error, residency->detail);
    struct arena *first = arena_get(residency->core, away[0]);
    if (!op || is_coming(residency, first)) {
        end(residency, op ? 0 : error);
        return;
    }
    if (first && !op_has_ended(op))
        wait_for_beginning(residency, first);
    op_wait(op, &residency->op_wait);
}

static void advance(struct residency *residency)
{
    enum hbm_tier to = HBM_TIER_DISK; /* none yet */
    _cleanup_free_ uint64_t *away = calloc(residency->n + 1, sizeof(*away));
    size_t n_away = 0;

    if (!away) {
        end(residency, HBM_E_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < residency->n; i++) {
        struct arena *arena = arena_get(residency->core, residency->arenas[i]);
        if (settle(residency, arena))
            return;
        enum hbm_tier tier = tier_for(arena, residency->in_place[i]);
        if (tier == arena_tier(arena))
            continue;
        int drained = device_check_drained(arena->device, residency->detail);
        if (drained) {
            end(residency, drained);
            return;
        }
        if (n_away && tier != to) /* in its turn */
            continue;
        to = tier;
        away[n_away++] = arena->id;
    }
    if (n_away)
        restore(residency, away, n_away, to);
    else
        end(residency, 0);
}

void residency_start(struct residency *residency)
{
    list_init(&residency->wait.node);
    list_init(&residency->begins.node);
    list_init(&residency->op_wait.node);
    list_init(&residency->timer.node);
    residency->wait.ready = arena_is_free;
    residency->begins.ready = move_begins;
    residency->coming = false;
    residency->op_wait.ended = restored;
    residency->timer.fire = waited_out;
    residency->timer.at_ms = 0;
    residency->detail[0] = 0;
    want(residency, 1);
    advance(residency);
}
