/* Drain: a device grants nothing new, and what nobody leases moves to host memory, arena by arena: one that cannot
 * go leaves the others free to. What only lies there, of another device, goes to that one's host tier. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/verbs.h"

struct drain {
    struct core *core;
    uint64_t op;
    uint64_t *arenas;
    size_t n, at, failed;
    int error; /* the first */
    char detail[HBM_DETAIL_MAX];
    bool cancelled;
    struct transition transition;
};

static void next_arena(struct drain *drain);

static void end_drain(struct drain *drain)
{
    struct op *op = op_get(drain->core, drain->op);
    char detail[HBM_DETAIL_MAX] = "";

    if (drain->failed)
        snprintf(detail, sizeof(detail), "nothing new is granted, but %zu of %zu arenas stay: %.150s", drain->failed, drain->n, drain->detail);
    op_end(op, drain->error, detail);
}

static void show_rows(struct drain *drain, uint64_t arena, int error)
{
    struct op *op = op_get(drain->core, drain->op);

    for (size_t i = 0; i < op->n_rows; i++) {
        const struct buffer *buffer = buffer_get(drain->core, op->rows[i].buffer);
        if (!buffer || buffer->arena->id != arena)
            continue;
        op->rows[i].error = error;
        op_row_show(&op->rows[i], buffer);
    }
}

static void arena_drained(struct transition *transition)
{
    struct drain *drain = container_of(transition, struct drain, transition);
    struct op *op = op_get(drain->core, drain->op);

    if (transition->error) {
        if (!drain->failed++) {
            drain->error = transition->error;
            memcpy(drain->detail, transition->detail, sizeof(drain->detail));
        }
    }
    show_rows(drain, drain->arenas[drain->at], transition->error);
    op->bytes_done += transition->bytes_done;
    op->worked_ns += transition->worked_ns;
    transition_clear(transition);
    drain->at++;
    if (drain->cancelled)
        end_drain(drain);
    else
        next_arena(drain);
}

static void next_arena(struct drain *drain)
{
    struct core *core = drain->core;
    struct arena *arena = NULL;

    while (drain->at < drain->n && !(arena = arena_get(core, drain->arenas[drain->at])))
        drain->at++;
    if (!arena) {
        end_drain(drain);
        return;
    }
    drain->transition = (struct transition){
        .core = core,
        .plans = calloc(1, sizeof(struct plan)),
        .memory_wait_ms = core->limits.memory_wait_ms,
        .cancellable_by_lock = true,
        .verb = "drain",
        .op = drain->op,
        .done = arena_drained,
    };
    if (!drain->transition.plans || plan_move(drain->transition.plans, arena, HBM_TIER_HOST)) {
        drain->transition.error = HBM_E_NO_MEMORY;
        snprintf(drain->transition.detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        arena_drained(&drain->transition);
        return;
    }
    drain->transition.n = 1;
    transition_start(&drain->transition);
}

static void cancel_drain(struct op *op)
{
    struct drain *drain = op->state_of_verb;

    drain->cancelled = true;
    transition_cancel(&drain->transition, op->detail);
}

static void clear_drain(struct op *op)
{
    struct drain *drain = op->state_of_verb;

    transition_clear(&drain->transition);
    free(drain->arenas);
    free(drain);
}

static bool goes(const struct arena *arena, const struct device *device)
{
    char ignored[HBM_DETAIL_MAX];

    if (arena_tier(arena) == HBM_TIER_PEER) /* nobody has it mapped there */
        return !device || arena->extent->device == device;
    return (!device || arena->device == device) && arena_tier(arena) == HBM_TIER_DEVICE &&
           !arena_is_leased(arena) && !arena_is_built(arena, ignored);
}

static struct drain *build(struct core *core, const struct principal *who, const struct device *device,
                           struct moving *rows)
{
    struct drain *drain = calloc(1, sizeof(*drain));
    size_t n = 0;

    list_for_each (node, &core->arenas)
        n++;
    uint64_t *arenas = drain ? calloc(n + 1, sizeof(*arenas)) : NULL;
    if (!arenas) {
        free(drain);
        return NULL;
    }
    drain->core = drain->transition.core = core;
    drain->arenas = arenas;
    list_for_each (node, &core->arenas) {
        struct arena *arena = list_entry(node, struct arena, node);
        if (!goes(arena, device))
            continue;
        drain->arenas[drain->n++] = arena->id;
        list_for_each (inner, &arena->buffers) {
            const struct buffer *buffer = list_entry(inner, struct buffer, arena_node);
            if (!buffer->parent)
                moving_row(rows, buffer, who, NULL);
        }
    }
    return drain;
}

static void mark_drained(struct core *core, const struct device *device)
{
    list_for_each (node, &core->devices) {
        struct device *each = list_entry(node, struct device, node);
        if (!device || each == device)
            each->state = DEVICE_DRAINED;
    }
}

void verb_drain(struct core *core, struct call *call, const char *text)
{
    struct device *device = text && *text ? device_by_text(core, text) : NULL;
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;

    if (text && *text && !device) {
        call_refuse(call, HBM_E_NO_DEVICE, "%.100s", text);
        return;
    }
    _cleanup_(moving_freep) struct moving *rows = moving_new(core, 0, core->n_buffers);
    struct drain *drain = rows ? build(core, &call->who, device, rows) : NULL;
    if (!drain) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    struct op *op = op_of_rows(core, "drain", &call->who, call->session, TAKE_PTR(rows->rows), rows->n_rows, &error,
                               detail);
    if (!op) {
        free(drain->arenas);
        free(drain);
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    op->state_of_verb = drain;
    op->cancel = cancel_drain;
    op->clear = clear_drain;
    drain->op = id;
    for (size_t i = 0; i < drain->n; i++)
        op->bytes_total += arena_get(core, drain->arenas[i])->extent->size;
    mark_drained(core, device);
    next_arena(drain);
    call_done(call, op_get(core, id));
}
