#include "kernels/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/tally.h"

bool calibrate_takes(const struct hbm_encoding *encoding, unsigned method, double parameter)
{
    bool is_int8 = encoding->codec == HBM_CODEC_INT8, observed = method & HBM_CALIBRATE_OBSERVED;

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

uint32_t calibrate_bin(const uint64_t *bins, uint64_t *rank)
{
    uint32_t bin = 0;

    while (*rank > bins[bin])
        *rank -= bins[bin++];
    return bin;
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

static bool sample_make(struct sample *s, const uint64_t *bins, unsigned dtype)
{
    unsigned points = dtype == HBM_F32 ? POINTS : 1;
    uint64_t n = 0;

    for (uint32_t bin = 1; bin < histogram_end(dtype); bin++)
        n += bins[bin] ? points : 0;
    s->x = malloc((n + 1) * sizeof(*s->x));
    s->back = malloc((n + 1) * sizeof(*s->back));
    s->weight = malloc((n + 1) * sizeof(*s->weight));
    s->codes = malloc(n + 1);
    if (!s->x || !s->back || !s->weight || !s->codes)
        return false;
    for (uint32_t bin = 1; bin < histogram_end(dtype); bin++)
        for (unsigned k = 0; bins[bin] && k < points; k++) {
            uint32_t low = points == 1 ? 0 : (2 * k + 1) * 0x8000u / points;
            s->x[s->n] = element_float(element_bits(histogram_value(dtype, bin)) + low);
            s->weight[s->n++] = (double)bins[bin] / points;
        }
    return true;
}

/* By the codec itself. */
static double noise_at(const struct sample *s, const struct hbm_encoding *encoding, float most)
{
    struct codec_job job = {
        .raw_in = s->x, .raw_out = s->back, .data = s->codes, .dims = {s->n}, .rank = 1, .dtype = HBM_F32, .encoding = *encoding,
        .ranged = true, .lo = -most, .hi = most};
    struct codec_tally unused;
    double noise = 0;
    float scale;

    job.scale = &scale;
    codec_tally_host(&job, &unused);
    codec_decode_host(&job);
    for (uint64_t i = 0; i < s->n; i++) {
        double error = (double)s->x[i] - s->back[i];
        noise += s->weight[i] * error * error;
    }
    return noise;
}

/* The best of middle * 2^(k * step), |k| <= n, that is no larger than most. */
static float best_near(const struct sample *s, const struct hbm_encoding *encoding, float middle, float most, double step, int n)
{
    float best = middle;
    double least = noise_at(s, encoding, middle);

    for (int k = -n; k <= n; k++) {
        float candidate = (float)(middle * exp2(k * step));
        if (!k || candidate > most || candidate <= 0)
            continue;
        double noise = noise_at(s, encoding, candidate);
        if (noise < least) {
            least = noise;
            best = candidate;
        }
    }
    return best;
}

/* Down to the first magnitude that half of all elements do not reach: what clips more of them is worse at any rate. */
static float median_of(const uint64_t *bins, unsigned dtype)
{
    uint64_t rank = (calibrate_finite(bins, dtype) - bins[0] + 1) / 2 + bins[0];

    return histogram_value(dtype, calibrate_bin(bins, &rank));
}

static bool least_squares(const uint64_t *bins, unsigned dtype, const struct hbm_encoding *encoding, float most, float *magnitude)
{
    struct sample s = {0};
    bool made = sample_make(&s, bins, dtype);

    if (made) {
        float best = most, least = median_of(bins, dtype);
        double noise = noise_at(&s, encoding, most);

        for (int k = 1;; k++) {
            float t = (float)(most * exp2(-0.5 * k));
            if (t <= least || t == 0)
                break;
            double here = noise_at(&s, encoding, t);
            if (here < noise) {
                noise = here;
                best = t;
            }
        }
        best = best_near(&s, encoding, best, most, 1.0 / 16, 8);
        *magnitude = best_near(&s, encoding, best, most, 1.0 / 128, 8);
    }
    sample_clear(&s);
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

static float least_divergence(const uint64_t *bins, unsigned dtype, float most)
{
    double even[EVEN] = {0}, inside = 0, all = 0, least = INFINITY;
    unsigned best = EVEN;

    spread(bins, dtype, most, even);
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

bool calibrate_search(const uint64_t *bins, unsigned dtype, const struct hbm_encoding *encoding, unsigned method, float most,
                      float *magnitude)
{
    *magnitude = most;
    if (most == 0)
        return true;
    if (method == HBM_CALIBRATE_MSE)
        return least_squares(bins, dtype, encoding, most, magnitude);
    if (method == HBM_CALIBRATE_ENTROPY)
        *magnitude = least_divergence(bins, dtype, most);
    return true;
}
