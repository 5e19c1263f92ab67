#include "daemon/core/advice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 128
#define ALIKE_DB 0.5    /* closer than that, the one that is named first */
#define ALIKE_BYTES 0.02 /* of what the smallest takes: as small, and the better one goes before */

static unsigned list_candidates(unsigned only, struct hbm_encoding *candidates)
{
    unsigned n = 0;

    for (unsigned codec = HBM_CODEC_RAW + 1; hbm_codec_name(codec); codec++)
        for (unsigned granularity = HBM_PER_TENSOR; granularity <= HBM_PER_GROUP; granularity++) {
            if ((only != HBM_CODEC_RAW && only != codec) || !hbm_codec_takes(codec, granularity) ||
                hbm_codec_varies(codec) || n == CANDIDATES_MAX)
                continue;
            candidates[n++] = (struct hbm_encoding){
                .codec = (uint8_t)codec,
                .granularity = (uint8_t)granularity,
                .stored = (uint8_t)hbm_codec_stored_dtype(codec),
                .group = granularity == HBM_PER_GROUP ? GROUP : 0,
            };
        }
    return n;
}

struct advice *advice_new(unsigned codec, size_t n_rows, size_t n_groups)
{
    struct advice *advice = calloc(1, sizeof(*advice));

    if (!advice)
        return NULL;
    advice->n_candidates = list_candidates(codec, advice->candidates);
    advice->n_rows = n_rows;
    advice->n_groups = n_groups;
    advice->rows = calloc(n_rows + 1, sizeof(*advice->rows));
    advice->groups = calloc(n_groups + 1, sizeof(*advice->groups));
    advice->tried = calloc(n_rows * advice->n_candidates + 1, sizeof(*advice->tried));
    return advice->rows && advice->groups && advice->tried ? advice : advice_free(advice);
}

struct advice *advice_free(struct advice *advice)
{
    if (!advice)
        return NULL;
    free(advice->rows);
    free(advice->groups);
    free(advice->tried);
    free(advice);
    return NULL;
}

int advice_candidate(const struct advice *advice, const struct hbm_encoding *encoding)
{
    for (unsigned i = 0; i < advice->n_candidates; i++)
        if (!memcmp(&advice->candidates[i], encoding, sizeof(*encoding)))
            return (int)i;
    return -1;
}

/* ---- A candidate on a whole group ---- */

struct sum {
    bool tried, holds;
    uint64_t bytes;
    double worst_db, zeroed;
    const char *worst, *most_zeroed; /* whose */
};

static bool is_half(const struct hbm_encoding *encoding)
{
    return encoding->stored == HBM_F16 || encoding->stored == HBM_BF16;
}

/* Floats of three or two bits behind the first keep no more of numbers that are spread over their steps; what measures better has
 * a few loud ones that happen to be their own. */
static double decibels(const struct tried *tried, const struct hbm_encoding *encoding)
{
    double most = encoding->stored == HBM_F8_E4M3 ? 31.5 : encoding->stored == HBM_F8_E5M2 ? 25.5 : INFINITY;

    return isfinite(tried->sqnr_db) && tried->sqnr_db > most ? most : tried->sqnr_db;
}

/* Written so that a NaN is outside of every bound. */
static bool does_hold(const struct advice *advice, const struct advised *row, const struct tried *tried,
                      const struct hbm_encoding *encoding)
{
    if (hbm_codec_lossless(encoding->codec))
        return true;
    if (row->nonfinite && !is_half(encoding)) /* NaN and infinities become numbers */
        return false;
    return (!advice->min_sqnr_db ||
            (decibels(tried, encoding) >= advice->min_sqnr_db && tried->zeroed_fraction <= ADVICE_MOST_ZEROED)) &&
           (!advice->max_error || tried->max_abs_error <= advice->max_error);
}

static struct sum sum_up(struct advice *advice, const struct advised_group *group, unsigned candidate)
{
    struct sum sum = {.holds = true, .worst_db = INFINITY, .worst = "", .most_zeroed = ""};

    for (size_t i = group->first_row; i < group->first_row + group->n_rows; i++) {
        const struct advised *row = &advice->rows[i];
        struct tried *tried = advice_tried(advice, i, candidate);
        if (row->left)
            continue;
        sum.bytes += tried->done ? tried->bytes_after : row->bytes_before;
        if (!tried->done)
            continue;
        tried->holds = does_hold(advice, row, tried, &advice->candidates[candidate]);
        sum.holds &= tried->holds;
        double db = decibels(tried, &advice->candidates[candidate]);
        if (!sum.tried || !(db >= sum.worst_db)) {
            sum.worst_db = db;
            sum.worst = row->name;
        }
        if (tried->zeroed_fraction > sum.zeroed) {
            sum.zeroed = tried->zeroed_fraction;
            sum.most_zeroed = row->name;
        }
        sum.tried = true;
    }
    return sum;
}

/* ---- The choice ---- */

static uint64_t smallest(const struct sum *sums, unsigned n, uint64_t before)
{
    uint64_t bytes = before;

    for (unsigned i = 0; i < n; i++)
        if (sums[i].tried && sums[i].holds && sums[i].bytes < bytes)
            bytes = sums[i].bytes;
    return bytes;
}

static int choose_take(const struct sum *sums, unsigned n, uint64_t before)
{
    uint64_t least = smallest(sums, n, before);
    int best = -1;

    for (unsigned i = 0; i < n; i++) {
        const struct sum *sum = &sums[i];
        if (!sum->tried || !sum->holds || sum->bytes >= before || (double)sum->bytes > (double)least * (1 + ALIKE_BYTES))
            continue;
        if (best < 0 || sum->worst_db > sums[best].worst_db + ALIKE_DB)
            best = (int)i;
    }
    return best;
}

/* The plain one goes before the one with a scale, and more bits before more range. */
static int choose_first(const struct advice *advice, const struct sum *sums)
{
    static const unsigned order[] = {HBM_CODEC_FP16, HBM_CODEC_FP16_SCALED, HBM_CODEC_BF16};

    for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        for (unsigned c = 0; c < advice->n_candidates; c++)
            if (advice->candidates[c].codec == order[i] && sums[c].tried && sums[c].holds)
                return (int)c;
    return -1;
}

/* Of what would take clearly less, and does not hold, the one that is closest to it; before it int8, if what was taken is as
 * large: it does where there are no outliers. */
static int best_below(const struct advice *advice, const struct sum *sums, uint64_t bytes)
{
    int best = -1;
    bool best_int8 = false;

    for (unsigned i = 0; i < advice->n_candidates; i++) {
        bool int8 = advice->candidates[i].codec == HBM_CODEC_INT8;
        double most = int8 ? (double)bytes * (1 + ALIKE_BYTES) : (double)bytes / (1 + ALIKE_BYTES);
        if (!sums[i].tried || sums[i].holds || (double)sums[i].bytes > most || int8 < best_int8)
            continue;
        if (best >= 0 && int8 == best_int8 && !(sums[i].worst_db > sums[best].worst_db))
            continue;
        best = (int)i;
        best_int8 = int8;
    }
    return best;
}

static void explain(const struct advice *advice, struct advised_group *group, const struct sum *sums, int take,
                    uint64_t before)
{
    int below = best_below(advice, sums, take < 0 ? before : sums[take].bytes);
    char encoding[64];

    if (take < 0)
        snprintf(group->why, sizeof(group->why), "nothing that is smaller holds");
    else if (isinf(sums[take].worst_db))
        snprintf(group->why, sizeof(group->why), "it is exact");
    else
        snprintf(group->why, sizeof(group->why), "%.2f dB at worst, in %.80s", sums[take].worst_db, sums[take].worst);
    if (below < 0)
        return;
    size_t used = strlen(group->why);
    hbm_encoding_text(&advice->candidates[below], encoding, sizeof(encoding));
    if (sums[below].worst_db >= advice->min_sqnr_db && sums[below].zeroed > ADVICE_MOST_ZEROED)
        snprintf(group->why + used, sizeof(group->why) - used, "; %s makes %.0f %% of %.80s 0", encoding,
                 sums[below].zeroed * 100, sums[below].most_zeroed);
    else
        snprintf(group->why + used, sizeof(group->why) - used, "; %s has %.2f dB in %.80s", encoding,
                 sums[below].worst_db, sums[below].worst);
}

void advice_judge(struct advice *advice, struct advised_group *group)
{
    struct sum sums[CANDIDATES_MAX];
    uint64_t before = 0;

    for (size_t i = group->first_row; i < group->first_row + group->n_rows; i++)
        before += advice->rows[i].left ? 0 : advice->rows[i].bytes_before;
    for (unsigned c = 0; c < advice->n_candidates; c++)
        sums[c] = sum_up(advice, group, c);
    int take = choose_take(sums, advice->n_candidates, before), first = choose_first(advice, sums);
    group->take = take < 0 ? (struct hbm_encoding){0} : advice->candidates[take];
    group->first = first < 0 ? (struct hbm_encoding){0} : advice->candidates[first];
    if (before)
        explain(advice, group, sums, take, before);
    else
        snprintf(group->why, sizeof(group->why), "nothing is tried on what lies here");
}
