/* What was observed of buffers: told, forgotten, or replaced by what others found. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/moving.h"
#include "daemon/core/observation.h"
#include "daemon/core/verbs.h"

static int no_memory(char *detail)
{
    snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
    return HBM_E_NO_MEMORY;
}

void verb_forget(struct core *core, struct call *call, const char *sel)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    for (size_t i = 0; !error && i < selection.n; i++)
        if (!arena_may_write(selection.buffers[i]->arena, &call->who)) {
            snprintf(detail, sizeof(detail), "only who may write a buffer may forget what was observed of it");
            error = HBM_E_DENIED;
        }
    struct op *op = error ? NULL : op_new(core, "observe", &call->who, call->session, selection.n, &error, detail);
    if (!op) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    for (size_t i = 0; i < selection.n; i++) {
        op_row_begin(&op->rows[i], selection.buffers[i], &call->who);
        observation_free(selection.buffers[i]->observation);
    }
    uint64_t id = op->id;
    op_end(op, 0, "");
    call_done(call, op_get(core, id));
}

void verb_observed(struct core *core, struct call *call, uint64_t id, const char *name)
{
    struct buffer *buffer = id ? buffer_get(core, id) : names_resolve(&core->buffer_names, &call->who, name);

    if (!buffer || !buffer_visible(buffer, &call->who))
        call_refuse(call, HBM_E_NOT_FOUND, "%.200s", id ? "the buffer of that id" : name);
    else if (!buffer->observation)
        call_refuse(call, HBM_E_NOT_FOUND, "%.120s: nothing was observed of it",
                    buffer->name ? buffer->name : "the buffer");
    else
        call_done(call, &buffer->observation->seen);
}

/* ---- What others found ---- */

static int check_range(const struct buffer *buffer, const struct principal *who, const struct observed_range *range,
                       char *detail)
{
    const char *name = buffer && buffer->name ? buffer->name : "a buffer";

    if (!buffer || !buffer_visible(buffer, who)) {
        snprintf(detail, HBM_DETAIL_MAX, "the buffer of one of the ranges");
        return HBM_E_NOT_FOUND;
    }
    if (!arena_may_write(buffer->arena, who)) {
        snprintf(detail, HBM_DETAIL_MAX, "%.100s: only who may write a buffer may say what its range is", name);
        return HBM_E_DENIED;
    }
    if (buffer->parent || !hbm_dtype_codable(buffer->dtype)) {
        snprintf(detail, HBM_DETAIL_MAX, "%.100s: F32, F16 and BF16 have ranges", name);
        return HBM_E_UNSUPPORTED;
    }
    if (range->lo <= range->hi && range->lo >= -FLT_MAX && range->hi <= FLT_MAX && (range->lo < 0 || range->hi > 0))
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "%.100s: %g to %g is no range", name, (double)range->lo, (double)range->hi);
    return HBM_E_INVALID;
}

/* Those of the first n that were made for this go. */
static void undo(struct core *core, const struct observed_range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct observation *observation = buffer_get(core, ranges[i].buffer)->observation;
        if (observation && !observation->seen.batches && !observation->seen.imported)
            observation_free(observation);
    }
}

static int make_all(struct core *core, const struct principal *who, const struct observed_range *ranges, size_t n,
                    char *detail)
{
    int error = 0;

    for (size_t i = 0; i < n && !error; i++)
        error = check_range(buffer_get(core, ranges[i].buffer), who, &ranges[i], detail);
    for (size_t i = 0; i < n && !error; i++)
        if (!observation_of(buffer_get(core, ranges[i].buffer), &error, detail))
            undo(core, ranges, i);
    return error;
}

void verb_set_ranges(struct core *core, struct call *call, const struct observed_range *ranges, size_t n)
{
    _cleanup_free_ struct op_row *rows = calloc(n, sizeof(*rows));
    char detail[HBM_DETAIL_MAX] = "";
    int error = rows ? make_all(core, &call->who, ranges, n, detail) : no_memory(detail);
    bool made = !error;

    for (size_t i = 0; !error && i < n; i++)
        op_row_begin(&rows[i], buffer_get(core, ranges[i].buffer), &call->who);
    struct op *op =
        error ? NULL : op_of_rows(core, "observe", &call->who, call->session, TAKE_PTR(rows), n, &error, detail);
    if (!op) {
        if (made)
            undo(core, ranges, n);
        call_refuse(call, error, "%s", detail);
        return;
    }
    ledger_begin(core);
    for (size_t i = 0; i < n; i++)
        observation_import(buffer_get(core, ranges[i].buffer)->observation, ranges[i].lo, ranges[i].hi);
    ledger_end(core);
    uint64_t id = op->id;
    op_end(op, 0, "");
    call_done(call, op_get(core, id));
}
