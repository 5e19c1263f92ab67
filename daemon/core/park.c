#include "daemon/core/park.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"

static bool is_parked(const struct arena *arena)
{
    list_for_each (node, &arena->buffers)
        if (list_entry(node, struct buffer, arena_node)->park.encoding.codec != HBM_CODEC_RAW)
            return true;
    return false;
}

/* 0: memory is out. */
static uint64_t packed_size(const struct arena *arena)
{
    _cleanup_(packing_unrefp) struct packing *packing = packing_new(arena, NULL);
    uint64_t grain = arena->device->granularity;

    if (!packing)
        return 0;
    return packing->n_packed ? (packing->bytes + grain - 1) / grain * grain : arena->extent->size;
}

uint64_t park_size(struct arena *arena)
{
    if (arena_tier(arena) != HBM_TIER_DEVICE) /* what lies with a peer goes on as it is */
        return arena->extent->size;
    if (!arena->parked_size)
        arena->parked_size = is_parked(arena) ? packed_size(arena) : arena->extent->size;
    return arena->parked_size ? arena->parked_size : arena->extent->size;
}

static int choose_park(const struct buffer *buffer, const struct principal *who, const struct parking *asked,
                       struct hbm_encoding *encoding, const char **why)
{
    if (arena_may_write(buffer->arena, who))
        return park_encoding(buffer, &asked->encoding, encoding, why);
    *why = "it is another owner's, and not yours to write";
    return HBM_E_DENIED;
}

static void set_policy(struct buffer *buffer, const struct parking *park)
{
    buffer->park = *park;
    buffer->arena->parked_size = 0;
    ledger_put_buffer(buffer->core, buffer);
}

/* Once the op is sure to have been: each buffer that the rows do not pass over. */
static void set_policies(struct moving *moving, struct op *op)
{
    const struct parking *asked = moving->own;
    const char *ignored;

    ledger_begin(moving->core);
    for (size_t i = 0; i < op->n_rows; i++) {
        struct buffer *buffer = buffer_get(moving->core, op->rows[i].buffer);
        struct parking park = *asked;
        if (op->rows[i].skipped || !buffer || park_encoding(buffer, &asked->encoding, &park.encoding, &ignored))
            continue;
        set_policy(buffer, &park);
        op_row_show(&op->rows[i], buffer);
    }
    ledger_end(moving->core);
}

static void free_asked(struct moving *moving)
{
    free(moving->own);
}

/* A row for each; an error with detail if none can. */
static int choose_all(struct moving *moving, const struct principal *who, const struct selection *selection, char *detail)
{
    const char *why = "";
    size_t chosen = 0;
    int last = 0;

    for (size_t i = 0; i < selection->n; i++) {
        const struct buffer *buffer = selection->buffers[i];
        struct hbm_encoding encoding;
        int error = arena_is_built(buffer->arena, detail);
        if (error)
            return error;
        error = choose_park(buffer, who, moving->own, &encoding, &why);
        if (error && !selection->by_pattern) {
            snprintf(detail, HBM_DETAIL_MAX, "%.150s: %s", buffer->name ? buffer->name : "the buffer", why);
            return error;
        }
        moving_row(moving, buffer, who, error ? why : NULL);
        chosen += !error;
        last = error ? error : last;
    }
    if (chosen)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "none of the %zu buffers named can: of the last one, %s", selection->n, why);
    return last;
}

struct moving *park_buffers(struct core *core, const struct principal *who, const struct selection *selection,
                            const struct compress_args *args, int *error, char *detail)
{
    struct moving *moving = moving_new(core, 0, selection->n);
    struct parking *asked = calloc(1, sizeof(*asked));

    if (!moving || !asked) {
        free(asked);
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return moving_free(moving);
    }
    *asked = (struct parking){args->encoding, args->min_sqnr_db, args->max_error};
    moving->own = asked;
    moving->clear = free_asked;
    moving->fill = set_policies;
    *error = choose_all(moving, who, selection, detail);
    return *error ? moving_free(moving) : moving;
}

void unpark_rows(struct core *core, const struct op *op)
{
    ledger_begin(core);
    for (size_t i = 0; i < op->n_rows; i++) {
        struct buffer *buffer = buffer_get(core, op->rows[i].buffer);
        if (buffer && !op->rows[i].skipped && buffer->park.encoding.codec != HBM_CODEC_RAW)
            set_policy(buffer, &(struct parking){0});
    }
    ledger_end(core);
}
