#include "daemon/core/trial.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/compress_plan.h"

static void next(struct trial *trial);

static void end(struct trial *trial, int error, const char *detail)
{
    trial->error = error;
    if (detail != trial->detail)
        snprintf(trial->detail, sizeof(trial->detail), "%s", detail ? detail : "");
    trial->done(trial);
}

static struct advised_group *group_of(const struct trial *trial)
{
    return &trial->advice->groups[trial->group];
}

static uint64_t raw_bytes(const struct trial *trial)
{
    const struct advised_group *group = group_of(trial);
    uint64_t bytes = 0;

    for (size_t i = group->first_row; i < group->first_row + group->n_rows; i++)
        bytes += trial->advice->rows[i].left ? 0 : trial->advice->rows[i].bytes_before;
    return bytes;
}

/* The plan's placements lie in the arena's order, as the rows do. */
static void book(struct trial *trial)
{
    const struct plan *plan = &trial->transition.plans[0];
    size_t row = group_of(trial)->first_row;

    for (size_t i = 0; i < plan->n_placements; i++, row++) {
        const struct hbm_receipt *receipt = &plan->placements[i].receipt;
        while (trial->buffers[row] != plan->placements[i].buffer)
            row++;
        trial->advice->rows[row].nonfinite = receipt->nonfinite;
        *advice_tried(trial->advice, row, trial->candidate) = (struct tried){
            .done = true,
            .bytes_after = receipt->bytes_after,
            .sqnr_db = receipt->sqnr_db,
            .max_abs_error = receipt->max_abs_error,
            .clipped_fraction = receipt->clipped_fraction,
            .zeroed_fraction = receipt->elements ? (double)plan->placements[i].quality.zeroed / (double)receipt->elements : 0,
            .seconds = receipt->seconds,
        };
    }
}

static int keep_nothing(struct transition *transition)
{
    (void)transition;
    return 0;
}

static void encoded(struct transition *transition)
{
    struct trial *trial = container_of(transition, struct trial, transition);
    int error = transition->error;
    char detail[HBM_DETAIL_MAX];

    if (error)
        snprintf(detail, sizeof(detail), "%s", transition->detail);
    else
        book(trial);
    trial->worked_ns += transition->worked_ns;
    transition_clear(transition);
    if (error) {
        end(trial, error, detail);
        return;
    }
    trial->bytes_done += raw_bytes(trial);
    trial->candidate++;
    if (trial->progress)
        trial->progress(trial);
    next(trial);
}

/* What the candidate would leave as large as it is need not be tried, nor a scale for each element of a vector. */
static bool is_worth_it(const struct buffer *buffer, const struct hbm_encoding *encoding)
{
    uint64_t bytes = 0;

    if (hbm_codec_lossless(encoding->codec))
        return true;
    if ((encoding->granularity == HBM_PER_CHANNEL || hbm_codec_splits(encoding->codec)) && buffer->rank < 2)
        return false;
    hbm_shape_bytes(buffer->dims, buffer->rank, encoding->stored, &bytes);
    for (unsigned i = 0; i < PARTS; i++)
        bytes += part_bytes(i, encoding, buffer->dims, buffer->rank);
    return bytes < buffer->size;
}

/* recodes has room for the group's rows; *n counts what takes the candidate. 0, or an error with detail. */
static int choose(struct trial *trial, struct recode *recodes, size_t *n)
{
    const struct advised_group *group = group_of(trial);
    const struct hbm_encoding *candidate = &trial->advice->candidates[trial->candidate];
    const char *why;

    for (size_t i = group->first_row; i < group->first_row + group->n_rows; i++) {
        const struct buffer *buffer = buffer_get(trial->core, trial->buffers[i]);
        struct recode *recode = &recodes[*n];
        if (trial->advice->rows[i].left)
            continue;
        if (!buffer || buffer->arena->id != group->arena || buffer->encoding.codec != HBM_CODEC_RAW ||
            arena_tier(buffer->arena) != HBM_TIER_DEVICE) {
            snprintf(trial->detail, sizeof(trial->detail), "%.100s was freed, encoded or moved while codecs were tried on it",
                     trial->advice->rows[i].name);
            return HBM_E_STALE;
        }
        *recode = (struct recode){.buffer = buffer->id};
        if (!compress_encoding(buffer, candidate, &recode->encoding, &why) && is_worth_it(buffer, &recode->encoding))
            ++*n;
    }
    return 0;
}

/* Several at most, which take nothing of the candidate, are gone past at once. */
static int plan_next(struct trial *trial, struct plan *plan, bool *planned)
{
    const struct advised_group *group = group_of(trial);
    _cleanup_free_ struct recode *recodes = calloc(group->n_rows + 1, sizeof(*recodes));
    size_t n = 0;
    int error = recodes ? choose(trial, recodes, &n) : HBM_E_NO_MEMORY;

    if (!error && n) {
        recodes_sort(recodes, n);
        error = plan_recode(plan, arena_get(trial->core, group->arena), recodes, n, true);
        *planned = !error;
    }
    if (error == HBM_E_NO_MEMORY)
        snprintf(trial->detail, sizeof(trial->detail), OWNER_OUT_OF_MEMORY);
    return error;
}

/* The next that there is something to encode for; false: all have been through, or *error. */
static bool find_next(struct trial *trial, struct plan *plan, int *error)
{
    bool planned = false;

    for (; trial->group < trial->advice->n_groups; trial->group++, trial->candidate = 0) {
        for (; trial->candidate < trial->advice->n_candidates; trial->candidate++) {
            *error = plan_next(trial, plan, &planned);
            if (*error || planned)
                return planned;
            trial->bytes_done += raw_bytes(trial);
        }
        advice_judge(trial->advice, group_of(trial));
    }
    return false;
}

static void next(struct trial *trial)
{
    struct plan *plans = calloc(1, sizeof(*plans));
    int error = 0;

    if (!plans) {
        end(trial, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    if (!find_next(trial, plans, &error)) {
        free(plans);
        end(trial, error, trial->detail);
        return;
    }
    trial->transition = (struct transition){
        .core = trial->core,
        .plans = plans,
        .n = 1,
        .copy = true,
        .commit = keep_nothing, /* new memory, not a move's: within what the account may have */
        .account = trial->account,
        .verb = "advise-codec",
        .op = trial->op,
        .done = encoded,
    };
    transition_start(&trial->transition);
}

void trial_start(struct trial *trial)
{
    next(trial);
}

void trial_cancel(struct trial *trial, const char *why)
{
    transition_cancel(&trial->transition, why);
}

void trial_clear(struct trial *trial)
{
    if (trial->transition.core)
        transition_clear(&trial->transition);
}
