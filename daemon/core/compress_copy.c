#include "daemon/core/compress_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/calibration.h"
#include "daemon/core/ledger.h"
#include "daemon/core/part.h"
#include "daemon/core/receipt.h"

/* NAME@CODEC, and what the codec's scales are shared by, or of which axis channels lie apart: w@int8.channel0,
 * w@int8.group128, w@int8-split.channel0, w@fp16. */
static void default_name(const struct buffer *buffer, const struct hbm_encoding *encoding, char *name, size_t size)
{
    char suffix[32] = "";

    if (hbm_codec_scale_bytes(encoding->codec)) {
        if (encoding->granularity == HBM_PER_CHANNEL || hbm_codec_splits(encoding->codec))
            snprintf(suffix, sizeof(suffix), ".channel%u", encoding->axis);
        else if (encoding->granularity == HBM_PER_GROUP)
            snprintf(suffix, sizeof(suffix), ".group%u", encoding->group);
        else
            snprintf(suffix, sizeof(suffix), ".tensor");
    }
    snprintf(name, size, "%s@%s%s", buffer->name, hbm_codec_name(encoding->codec), suffix);
}

static int choose_copy(const struct buffer *buffer, const struct principal *who, const void *context,
                       struct recode *recode, const char **why)
{
    const struct compress_args *args = context;
    char name[HBM_NAME_MAX + 64], part[HBM_NAME_MAX + 80];
    int error = compress_encoding(buffer, &args->encoding, &recode->encoding, why);

    recode->min_sqnr_db = args->min_sqnr_db;
    recode->max_error = args->max_error;
    if (!error)
        error = calibration_for(buffer, who, args, recode, why);
    if (error)
        return error;
    if (args->as[0])
        snprintf(name, sizeof(name), "%s", args->as);
    else if (buffer->name)
        default_name(buffer, &recode->encoding, name, sizeof(name));
    else {
        *why = "it has no name that the copy's could follow from: say what to call the copy";
        return HBM_E_INVALID;
    }
    bool taken = names_find(&buffer->core->buffer_names, who->owner, name) != NULL;
    for (unsigned i = 0; i < PARTS; i++) {
        if (!part_has(i, recode->encoding.codec))
            continue;
        part_name(i, name, part, sizeof(part));
        if (!name_is_valid(part, why))
            return HBM_E_INVALID;
        taken |= names_find(&buffer->core->buffer_names, who->owner, part) != NULL;
    }
    if (!taken)
        return 0;
    *why = "the copy's name is taken";
    return HBM_E_EXISTS;
}

/* ---- When all are encoded: their catalog entries ---- */

/* What a failure leaves in the arena goes with the arena. */
static struct buffer *make_buffer(struct arena *arena, const struct placement *placement, const char *as,
                                  int *error, char *detail)
{
    const struct buffer *original = buffer_get(arena->core, placement->buffer);
    char name[HBM_NAME_MAX + 64];

    if (!original) {
        snprintf(detail, HBM_DETAIL_MAX, "an original was freed meanwhile");
        *error = HBM_E_STALE;
        return NULL;
    }
    if (*as)
        snprintf(name, sizeof(name), "%s", as);
    else
        default_name(original, &placement->encoding, name, sizeof(name));
    struct buffer_spec spec = {
        .name = name,
        .dtype = original->dtype,
        .rank = original->rank,
        .dims = original->dims,
        .offset = placement->offset,
        .size = placement->size,
        .keep = true,
    };
    struct buffer *buffer = buffer_new(arena, &spec, error, detail);
    if (!buffer)
        return NULL;
    buffer->encoding = placement->encoding;
    if (placement->has_receipt)
        receipt_take(buffer, placement->encoding.codec, &placement->receipt, &placement->quality);
    for (unsigned i = 0; i < PARTS; i++)
        if (placement->parts[i].size && !part_new(buffer, i, placement, error, detail))
            return NULL;
    return buffer;
}

static void drop_arena(struct arena *arena)
{
    size_t n = arena_count_buffers(arena);

    if (!n)
        arena_free(arena);
    while (n--) {
        struct buffer *first = list_entry(list_first(&arena->buffers), struct buffer, arena_node);
        buffer_free(first->parent ? first->parent : first); /* the last one takes the arena along */
    }
}

/* made[i] gets the id of the copy of placement i. */
static struct arena *make_arena(struct moving *moving, struct plan *plan, uint64_t *made, int *error)
{
    const struct buffer *first = buffer_get(moving->core, plan->placements[0].buffer);
    const struct op *op = op_get(moving->core, moving->op);
    struct arena *arena = arena_new(moving->core, op->who.owner, false, 0600, HBM_HANDLE_FD,
                                    first ? first->arena->group : "", plan->target);

    if (!arena) {
        snprintf(moving->transition.detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    plan->target = NULL; /* the arena's now */
    for (size_t i = 0; i < plan->n_placements && !*error; i++) {
        const struct buffer *buffer =
            make_buffer(arena, &plan->placements[i], moving->own, error, moving->transition.detail);
        if (buffer)
            made[i] = buffer->id;
    }
    if (!*error)
        return arena;
    drop_arena(arena);
    return NULL;
}

static void show_copy(struct op *op, uint64_t original, const struct buffer *copy)
{
    for (size_t i = 0; i < op->n_rows; i++) {
        struct op_row *row = &op->rows[i];
        if (row->skipped || row->buffer != original)
            continue;
        row->buffer = copy->id;
        snprintf(row->name, sizeof(row->name), "%s", copy->name);
        op_row_show(row, copy);
        return;
    }
}

static void remember(struct moving *moving, struct arena *arena, const struct plan *plan, const uint64_t *made)
{
    struct op *op = op_get(moving->core, moving->op);

    ledger_put_extent(moving->core, arena->extent); /* should its first row have been lost to want of memory */
    ledger_put_arena(moving->core, arena);
    for (size_t i = 0; i < plan->n_placements; i++) {
        struct buffer *copy = buffer_get(moving->core, made[i]);
        ledger_put_buffer(moving->core, copy);
        parts_place(copy, &plan->placements[i]);
        show_copy(op, plan->placements[i].buffer, copy);
        receipt_tell(copy);
    }
}

static int make_copies(struct transition *transition)
{
    struct moving *moving = container_of(transition, struct moving, transition);
    _cleanup_free_ struct arena **arenas = calloc(transition->n, sizeof(*arenas));
    size_t placements = 0, n = 0, at = 0;
    int error = 0;

    for (size_t i = 0; i < transition->n; i++)
        placements += transition->plans[i].n_placements;
    _cleanup_free_ uint64_t *made = calloc(placements, sizeof(*made));
    if (!arenas || !made) {
        snprintf(transition->detail, sizeof(transition->detail), OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    for (; n < transition->n; at += transition->plans[n++].n_placements)
        if (!(arenas[n] = make_arena(moving, &transition->plans[n], made + at, &error)))
            break;
    if (error) {
        while (n--)
            drop_arena(arenas[n]);
        return error;
    }
    ledger_begin(moving->core);
    at = 0;
    for (size_t i = 0; i < transition->n; at += transition->plans[i++].n_placements)
        remember(moving, arenas[i], &transition->plans[i], made + at);
    ledger_end(moving->core);
    return 0;
}

/* The rows were filled when the copies were made. */
static void keep_rows(struct moving *moving, struct op *op)
{
    (void)moving;
    (void)op;
}

static void free_name(struct moving *moving)
{
    free(moving->own);
}

struct moving *compress_copy(struct core *core, const struct principal *who, const struct selection *selection,
                             const struct compress_args *args, int *error, char *detail)
{
    if (args->as[0] && (selection->n != 1 || selection->by_pattern)) {
        snprintf(detail, HBM_DETAIL_MAX, "one name for the copies of several buffers");
        *error = HBM_E_INVALID;
        return NULL;
    }
    struct moving *moving = recoding(core, who, selection, choose_copy, args, true, error, detail);
    if (!moving)
        return NULL;
    moving->own = strdup(args->as);
    moving->clear = free_name;
    moving->fill = keep_rows;
    moving->transition.copy = true;
    moving->transition.commit = make_copies;
    moving->transition.account = account_of(core, who->owner);
    if (moving->own && moving->transition.account)
        return moving;
    snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
    *error = HBM_E_NO_MEMORY;
    return moving_free(moving);
}
