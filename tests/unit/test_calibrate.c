/* Ranges found over a histogram, against what sorting, trying and a histogram of the values themselves find. */
#include "tests/unit/coded.h"

#include "kernels/calibrate.h"
#include "kernels/tally.h"

#define N (1u << 16)

static const struct hbm_encoding int8_tensor = {.codec = HBM_CODEC_INT8, .stored = HBM_I8};
static const struct hbm_encoding asym_tensor = {.codec = HBM_CODEC_INT8_ASYM, .stored = HBM_I8};

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* As the worker finds them: the counts of a side, and its magnitude of a rank. */
struct side {
    struct histogram_job job;
    uint64_t *bins, finite;
};

static struct side count_side(const void *raw, unsigned dtype, uint64_t n, enum histogram_side which)
{
    struct side side = {.job = {.raw = raw, .count = n, .dtype = dtype, .within = HISTOGRAM_ALL, .side = which},
                        .bins = calloc(HISTOGRAM_BINS, sizeof(*side.bins))};

    histogram_host(&side.job, side.bins);
    side.finite = calibrate_finite(side.bins, dtype);
    return side;
}

static float magnitude_at(const struct side *side, uint64_t rank)
{
    struct histogram_job job = side->job;

    if (!rank)
        return 0;
    job.within = calibrate_bin(side->bins, &rank);
    if (job.dtype != HBM_F32)
        return histogram_value(job.dtype, job.within);
    uint64_t *fine = calloc(HISTOGRAM_FINE, sizeof(*fine));
    histogram_host(&job, fine);
    float found = element_float(job.within << 16 | calibrate_bin(fine, &rank));
    free(fine);
    return found;
}

static float range_of(const void *raw, unsigned dtype, uint64_t n, const struct hbm_encoding *encoding, unsigned method, double parameter)
{
    struct side all = count_side(raw, dtype, n, HISTOGRAM_BOTH);
    float most = magnitude_at(&all, all.finite ? calibrate_rank(all.finite, method, parameter) : 0);
    struct calibrate_range found = {-most, most};
    const struct calibrate_counts counts = {.above = all.bins, .dtype = dtype};

    assert_true(calibrate_search(&counts, encoding, method, &found));
    assert_true(found.lo == -found.hi);
    free(all.bins);
    return found.hi;
}

static struct calibrate_range ends_of(const void *raw, unsigned dtype, uint64_t n, unsigned method, double parameter)
{
    struct side above = count_side(raw, dtype, n, HISTOGRAM_ABOVE), below = count_side(raw, dtype, n, HISTOGRAM_BELOW);
    uint64_t finite = above.finite + below.finite;
    struct calibrate_range found = {-magnitude_at(&below, calibrate_side_rank(below.finite, finite, method, parameter)),
                                    magnitude_at(&above, calibrate_side_rank(above.finite, finite, method, parameter))};
    const struct calibrate_counts counts = {above.bins, below.bins, dtype};

    assert_true(calibrate_search(&counts, &asym_tensor, method, &found));
    free(above.bins);
    free(below.bins);
    return found;
}

static void a_percentile_is_that_of_the_sorted_magnitudes(void **state)
{
    static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    static const double percents[] = {1e-9, 1, 50, 99, 99.9, 99.99, 100};
    float *x = normals(N), *sorted = malloc(N * sizeof(*sorted)), *raw = malloc(N * sizeof(*raw));
    (void)state;

    x[7] = 1e4f, x[8] = -1e-6f, x[9] = 0, x[10] = NAN, x[11] = INFINITY;
    for (unsigned d = 0; d < COUNT(dtypes); d++) {
        unsigned n = 0;
        for (unsigned i = 0; i < N; i++) {
            store(raw, dtypes[d], i, x[i]);
            if (isfinite(x[i]))
                sorted[n++] = fabsf(load(raw, dtypes[d], i));
        }
        qsort(sorted, n, sizeof(*sorted), by_value);
        for (unsigned p = 0; p < COUNT(percents); p++) {
            double rank = ceil(n * (percents[p] / 100));
            float wanted = sorted[rank < 1 ? 0 : (unsigned)rank - 1];
            assert_true(range_of(raw, dtypes[d], N, &int8_tensor, HBM_CALIBRATE_PERCENTILE, percents[p]) == wanted);
        }
    }
    free(x);
    free(sorted);
    free(raw);
}

/* Skewed, with outliers on the far side, one value that is all over the place, and what is not finite. */
static float *skewed(unsigned n, float by)
{
    float *x = normals(n);

    for (unsigned i = 0; i < n; i++)
        x[i] = i % 7 ? x[i] * 0.5f + by : 0.125f;
    x[3] = by * 40, x[8] = -1e-6f, x[9] = -0.0f, x[10] = NAN, x[11] = -INFINITY;
    return x;
}

static void a_percentile_of_both_tails_is_that_of_the_sorted_elements(void **state)
{
    static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    static const double percents[] = {1e-9, 1, 50, 99, 99.9, 99.99, 100};
    static const float shifts[] = {0, 0.4f, -1, 6, -6};
    float *sorted = malloc(N * sizeof(*sorted)), *raw = malloc(N * sizeof(*raw));
    (void)state;

    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned k = 0; k < COUNT(shifts); k++) {
            float *x = skewed(N, shifts[k]);
            unsigned n = 0;
            for (unsigned i = 0; i < N; i++) {
                store(raw, dtypes[d], i, x[i]);
                if (isfinite(x[i]))
                    sorted[n++] = load(raw, dtypes[d], i);
            }
            qsort(sorted, n, sizeof(*sorted), by_value);
            for (unsigned p = 0; p < COUNT(percents); p++) {
                unsigned beyond = (unsigned)((n - n * (percents[p] / 100)) / 2);
                struct calibrate_range found = ends_of(raw, dtypes[d], N, HBM_CALIBRATE_PERCENTILE, percents[p]);
                assert_true(found.lo == fminf(sorted[beyond], 0) && found.hi == fmaxf(sorted[n - 1 - beyond], 0));
            }
            free(x);
        }
    free(sorted);
    free(raw);
}

static struct coded encode_between(const float *x, unsigned n, struct hbm_encoding encoding, float lo, float hi)
{
    struct coded c = encode_flat(HBM_F32, encoding.codec, x, n);

    c.job.ranged = true;
    c.job.lo = lo;
    c.job.hi = hi;
    codec_encode_host(&c.job, &c.receipt);
    codec_decode_host(&c.job);
    memcpy(c.back, c.job.raw_out, n * sizeof(float));
    return c;
}

static struct coded encode_within(const float *x, unsigned n, struct hbm_encoding encoding, float most)
{
    return encode_between(x, n, encoding, -most, most);
}

static double noise_between(const float *x, unsigned n, struct hbm_encoding encoding, float lo, float hi)
{
    struct coded c = encode_between(x, n, encoding, lo, hi);
    double noise = 0;

    for (unsigned i = 0; i < n; i++)
        noise += ((double)x[i] - c.back[i]) * ((double)x[i] - c.back[i]);
    release(&c);
    return noise;
}

static double noise_within(const float *x, unsigned n, struct hbm_encoding encoding, float most)
{
    return noise_between(x, n, encoding, -most, most);
}

static void mse_is_as_good_as_the_best_of_many_ranges(void **state)
{
    static const struct hbm_encoding encodings[] = {{.codec = HBM_CODEC_INT8, .stored = HBM_I8},
                                                    {.codec = HBM_CODEC_FP8_E4M3, .stored = HBM_F8_E4M3}};
    const unsigned n = N / 8;
    float *x = normals(n);
    (void)state;

    x[5] = 100, x[6] = -70;
    for (unsigned e = 0; e < COUNT(encodings); e++) {
        float found = range_of(x, HBM_F32, n, &encodings[e], HBM_CALIBRATE_MSE, 0);
        double noise = noise_within(x, n, encodings[e], found), least = INFINITY;
        for (double t = 100; t > 0.5; t /= 1.03)
            least = fmin(least, noise_within(x, n, encodings[e], (float)t));
        assert_true(noise <= least * 1.02);
    }
    free(x);
}

#define RARE 8u   /* the first elements */
#define OFTEN 10000 /* how many there are of each of the others */

static double noise_of_many(const float *x, unsigned n, float lo, float hi)
{
    struct coded c = encode_between(x, n, asym_tensor, lo, hi);
    double noise = 0;

    for (unsigned i = 0; i < n; i++)
        noise += (i < RARE ? 1 : OFTEN) * ((double)x[i] - c.back[i]) * ((double)x[i] - c.back[i]);
    release(&c);
    return noise;
}

static struct side count_many(const uint16_t *raw, unsigned n, enum histogram_side which)
{
    struct side side = count_side(raw + RARE, HBM_BF16, n - RARE, which);

    for (unsigned bin = 0; bin < HISTOGRAM_BINS; bin++)
        side.bins[bin] *= OFTEN;
    side.job.raw = raw;
    side.job.count = RARE;
    histogram_host(&side.job, side.bins);
    return side;
}

static void mse_of_two_ends_is_as_good_as_the_best_of_many_pairs(void **state)
{
    static const float sides[][4] = {{1, 0.2f, 40, -0.7f}, {0.3f, 1, 3, -50}, {1, 1, 30, -70}, {1, 0, 60, 9}}; /* scales, and outliers */
    const unsigned n = N / 32;
    uint16_t *raw = malloc(n * sizeof(*raw));
    (void)state;

    for (unsigned k = 0; k < COUNT(sides); k++) {
        float *x = normals(n);
        for (unsigned i = 0; i < n; i++) {
            store(raw, HBM_BF16, i, i < RARE ? sides[k][2 + i % 2] : x[i] * sides[k][x[i] < 0]);
            x[i] = load(raw, HBM_BF16, i);
        }
        struct side above = count_many(raw, n, HISTOGRAM_ABOVE), below = count_many(raw, n, HISTOGRAM_BELOW);
        const struct calibrate_counts counts = {above.bins, below.bins, HBM_BF16};
        const struct calibrate_range most = ends_of(raw, HBM_BF16, n, HBM_CALIBRATE_PERCENTILE, 100);
        struct calibrate_range found = most;
        assert_true(calibrate_search(&counts, &asym_tensor, HBM_CALIBRATE_MSE, &found));
        assert_true(found.lo >= most.lo && found.hi <= most.hi);
        double noise = noise_of_many(x, n, found.lo, found.hi), least = INFINITY;
        for (double hi = 1; hi > 0.02; hi /= 1.08)
            for (double lo = 1; lo > 0.02; lo /= 1.08)
                least = fmin(least, noise_of_many(x, n, (float)(most.lo * lo), (float)(most.hi * hi)));
        assert_true(noise <= least * 1.02);
        assert_true(noise < 0.7 * noise_of_many(x, n, most.lo, most.hi));
        free(above.bins), free(below.bins);
        free(x);
    }
    free(raw);
}

/* As the method was published, over the magnitudes themselves. */
static double entropy_by_hand(const float *x, unsigned n)
{
    static double h[2048];
    double most = 0, best = INFINITY, found = 0;

    memset(h, 0, sizeof(h));
    for (unsigned i = 0; i < n; i++)
        most = fmax(most, fabsf(x[i]));
    for (unsigned i = 0; i < n; i++)
        h[(unsigned)fmin(fabsf(x[i]) / most * 2048, 2047)]++;
    for (unsigned end = 128; end <= 2048; end++) {
        static double p[2048], q[2048];
        double sum_p = 0, sum_q = 0, kl = 0;
        for (unsigned i = 0; i < 2048; i++) {
            unsigned j = i < end ? i : end - 1;
            p[j] = i < end ? h[i] : p[j] + h[i];
        }
        for (unsigned level = 0; level < 128; level++) {
            unsigned from = (unsigned)(level * (end / 128.0)), to = level == 127 ? end : (unsigned)((level + 1) * (end / 128.0)), filled = 0;
            double all = 0;
            for (unsigned i = from; i < to; i++)
                all += h[i], filled += p[i] > 0;
            for (unsigned i = from; i < to; i++)
                q[i] = p[i] > 0 ? all / filled : 0;
        }
        for (unsigned i = 0; i < end; i++)
            sum_p += p[i], sum_q += q[i];
        for (unsigned i = 0; i < end; i++)
            if (p[i] > 0)
                kl += p[i] / sum_p * log(p[i] / sum_p / ((q[i] > 0 ? q[i] : 1e-4) / sum_q));
        if (kl < best)
            best = kl, found = (end + 0.5) * most / 2048;
    }
    return fmin(found, most);
}

static void entropy_finds_what_the_published_method_finds(void **state)
{
    float *x = normals(N);
    (void)state;

    for (unsigned i = 0; i < 10; i++)
        x[i * 100] = i % 2 ? 20 : -18;
    double wanted = entropy_by_hand(x, N), found = range_of(x, HBM_F32, N, &int8_tensor, HBM_CALIBRATE_ENTROPY, 0);
    assert_true(found < 10 && fabs(found - wanted) <= 0.05 * wanted);
    free(x);
}

static void entropy_of_two_ends_is_that_of_magnitudes_but_no_farther_than_the_elements_reach(void **state)
{
    float *x = normals(N);
    (void)state;

    for (unsigned i = 0; i < 10; i++)
        x[i * 100] = 20;
    for (unsigned i = 0; i < N; i++)
        x[i] = x[i] < -1 ? -1 : x[i];
    float wanted = range_of(x, HBM_F32, N, &int8_tensor, HBM_CALIBRATE_ENTROPY, 0);
    struct calibrate_range found = ends_of(x, HBM_F32, N, HBM_CALIBRATE_ENTROPY, 0);
    assert_true(wanted < 10 && found.lo == -1 && fabsf(found.hi - wanted) <= 0.05f * wanted);
    free(x);
}

static void what_lies_between_two_given_ends_misses_half_a_step_and_the_rest_is_counted(void **state)
{
    static const float ends[][2] = {{-0.5f, 3}, {0, 2}, {-2.5f, 0}, {-1.75f, 0.3f}, {-2, 2}};
    static const unsigned dtypes[] = {HBM_F32, HBM_BF16};
    float *x = normals(N);
    (void)state;

    x[3] = NAN, x[4] = INFINITY, x[5] = 1e30f, x[6] = -1e30f;
    for (unsigned i = 0; i < COUNT(ends) * COUNT(dtypes); i++) {
        float lo = ends[i / 2][0], hi = ends[i / 2][1];
        float *raw = malloc(N * sizeof(*raw));
        for (unsigned k = 0; k < N; k++)
            store(raw, dtypes[i % 2], k, x[k]);
        for (unsigned k = 0; k < N; k++)
            x[k] = load(raw, dtypes[i % 2], k);
        struct coded c = encode_between(x, N, asym_tensor, lo, hi);
        float step = *c.job.scale;
        uint64_t clipped = 0;
        for (unsigned k = 0; k < N; k++) {
            bool within = x[k] >= lo && x[k] <= hi;
            float code = ((const int8_t *)c.job.data)[k];
            clipped += isfinite(x[k]) && (x[k] / step >= 128 - *c.job.zero || x[k] / step <= -129 - *c.job.zero);
            if (within)
                assert_true(fabsf(x[k] - c.back[k]) <= 0.5001f * step);
            else if (isfinite(x[k]) && fabsf(x[k] - c.back[k]) > step)
                assert_true(code == (x[k] > 0 ? 127 : -128));
        }
        assert_true(fabsf(step * 255 - (hi - lo)) <= 0.01f * (hi - lo) || hi == -lo);
        assert_true(clipped > 0 && c.receipt.clipped_fraction == (double)clipped / N);
        release(&c);
        free(raw);
    }
    free(x);
}

static void what_lies_within_a_given_range_misses_half_a_step_and_the_rest_is_counted(void **state)
{
    static const struct hbm_encoding encodings[] = {{.codec = HBM_CODEC_INT8, .stored = HBM_I8},
                                                    {.codec = HBM_CODEC_FP8_E4M3, .stored = HBM_F8_E4M3},
                                                    {.codec = HBM_CODEC_FP8_E5M2, .stored = HBM_F8_E5M2}};
    static const float ends[] = {127.5f / 127, 464.0f / 448, 61440.0f / 57344};
    float *x = normals(N);
    (void)state;

    x[3] = NAN, x[4] = INFINITY, x[5] = 1e30f;
    for (unsigned e = 0; e < COUNT(encodings); e++) {
        struct coded c = encode_within(x, N, encodings[e], 2);
        uint64_t clipped = 0;
        for (unsigned i = 0; i < N; i++) {
            bool beyond = isfinite(x[i]) && fabsf(x[i]) > 2 * ends[e];
            clipped += beyond;
            if (beyond)
                assert_true(fabsf(c.back[i]) == 2 && (c.back[i] > 0) == (x[i] > 0));
            else if (isfinite(x[i]) && e == 0)
                assert_true(fabsf(x[i] - c.back[i]) <= 0.5001f * *c.job.scale);
        }
        assert_true(clipped > N / 100 && c.receipt.clipped_fraction == (double)clipped / N);
        release(&c);
    }
    free(x);
}

/* NUMBERS: ten outliers of 100 in 2^18 samples cost a tensor scale 26 dB; clipped, the others have them back. */
static void clipping_ten_outliers_gives_the_inliers_their_40_dB(void **state)
{
    static const struct {
        unsigned method;
        double parameter;
    } ways[] = {{HBM_CALIBRATE_PERCENTILE, 99.99}, {HBM_CALIBRATE_ENTROPY, 0}};
    const unsigned n = 1u << 18;
    float *x = normals(n);
    (void)state;

    for (unsigned i = 0; i < 10; i++)
        x[i * 1000] = 100;
    for (unsigned w = 0; w < COUNT(ways); w++) {
        float most = range_of(x, HBM_F32, n, &int8_tensor, ways[w].method, ways[w].parameter);
        struct coded c = encode_within(x, n, int8_tensor, most);
        struct codec_tally tally;
        struct hbm_quality quality;
        codec_tally_host(&c.job, &tally);
        codec_quality_of(&tally, &c.job.encoding, &quality);
        assert_true(quality.clipped >= 10 && quality.sqnr_inlier_db > (w ? 35 : 39) && quality.sqnr_inlier_db < 43);
        release(&c);
    }
    free(x);
}

static void tensors_with_nothing_to_choose_from_have_their_ends(void **state)
{
    static const float zeros[9], one[1] = {-3.25f}, equal[5] = {7, -7, 7, 7, 7}, nans[3] = {NAN, INFINITY, -INFINITY}, tiny[2] = {1e-45f, 0};
    static const struct {
        const float *x;
        unsigned n;
        float most;
    } cases[] = {{zeros, 9, 0}, {one, 1, 3.25f}, {equal, 5, 7}, {nans, 3, 0}, {tiny, 2, 1e-45f}, {NULL, 0, 0}};
    (void)state;

    for (unsigned i = 0; i < COUNT(cases); i++) {
        assert_true(range_of(cases[i].x, HBM_F32, cases[i].n, &int8_tensor, HBM_CALIBRATE_PERCENTILE, 100) == cases[i].most);
        for (unsigned method = HBM_CALIBRATE_MSE; method <= HBM_CALIBRATE_ENTROPY; method++) {
            struct calibrate_range ends = ends_of(cases[i].x, HBM_F32, cases[i].n, method, 0);
            assert_true(ends.lo >= -cases[i].most && ends.lo <= 0 && ends.hi >= 0 && ends.hi <= cases[i].most && (ends.lo < ends.hi || cases[i].most == 0));
            float found = range_of(cases[i].x, HBM_F32, cases[i].n, &int8_tensor, method, 0);
            assert_true(found >= 0 && found <= cases[i].most && (found > 0 || cases[i].most == 0));
        }
    }
}

static void the_largest_half_is_a_range_as_any(void **state)
{
    static const uint16_t f16[] = {0x7bff, 0xfbff, 0x3c00, 0x7c00}, bf16[] = {0x7f7f, 0x3f80, 0xff80};
    (void)state;

    for (unsigned method = HBM_CALIBRATE_MSE; method <= HBM_CALIBRATE_ENTROPY; method++) {
        assert_true(range_of(f16, HBM_F16, 4, &int8_tensor, method, 0) <= 65504);
        assert_true(range_of(bf16, HBM_BF16, 3, &int8_tensor, method, 0) <= element_float(ELEMENT_BF16_MAX));
    }
    assert_true(range_of(f16, HBM_F16, 4, &int8_tensor, HBM_CALIBRATE_PERCENTILE, 100) == 65504);
}

static void the_ends_beside_a_histogram_are_those_of_what_is_finite(void **state)
{
    static const float ends[][5] = {{-3.5f, 0.25f, 7, NAN, -0.0f}, {-2, -1, -2, -INFINITY, -8}, {0, 0, 0, INFINITY, 0}};
    static const float wanted[][2] = {{-3.5f, 7}, {-8, -1}, {0, 0}};
    static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    uint64_t *bins = calloc(HISTOGRAM_BINS, sizeof(*bins));
    float raw[5];
    (void)state;

    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned k = 0; k < COUNT(ends); k++) {
            struct histogram_ends found = {0};
            struct histogram_job job = {.raw = raw, .dtype = dtypes[d], .within = HISTOGRAM_ALL, .ends = &found};
            for (unsigned i = 0; i < 5; i++)
                store(raw, dtypes[d], i, ends[k][i]);
            for (job.count = 1; job.count <= 5; job.count += 4) /* what is seen is added to what was */
                histogram_host(&job, bins);
            assert_true(tally_of_key(found.highest) == wanted[k][1] && tally_of_key(~found.lowest) == wanted[k][0]);
        }
    struct histogram_ends none = {0};
    struct histogram_job job = {.raw = raw, .dtype = HBM_F32, .within = HISTOGRAM_ALL, .ends = &none, .count = 2};
    raw[0] = NAN, raw[1] = INFINITY;
    histogram_host(&job, bins);
    assert_true(!none.highest && !none.lowest);
    free(bins);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_percentile_is_that_of_the_sorted_magnitudes),
        cmocka_unit_test(mse_is_as_good_as_the_best_of_many_ranges),
        cmocka_unit_test(entropy_finds_what_the_published_method_finds),
        cmocka_unit_test(what_lies_within_a_given_range_misses_half_a_step_and_the_rest_is_counted),
        cmocka_unit_test(clipping_ten_outliers_gives_the_inliers_their_40_dB),
        cmocka_unit_test(tensors_with_nothing_to_choose_from_have_their_ends),
        cmocka_unit_test(a_percentile_of_both_tails_is_that_of_the_sorted_elements),
        cmocka_unit_test(mse_of_two_ends_is_as_good_as_the_best_of_many_pairs),
        cmocka_unit_test(entropy_of_two_ends_is_that_of_magnitudes_but_no_farther_than_the_elements_reach),
        cmocka_unit_test(what_lies_between_two_given_ends_misses_half_a_step_and_the_rest_is_counted),
        cmocka_unit_test(the_largest_half_is_a_range_as_any),
        cmocka_unit_test(the_ends_beside_a_histogram_are_those_of_what_is_finite),
    };
    return cmocka_run_group_tests_name("calibration", tests, NULL, NULL);
}
