/* Prefetch: restore as a hint. What does not come is said in its row. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/prefetch.h"
#include "daemon/core/verbs.h"

/* The arenas of a selection in its own order, a model's as they were published, each once; and how many buffers lie
 * in them. */
static int order_of_use(struct core *core, const struct selection *selection, struct wanted **wanted, size_t *n,
                        size_t *rows, char *detail)
{
    uint64_t visit = ++core->visits;

    *n = *rows = 0;
    *wanted = calloc(selection->n + 1, sizeof(**wanted));
    if (!*wanted) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    for (size_t i = 0; i < selection->n; i++) {
        struct arena *arena = selection->buffers[i]->arena;
        int error = arena_is_built(arena, detail);
        if (error)
            return error;
        if (arena->visit == visit)
            continue;
        arena->visit = visit;
        struct wanted one = {arena->id, *rows, arena_count_buffers(arena)};
        *rows += one.n_rows;
        (*wanted)[(*n)++] = one;
    }
    return 0;
}

static void fill_rows(struct op *op, const struct wanted *wanted, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        const struct arena *arena = arena_get(op->core, wanted[i].arena);
        list_for_each (node, &arena->buffers) {
            const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
            if (!buffer->parent)
                op_row_begin(&op->rows[at++], buffer, &op->who);
        }
    }
}

void verb_prefetch(struct core *core, struct call *call, const char *sel)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_free_ struct wanted *wanted = NULL;
    char detail[HBM_DETAIL_MAX] = "";
    size_t n = 0, rows = 0;
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    /* No right to write is asked for: whoever may read a buffer brings it back by attaching it. */
    if (!error)
        error = order_of_use(core, &selection, &wanted, &n, &rows, detail);
    struct op *op = NULL;
    if (!error)
        op = prefetch_new(core, HBM_TIER_DEVICE, TAKE_PTR(wanted), n, &call->who, call->session, rows, &error, detail);
    if (!op) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    fill_rows(op, ((struct prefetch *)op->state_of_verb)->wanted, n);
    prefetch_start(op);
    call_done(call, op_get(core, id)); /* ended ops are kept, the newest above all */
}
