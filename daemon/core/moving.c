#include "daemon/core/moving.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct moving *moving_new(struct core *core, size_t plans, size_t rows)
{
    struct moving *moving = calloc(1, sizeof(*moving));

    if (!moving)
        return NULL;
    moving->core = moving->transition.core = core;
    list_init(&moving->yielded.node);
    moving->transition.memory_wait_ms = core->limits.memory_wait_ms;
    moving->transition.plans = calloc(plans + 1, sizeof(*moving->transition.plans));
    moving->rows = calloc(rows + 1, sizeof(*moving->rows));
    return moving->transition.plans && moving->rows ? moving : moving_free(moving);
}

struct moving *moving_free(struct moving *moving)
{
    if (!moving)
        return NULL;
    if (moving->clear)
        moving->clear(moving);
    list_unlink(&moving->yielded.node);
    transition_clear(&moving->transition);
    free(moving->rows);
    free(moving);
    return NULL;
}

void op_row_show(struct op_row *row, const struct buffer *buffer)
{
    const struct packed *packed = buffer_packed(buffer);

    row->tier = arena_tier(buffer->arena);
    row->peer = arena_peer(buffer->arena);
    row->encoding = buffer->encoding;
    row->park = buffer->park.encoding;
    row->packed = packed ? packed->encoding : (struct hbm_encoding){0};
    row->stored = buffer_stored_size(buffer);
    row->size = buffer->size + buffer_parts_size(buffer);
    row->bytes_after = row->size;
    row->has_receipt = buffer->has_receipt;
    row->receipt = buffer->receipt;
    row->quality = buffer->quality;
}

void op_row_begin(struct op_row *row, const struct buffer *buffer, const struct principal *who)
{
    row->buffer = buffer->id;
    if (who)
        buffer_name_for(buffer, who, row->name, sizeof(row->name));
    else
        snprintf(row->name, sizeof(row->name), "%s", buffer->name ? buffer->name : "");
    op_row_show(row, buffer);
    row->bytes_before = row->size;
    row->has_receipt = false;
}

struct op_row *moving_row(struct moving *moving, const struct buffer *buffer, const struct principal *who,
                          const char *skipped)
{
    struct op_row *row = &moving->rows[moving->n_rows++];

    op_row_begin(row, buffer, who);
    row->skipped = skipped;
    return row;
}

static void moving_progress(struct transition *transition)
{
    struct moving *moving = container_of(transition, struct moving, transition);
    struct op *op = op_get(moving->core, moving->op);

    op->bytes_done = transition_bytes(transition);
    op->worked_ns = transition->worked_ns;
    op->links = transition->links;
    if (transition->one_by_one && !transition->cancelled)
        snprintf(op->detail, sizeof(op->detail), "%zu of %zu groups are there", transition->swapped, transition->n);
}

void moving_fill_rows(struct op *op)
{
    for (size_t i = 0; i < op->n_rows; i++) {
        struct op_row *row = &op->rows[i];
        const struct buffer *buffer = buffer_get(op->core, row->buffer);
        if (!row->skipped && buffer)
            op_row_show(row, buffer);
        else if (!row->skipped)
            row->error = HBM_E_STALE; /* freed meanwhile */
    }
}

/* What has come of a transition that is swapped one by one is no failure. */
static bool has_come(const struct transition *transition, const struct op_row *row)
{
    const struct buffer *buffer = transition->one_by_one ? buffer_get(transition->core, row->buffer) : NULL;

    return buffer && arena_tier(buffer->arena) == transition->plans[0].tier;
}

static void fail_rows(const struct transition *transition, struct op *op)
{
    for (size_t i = 0; i < op->n_rows; i++) {
        struct op_row *row = &op->rows[i];
        if (row->skipped)
            continue;
        if (has_come(transition, row))
            op_row_show(row, buffer_get(transition->core, row->buffer));
        else
            row->error = transition->error;
    }
}

static void moving_done(struct transition *transition)
{
    struct moving *moving = container_of(transition, struct moving, transition);
    struct op *op = op_get(moving->core, moving->op);
    char detail[HBM_DETAIL_MAX];
    int error = transition->error;

    if (error)
        fail_rows(transition, op);
    else if (moving->fill)
        moving->fill(moving, op);
    else
        moving_fill_rows(op);
    moving_progress(transition);
    if (transition->swapped)
        snprintf(detail, sizeof(detail), "%zu of %zu groups are back: %.190s", transition->swapped, transition->n,
                 transition->detail);
    else
        memcpy(detail, transition->detail, sizeof(detail));
    transition_clear(transition);
    op_end(op, error, error ? detail : NULL);
}

/* Calls off the daemon's own moves of its arenas; true if one has not ended yet. */
static bool waits_for_yield(struct moving *moving)
{
    for (size_t i = 0; i < moving->transition.n; i++) {
        uint64_t id = moving->transition.plans[i].arena;
        struct arena *arena = arena_get(moving->core, id);
        if (!arena || !arena->transition || !arena->transition->gives_way)
            continue;
        transition_cancel(arena->transition, "an operation wants the memory");
        arena = arena_get(moving->core, id);
        if (!arena || !arena->transition)
            continue;
        list_append(&arena->waiters, &moving->yielded.node);
        return true;
    }
    return false;
}

static void start(struct moving *moving)
{
    if (!waits_for_yield(moving))
        transition_start(&moving->transition);
}

static void yielded(struct arena_wait *wait)
{
    start(container_of(wait, struct moving, yielded));
}

static void cancel_moving(struct op *op)
{
    struct moving *moving = op->state_of_verb;

    if (list_empty(&moving->yielded.node)) {
        transition_cancel(&moving->transition, op->detail);
        return;
    }
    list_unlink(&moving->yielded.node);
    moving->transition.error = HBM_E_CANCELLED;
    snprintf(moving->transition.detail, sizeof(moving->transition.detail), "%s", op->detail);
    moving_done(&moving->transition);
}

static void clear_moving(struct op *op)
{
    moving_free(op->state_of_verb);
}

struct op *moving_run(struct moving *moving, const char *verb, const struct principal *who, struct session *session,
                      int *error, char *detail)
{
    if (!moving) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    struct core *core = moving->core;
    struct op *op =
        op_of_rows(core, verb, who, session, TAKE_PTR(moving->rows), moving->n_rows, error, detail);
    if (!op) {
        moving_free(moving);
        return NULL;
    }
    uint64_t id = op->id;
    op->quiet = moving->quiet;
    moving->yielded.ready = yielded;
    op->state_of_verb = moving;
    op->cancel = cancel_moving;
    op->clear = clear_moving;
    moving->op = moving->transition.op = id;
    moving->transition.verb = verb;
    moving->transition.progress = moving_progress;
    moving->transition.done = moving_done;
    for (size_t i = 0; i < moving->transition.n; i++)
        op->bytes_total += plan_bytes(&moving->transition.plans[i]);
    start(moving);
    return op_get(core, id); /* ended ops are kept, the newest above all */
}

void moving_answer(struct moving *moving, const char *verb, struct call *call)
{
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;
    struct op *op = moving_run(moving, verb, &call->who, call->session, &error, detail);

    if (op)
        call_done(call, op);
    else
        call_refuse(call, error, "%s", detail);
}

struct moving *moving_arenas(struct core *core, const struct principal *who, struct arena *const *arenas, size_t n,
                             enum hbm_tier tier)
{
    return moving_arenas_as(core, who, arenas, n, tier, NULL);
}

struct moving *moving_arenas_as(struct core *core, const struct principal *who, struct arena *const *arenas, size_t n,
                                enum hbm_tier tier, const struct parking *park)
{
    size_t rows = 0;

    for (size_t i = 0; i < n; i++)
        rows += arena_count_buffers(arenas[i]);
    struct moving *moving = moving_new(core, n, rows);
    for (size_t i = 0; moving && i < n; i++) {
        struct arena *arena = arenas[i];
        list_for_each (node, &arena->buffers) {
            const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
            if (!buffer->parent)
                moving_row(moving, buffer, who, NULL);
        }
        if (arena_tier(arena) != tier &&
            plan_move_as(&moving->transition.plans[moving->transition.n++], arena, tier, park))
            return moving_free(moving);
    }
    return moving;
}

/* ---- Arenas ---- */

static int compare_arenas(const void *left, const void *right)
{
    const struct arena *a = *(struct arena *const *)left, *b = *(struct arena *const *)right;

    return a->id < b->id ? -1 : a->id > b->id;
}

int arena_is_built(const struct arena *arena, char *detail)
{
    const struct buffer *buffer = list_entry(list_first(&arena->buffers), struct buffer, arena_node);

    if (!buffer->model || buffer->model->state != MODEL_BUILDING)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "model %.200s", buffer->model->name);
    return HBM_E_NOT_READY;
}

size_t arena_count_buffers(const struct arena *arena)
{
    size_t n = 0;

    list_for_each (node, &arena->buffers)
        n += !list_entry(node, struct buffer, arena_node)->parent;
    return n;
}

static void arenas_add(struct arenas *arenas, struct arena *arena)
{
    if (!arenas->n || arenas->at[arenas->n - 1] != arena)
        arenas->at[arenas->n++] = arena;
}

int arenas_of(const struct selection *selection, struct arenas *arenas, char *detail)
{
    size_t n = 0;

    arenas->n = 0;
    arenas->at = calloc(selection->n + 1, sizeof(*arenas->at));
    if (!arenas->at) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    for (size_t i = 0; i < selection->n; i++)
        arenas_add(arenas, selection->buffers[i]->arena); /* a group's lie side by side: most are met here */
    qsort(arenas->at, arenas->n, sizeof(*arenas->at), compare_arenas);
    for (size_t i = 0; i < arenas->n; i++)
        if (!n || arenas->at[n - 1] != arenas->at[i])
            arenas->at[n++] = arenas->at[i];
    arenas->n = n;
    for (size_t i = 0; i < n; i++) {
        int error = arena_is_built(arenas->at[i], detail);
        if (error)
            return error;
    }
    return 0;
}

void arenas_clear(struct arenas *arenas)
{
    free(arenas->at);
    *arenas = (struct arenas){0};
}
