/* Advise-codec: every candidate is tried, group by group, and what follows is said; with `apply` it is done then, as a
 * compress of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/compress_plan.h"
#include "daemon/core/model.h"
#include "daemon/core/trial.h"

struct advising {
    struct core *core;
    uint64_t op;
    bool apply;
    uint64_t *buffers; /* a row's */
    struct trial trial;
    uint64_t compress; /* op; 0: not yet */
    struct op_wait compressed;
};

static struct advising *advising_free(struct advising *advising)
{
    if (!advising)
        return NULL;
    trial_clear(&advising->trial);
    list_unlink(&advising->compressed.node);
    free(advising->buffers);
    free(advising);
    return NULL;
}
DEFINE_FREEP(struct advising, advising_free)

static struct op *op_of(const struct advising *advising)
{
    return op_get(advising->core, advising->op);
}

/* ---- What is advised is done ---- */

static void show_rows(struct op *op)
{
    for (size_t i = 0; i < op->n_rows; i++) {
        const struct buffer *buffer = buffer_get(op->core, op->rows[i].buffer);
        if (buffer)
            op_row_show(&op->rows[i], buffer);
    }
}

static void compressed(struct op_wait *wait, struct op *compress)
{
    struct advising *advising = container_of(wait, struct advising, compressed);
    struct op *op = op_of(advising);
    char detail[HBM_DETAIL_MAX];

    snprintf(detail, sizeof(detail), "%s", compress->detail);
    op->worked_ns += compress->worked_ns;
    if (!compress->error)
        show_rows(op);
    op_end(op, compress->error, compress->error ? detail : NULL);
}

struct applying {
    const struct advice *advice;
    const uint64_t *buffers;
    size_t *row; /* of the last buffer: they come in order */
};

static int choose_advised(const struct buffer *buffer, const struct principal *who, const void *context,
                          struct recode *recode, const char **why)
{
    const struct applying *applying = context;
    const struct advice *advice = applying->advice;

    while (applying->buffers[*applying->row] != buffer->id)
        ++*applying->row;
    const struct compress_args args = {
        .encoding = advice->groups[advice->rows[*applying->row].group].take,
        .min_sqnr_db = advice->min_sqnr_db,
        .max_error = advice->max_error,
    };
    return compress_choose(buffer, who, &args, recode, why);
}

static bool is_to_be_encoded(const struct advice *advice, size_t row)
{
    const struct advised_group *group = &advice->groups[advice->rows[row].group];
    int candidate = advice_candidate(advice, &group->take);

    return candidate >= 0 && advice_tried(advice, row, (unsigned)candidate)->done;
}

static int select_advised(const struct advising *advising, struct selection *selection, char *detail)
{
    const struct advice *advice = advising->trial.advice;

    selection->by_pattern = true;
    selection->buffers = calloc(advice->n_rows + 1, sizeof(struct buffer *));
    if (!selection->buffers) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    for (size_t i = 0; i < advice->n_rows; i++) {
        struct buffer *buffer = buffer_get(advising->core, advising->buffers[i]);
        if (buffer && is_to_be_encoded(advice, i))
            selection->buffers[selection->n++] = buffer;
    }
    return 0;
}

static void apply(struct advising *advising)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    struct op *op = op_of(advising);
    char detail[HBM_DETAIL_MAX] = "";
    size_t row = 0;
    const struct applying applying = {advising->trial.advice, advising->buffers, &row};
    int error = select_advised(advising, &selection, detail);

    if (error || !selection.n) {
        op_end(op, error, detail);
        return;
    }
    struct moving *moving =
        recoding(advising->core, &op->who, &selection, choose_advised, &applying, false, &error, detail);
    struct op *compress = error ? NULL : moving_run(moving, "compress", &op->who, NULL, &error, detail);
    if (!compress) {
        op_end(op, error, detail);
        return;
    }
    advising->compress = compress->id;
    advising->compressed.ended = compressed;
    op_wait(compress, &advising->compressed);
}

/* ---- What is tried ---- */

static void progress(struct trial *trial)
{
    struct op *op = op_of(container_of(trial, struct advising, trial));

    op->bytes_done = trial->bytes_done;
    op->worked_ns = trial->worked_ns;
}

static void tried(struct trial *trial)
{
    struct advising *advising = container_of(trial, struct advising, trial);
    char detail[HBM_DETAIL_MAX];

    progress(trial);
    snprintf(detail, sizeof(detail), "%s", trial->detail);
    if (trial->error || !advising->apply)
        op_end(op_of(advising), trial->error, trial->error ? detail : NULL);
    else
        apply(advising);
}

static void cancel_advising(struct op *op)
{
    struct advising *advising = op->state_of_verb;
    struct op *compress = advising->compress ? op_get(op->core, advising->compress) : NULL;

    if (compress)
        op_cancel(compress, op->detail);
    else
        trial_cancel(&advising->trial, op->detail);
}

static void clear_advising(struct op *op)
{
    advising_free(op->state_of_verb);
}

/* ---- Rows and groups ---- */

static uint64_t bytes_in(const struct selection *selection, const struct arena *arena, size_t at)
{
    uint64_t bytes = 0;

    for (; at < selection->n && selection->buffers[at]->arena == arena; at++)
        bytes += selection->buffers[at]->size;
    return bytes;
}

/* Norms and biases: the least of the bytes, and what a model feels first. */
static bool is_small_vector(const struct buffer *buffer, uint64_t group_bytes)
{
    return buffer->rank < 2 && buffer->size < group_bytes / 100;
}

static void name_group(const struct arena *arena, const struct buffer *buffer, char *name, size_t size)
{
    if (buffer->model && *arena->group)
        snprintf(name, size, "%s/%s", buffer->model->name, arena->group);
    else
        snprintf(name, size, "%s", arena->group);
}

/* Rows of what is selected (which is sorted), and their groups. 0, or the error that all of it, or what was named, is left
 * for. */
static int list_rows(struct advising *advising, struct op *op, const struct selection *selection, char *detail)
{
    const struct hbm_encoding any = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_TENSOR};
    struct advice *advice = op->advice;
    struct advised_group *group = NULL;
    size_t n_groups = 0, taken = 0;
    uint64_t group_bytes = 0;
    const char *why = "";
    int last = 0;

    for (size_t i = 0; i < selection->n; i++) {
        const struct buffer *buffer = selection->buffers[i];
        const struct arena *arena = buffer->arena;
        struct advised *row = &advice->rows[i];
        struct hbm_encoding encoding;
        if (!group || group->arena != arena->id) {
            group = &advice->groups[n_groups++];
            *group = (struct advised_group){.arena = arena->id, .first_row = i};
            name_group(arena, buffer, group->name, sizeof(group->name));
            group_bytes = bytes_in(selection, arena, i);
        }
        group->n_rows++;
        advising->buffers[i] = buffer->id;
        op_row_begin(&op->rows[i], buffer, &op->who);
        *row = (struct advised){.group = (uint32_t)(n_groups - 1), .name = op->rows[i].name, .bytes_before = buffer->size};
        int error = compress_encoding(buffer, &any, &encoding, &row->left);
        if (error) {
            why = row->left;
            last = error;
        } else if (is_small_vector(buffer, group_bytes)) {
            row->left = "a vector of less than a hundredth of its group";
        }
        taken += !row->left;
        op->bytes_total += row->left ? 0 : row->bytes_before * advice->n_candidates;
    }
    advice->n_groups = n_groups;
    if (taken || !last)
        return 0;
    if (selection->by_pattern)
        snprintf(detail, HBM_DETAIL_MAX, "none of the %zu buffers named can: of the last one, %s", selection->n, why);
    else
        snprintf(detail, HBM_DETAIL_MAX, "%.150s: %s", op->rows[0].name, why);
    return last;
}

static int check(const struct advise_args *args, const struct selection *selection, char *detail)
{
    if (selection->n > ADVICE_ROWS_MAX) {
        snprintf(detail, HBM_DETAIL_MAX, "advice on %zu buffers, of %d at most: name a part of them", selection->n,
                 ADVICE_ROWS_MAX);
        return HBM_E_LIMIT;
    }
    if (args->codec != HBM_CODEC_RAW && !hbm_codec_name(args->codec)) {
        snprintf(detail, HBM_DETAIL_MAX, "the codec is one of " HBM_CODEC_CHOICES);
        return HBM_E_INVALID;
    }
    if (hbm_codec_varies(args->codec)) {
        snprintf(detail, HBM_DETAIL_MAX, "%s costs nothing that a trial would show: park by it", hbm_codec_name(args->codec));
        return HBM_E_INVALID;
    }
    return 0;
}

/* NULL with error and detail; else nothing has been started. */
static struct op *prepare(struct core *core, struct call *call, const struct advise_args *args,
                          const struct selection *selection, size_t n_groups, int *error, char *detail)
{
    struct account *account = account_of(core, call->who.owner);
    _cleanup_(advising_freep) struct advising *advising = calloc(1, sizeof(*advising));

    if (advising) {
        list_init(&advising->compressed.node);
        advising->buffers = calloc(selection->n + 1, sizeof(*advising->buffers));
    }
    struct op *op = op_new(core, "advise-codec", &call->who, call->session, selection->n, error, detail);
    if (!op)
        return NULL;
    op->advice = advice_new(args->codec, selection->n, n_groups);
    if (!op->advice || !account || !advising || !advising->buffers) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return op_free(op);
    }
    op->advice->min_sqnr_db = args->min_sqnr_db;
    op->advice->max_error = args->max_error;
    *error = list_rows(advising, op, selection, detail);
    if (*error)
        return op_free(op);
    advising->core = core;
    advising->op = op->id;
    advising->apply = args->apply;
    advising->trial = (struct trial){
        .core = core,
        .advice = op->advice,
        .buffers = advising->buffers,
        .account = account,
        .op = op->id,
        .progress = progress,
        .done = tried,
    };
    op->state_of_verb = TAKE_PTR(advising);
    op->cancel = cancel_advising;
    op->clear = clear_advising;
    return op;
}

void verb_advise(struct core *core, struct call *call, const struct advise_args *args)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, args->sel, &selection, detail);

    if (!error)
        error = check(args, &selection, detail);
    if (!error)
        error = arenas_of(&selection, &arenas, detail);
    if (!error)
        selection_by_arena(core, &selection);
    struct op *op = error ? NULL : prepare(core, call, args, &selection, arenas.n, &error, detail);
    if (!op) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    struct advising *advising = op->state_of_verb;
    trial_start(&advising->trial);
    call_done(call, op_get(core, id));
}
