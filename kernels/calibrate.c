#include "kernels/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/tally.h"

bool calibrate_takes(const struct hbm_encoding *encoding, unsigned method, double parameter)
{
    bool is_int8 = encoding->codec == HBM_CODEC_INT8 || encoding->codec == HBM_CODEC_INT8_ASYM;
    bool observed = method & HBM_CALIBRATE_OBSERVED;

    if (method == HBM_CALIBRATE_MINMAX)
        return true;
    method &= ~(unsigned)HBM_CALIBRATE_OBSERVED;
    if (encoding->granularity != HBM_PER_TENSOR || method > HBM_CALIBRATE_AVERAGE ||
        method == (observed ? HBM_CALIBRATE_GIVEN : HBM_CALIBRATE_AVERAGE))
        return false;
    if (!is_int8 && encoding->codec != HBM_CODEC_FP8_E4M3 && encoding->codec != HBM_CODEC_FP8_E5M2)
        return false;
    if (method == HBM_CALIBRATE_PERCENTILE)
        return parameter > 0 && parameter <= 100;
    return method != HBM_CALIBRATE_ENTROPY || is_int8;
}

uint64_t calibrate_finite(const uint64_t *bins, unsigned dtype)
{
    uint64_t finite = 0;

    for (uint32_t bin = 0; bin < histogram_end(dtype); bin++)
        finite += bins[bin];
    return finite;
}

uint64_t calibrate_rank(uint64_t finite, unsigned method, double parameter)
{
    if (method != HBM_CALIBRATE_PERCENTILE)
        return finite;
    double rank = ceil((double)finite * (parameter / 100));

    return rank < 1 ? 1 : rank >= (double)finite ? finite : (uint64_t)rank;
}

uint64_t calibrate_side_rank(uint64_t side, uint64_t finite, unsigned method, double parameter)
{
    double all = (double)finite, beyond_both = method == HBM_CALIBRATE_PERCENTILE ? all - all * (parameter / 100) : 0;
    uint64_t beyond = (uint64_t)(beyond_both / 2);

    return side > beyond ? side - beyond : 0;
}

uint32_t calibrate_bin(const uint64_t *bins, uint64_t *rank)
{
    uint32_t bin = 0;

    while (*rank > bins[bin])
        *rank -= bins[bin++];
    return bin;
}

enum { ABOVE = 1, BELOW = 2, EITHER = ABOVE | BELOW };

static float reach(struct calibrate_range range, unsigned ends)
{
    return fmaxf(ends & ABOVE ? range.hi : 0, ends & BELOW ? -range.lo : 0);
}

/* ---- Least squares ---- */

#define POINTS 4u /* that stand for what lies in a bin of F32 */

struct sample {
    uint64_t n;
    float *x, *back;
    double *weight;
    unsigned char *codes;
};

static void sample_clear(struct sample *s)
{
    free(s->x);
    free(s->back);
    free(s->weight);
    free(s->codes);
}

static uint64_t points_in(const uint64_t *bins, unsigned dtype)
{
    uint64_t n = 0;

    for (uint32_t bin = 1; bins && bin < histogram_end(dtype); bin++)
        n += bins[bin] ? dtype == HBM_F32 ? POINTS : 1 : 0;
    return n;
}

static void sample_side(struct sample *s, const uint64_t *bins, unsigned dtype, uint32_t sign)
{
    unsigned points = dtype == HBM_F32 ? POINTS : 1;

    for (uint32_t bin = 1; bins && bin < histogram_end(dtype); bin++)
        for (unsigned k = 0; bins[bin] && k < points; k++) {
            uint32_t low = points == 1 ? 0 : (2 * k + 1) * 0x8000u / points;
            s->x[s->n] = element_float(sign | (element_bits(histogram_value(dtype, bin)) + low));
            s->weight[s->n++] = (double)bins[bin] / points;
        }
}

static bool sample_make(struct sample *s, const struct calibrate_counts *counts)
{
    uint64_t n = points_in(counts->above, counts->dtype) + points_in(counts->below, counts->dtype);

    s->x = malloc((n + 1) * sizeof(*s->x));
    s->back = malloc((n + 1) * sizeof(*s->back));
    s->weight = malloc((n + 1) * sizeof(*s->weight));
    s->codes = malloc(n + 1);
    if (!s->x || !s->back || !s->weight || !s->codes)
        return false;
    sample_side(s, counts->above, counts->dtype, 0);
    sample_side(s, counts->below, counts->dtype, ~ELEMENT_ABS);
    return true;
}

/* By the codec itself. */
static double noise_at(const struct sample *s, const struct hbm_encoding *encoding, struct calibrate_range range)
{
    struct codec_job job = {
        .raw_in = s->x, .raw_out = s->back, .data = s->codes, .dims = {s->n}, .rank = 1, .dtype = HBM_F32, .encoding = *encoding,
        .ranged = true, .lo = range.lo, .hi = range.hi};
    struct codec_tally unused;
    double noise = 0;
    float scale;
    int32_t zero;

    job.scale = &scale;
    job.zero = &zero;
    codec_tally_host(&job, &unused);
    codec_decode_host(&job);
    for (uint64_t i = 0; i < s->n; i++) {
        double error = (double)s->x[i] - s->back[i];
        noise += s->weight[i] * error * error;
    }
    return noise;
}


struct fit {
    struct sample sample;
    const struct hbm_encoding *encoding;
    struct calibrate_range most, best;
    double noise; /* with the best so far */
};

static void try_range(struct fit *f, struct calibrate_range range)
{
    double noise = reach(range, EITHER) > 0 ? noise_at(&f->sample, f->encoding, range) : INFINITY;

    if (noise < f->noise) {
        f->noise = noise;
        f->best = range;
    }
}

static struct calibrate_range scaled(struct calibrate_range range, unsigned ends, double by)
{
    return (struct calibrate_range){ends & BELOW ? (float)(range.lo * by) : range.lo,
                                    ends & ABOVE ? (float)(range.hi * by) : range.hi};
}

/* By half octaves, while these ends reach beyond `least`. */
static void shrink(struct fit *f, unsigned ends, float least)
{
    const struct calibrate_range from = f->best;

    for (int k = 1;; k++) {
        struct calibrate_range range = scaled(from, ends, exp2(-0.5 * k));
        if (reach(range, ends) <= least)
            return;
        try_range(f, range);
    }
}

/* The best times 2^(k * step), |k| <= 8, that reaches no farther than the elements. */
static void try_near(struct fit *f, unsigned ends, double step)
{
    const struct calibrate_range middle = f->best;

    for (int k = -8; k <= 8; k++) {
        struct calibrate_range range = scaled(middle, ends, exp2(k * step));
        if (k && range.hi <= f->most.hi && range.lo >= f->most.lo)
            try_range(f, range);
    }
}

/* The first magnitude that half of all elements do not reach: what clips more of them is worse at any rate. */
static float median_of(const struct calibrate_counts *counts)
{
    const uint64_t *sides[] = {counts->above, counts->below};
    uint64_t rank = 0;
    uint32_t bin = 1;

    for (unsigned i = 0; i < 2; i++)
        if (sides[i])
            rank += calibrate_finite(sides[i], counts->dtype) - sides[i][0];
    rank = (rank + 1) / 2;
    for (;; bin++) {
        uint64_t here = (counts->above ? counts->above[bin] : 0) + (counts->below ? counts->below[bin] : 0);
        if (rank <= here)
            return histogram_value(counts->dtype, bin);
        rank -= here;
    }
}

#define FAINTEST 0x1p-12f /* of an end by itself: of what reaches no farther little is left to lose */

static bool least_squares(const struct calibrate_counts *counts, const struct hbm_encoding *encoding,
                          struct calibrate_range *range)
{
    const unsigned together[] = {EITHER, 0}, apart[] = {ABOVE, BELOW};
    const bool asymmetric = hbm_codec_zero_bytes(encoding->codec);
    const unsigned *ends = asymmetric ? apart : together;
    struct fit f = {.encoding = encoding, .most = *range, .best = *range};
    bool made = sample_make(&f.sample, counts);

    if (made) {
        f.noise = noise_at(&f.sample, encoding, *range);
        shrink(&f, EITHER, median_of(counts));
        for (unsigned i = 0; asymmetric && i < 2; i++) {
            shrink(&f, ends[i], reach(f.most, ends[i]) * FAINTEST);
            try_range(&f, scaled(f.best, ends[i], 0));
        }
        for (unsigned round = asymmetric ? 0 : 1; round < 3; round++)
            for (unsigned i = 0; i < 2 && ends[i]; i++)
                try_near(&f, ends[i], round < 2 ? 1.0 / 16 : 1.0 / 128);
        *range = f.best;
    }
    sample_clear(&f.sample);
    return made;
}

/* ---- Entropy ---- */

#define EVEN 2048u
#define LEVELS 128u
#define NONE 1e-4 /* elements that a level without any counts as having, where what lies beyond falls into it */

/* What lies in a bin of magnitudes, from one float to the next (of 16-bit floats half a step down and up), spread evenly. */
static void spread(const uint64_t *bins, unsigned dtype, double most, double *even)
{
    double width = most / EVEN;

    even[0] += (double)bins[0];
    for (uint32_t bin = 1; bin < histogram_end(dtype); bin++) {
        if (!bins[bin])
            continue;
        double low = histogram_value(dtype, bin), high = histogram_value(dtype, bin + 1);
        if (dtype != HBM_F32) {
            double half = isfinite(high) ? (high - low) / 2 : 0; /* the largest one ends with itself */
            high = low + half;
            low = low - half;
        }
        high = fmin(high, most);
        low = fmin(low, high);
        unsigned first = (unsigned)fmin(low / width, EVEN - 1), last = (unsigned)fmin(high / width, EVEN - 1);
        for (unsigned i = first; i <= last; i++) {
            double from = fmax(low, i * width), to = fmin(high, (i + 1) * width);
            even[i] += first == last ? (double)bins[bin] : to > from ? (double)bins[bin] * (to - from) / (high - low) : 0;
        }
    }
}

/* Of the first n bins; `beyond` counts in the last of them. */
static double divergence(const double *even, unsigned n, double inside, double beyond)
{
    double sum = 0, all = inside + beyond, per_level = (double)n / LEVELS;

    for (unsigned level = 0; level < LEVELS; level++) {
        unsigned from = (unsigned)(level * per_level), to = level == LEVELS - 1 ? n : (unsigned)((level + 1) * per_level);
        double total = 0;
        unsigned filled = 0;

        for (unsigned i = from; i < to; i++) {
            total += even[i];
            filled += even[i] + (i == n - 1 ? beyond : 0) > 0;
        }
        for (unsigned i = from; i < to; i++) {
            double p = (even[i] + (i == n - 1 ? beyond : 0)) / all, q = (total > 0 ? total / filled : NONE) / inside;
            if (p > 0)
                sum += p * log(p / q);
        }
    }
    return sum;
}

static float least_divergence(const struct calibrate_counts *counts, float most)
{
    double even[EVEN] = {0}, inside = 0, all = 0, least = INFINITY;
    unsigned best = EVEN;

    if (counts->above)
        spread(counts->above, counts->dtype, most, even);
    if (counts->below)
        spread(counts->below, counts->dtype, most, even);
    for (unsigned i = 0; i < EVEN; i++)
        all += even[i];
    for (unsigned n = 0; n < EVEN;) {
        inside += even[n++];
        if (n < LEVELS || inside <= 0)
            continue;
        double d = divergence(even, n, inside, fmax(all - inside, 0));
        if (d < least) {
            least = d;
            best = n;
        }
    }
    float found = (float)fmin(most, (best + 0.5) * most / EVEN);
    return found > 0 ? found : most;
}

bool calibrate_search(const struct calibrate_counts *counts, const struct hbm_encoding *encoding, unsigned method,
                      struct calibrate_range *range)
{
    float most = reach(*range, EITHER);

    if (most == 0)
        return true;
    if (method == HBM_CALIBRATE_MSE)
        return least_squares(counts, encoding, range);
    if (method == HBM_CALIBRATE_ENTROPY) {
        float t = least_divergence(counts, most);
        *range = (struct calibrate_range){fmaxf(range->lo, -t), fminf(range->hi, t)};
    }
    return true;
}
