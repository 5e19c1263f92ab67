#include <stdio.h>
#include <string.h>

#include "daemon/core/hold.h"
#include "daemon/core/names.h"
#include "daemon/core/verbs.h"

/* 0 if `who` may free this buffer now; else why not. */
static int may_free(const struct buffer *buffer, const struct principal *who, char *detail)
{
    char pids[128];

    if (!arena_may_write(buffer->arena, who)) {
        snprintf(detail, HBM_DETAIL_MAX, "only its owner frees it");
        return HBM_E_DENIED;
    }
    if (buffer->model) {
        snprintf(detail, HBM_DETAIL_MAX, "it belongs to model %.100s: remove the model as a whole (rm)", buffer->model->name);
        return HBM_E_INVALID;
    }
    if (buffer->parent) {
        snprintf(detail, HBM_DETAIL_MAX, "it holds the scales or zero points of %.150s and goes with it", buffer->parent->name ? buffer->parent->name : "a buffer");
        return HBM_E_INVALID;
    }
    if (buffer->arena->transition && !buffer->arena->transition->gives_way) {
        transition_words(buffer->arena->transition, detail, HBM_DETAIL_MAX);
        return HBM_E_BUSY;
    }
    if (buffer_is_leased(buffer)) {
        arena_holders(buffer->arena, pids, sizeof(pids));
        snprintf(detail, HBM_DETAIL_MAX, "leased by %s", pids);
        return HBM_E_BUSY;
    }
    return 0;
}

static void free_one(struct core *core, struct buffer *buffer, const struct principal *who, int32_t pid)
{
    event_emit(&core->events, "buffer.freed", buffer->id, buffer->name, buffer->arena->owner.listener, buffer->arena->owner.uid,
               pid, "%llu bytes, by user %u", (unsigned long long)buffer->size, who->owner.uid);
    buffer_free(buffer);
}

void verb_free(struct core *core, struct call *call, uint64_t id)
{
    struct buffer *buffer = buffer_get(core, id);
    char detail[HBM_DETAIL_MAX] = "";

    if (!buffer || !buffer_visible(buffer, &call->who)) {
        bool held = call->session && session_held(call->session, id);
        call_refuse(call, held ? HBM_E_STALE : HBM_E_NOT_FOUND, "id:0x%016llx", (unsigned long long)id);
        return;
    }
    int error = may_free(buffer, &call->who, detail);
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    free_one(core, buffer, &call->who, call->session ? call->session->pid : 0);
    call_done(call, NULL);
}

static void fill_row(struct op_row *row, const struct buffer *buffer, const struct principal *who)
{
    row->buffer = buffer->id;
    row->size = buffer->size;
    row->tier = arena_tier(buffer->arena);
    row->encoding = buffer->encoding;
    buffer_name_for(buffer, who, row->name, sizeof(row->name));
}

/* Of several it is to be known which. */
static void put_name(const struct buffer *buffer, const struct principal *who, const char *why, char *detail)
{
    char name[NAME_FOR_MAX];

    buffer_name_for(buffer, who, name, sizeof(name));
    snprintf(detail, HBM_DETAIL_MAX, "%.100s%s%.150s", name, *name ? ": " : "", why);
}

void verb_free_sel(struct core *core, struct call *call, const char *sel)
{
    struct selection selection;
    char detail[HBM_DETAIL_MAX] = "", why[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    /* All or nothing: one that cannot go keeps the others. */
    for (size_t i = 0; !error && i < selection.n; i++) {
        error = may_free(selection.buffers[i], &call->who, why);
        if (error)
            put_name(selection.buffers[i], &call->who, why, detail);
    }
    struct op *op = error ? NULL : op_new(core, "free", &call->who, call->session, selection.n, &error, detail);
    if (!op) {
        selection_clear(&selection);
        call_refuse(call, error, "%s", detail);
        return;
    }
    for (size_t i = 0; i < selection.n; i++) {
        fill_row(&op->rows[i], selection.buffers[i], &call->who);
        free_one(core, selection.buffers[i], &call->who, 0);
    }
    selection_clear(&selection);
    uint64_t id = op->id;
    op_end(op, 0, "");
    call_done(call, op_get(core, id));
}
