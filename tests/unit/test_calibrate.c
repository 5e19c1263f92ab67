/* Ranges found over a histogram, against what sorting, trying and a histogram of the values themselves find. */
#include "tests/unit/coded.h"

#include "kernels/calibrate.h"
#include "kernels/tally.h"

#define N (1u << 16)

static const struct hbm_encoding int8_tensor = {.codec = HBM_CODEC_INT8, .stored = HBM_I8};

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* As the worker finds it. */
static float range_of(const void *raw, unsigned dtype, uint64_t n, const struct hbm_encoding *encoding, unsigned method, double parameter)
{
    struct histogram_job job = {.raw = raw, .count = n, .dtype = dtype, .within = HISTOGRAM_ALL};
    uint64_t *bins = calloc(HISTOGRAM_BINS, sizeof(*bins)), *fine = calloc(HISTOGRAM_FINE, sizeof(*fine));
    float most = 0, found;

    histogram_host(&job, bins);
    uint64_t finite = calibrate_finite(bins, dtype);
    if (finite) {
        uint64_t rank = calibrate_rank(finite, method, parameter);
        uint32_t bin = job.within = calibrate_bin(bins, &rank);
        most = histogram_value(dtype, bin);
        if (dtype == HBM_F32) {
            histogram_host(&job, fine);
            most = element_float(bin << 16 | calibrate_bin(fine, &rank));
        }
    }
    assert_true(calibrate_search(bins, dtype, encoding, method, most, &found));
    free(bins);
    free(fine);
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

static struct coded encode_within(const float *x, unsigned n, struct hbm_encoding encoding, float most)
{
    struct coded c = encode_flat(HBM_F32, encoding.codec, x, n);

    c.job.ranged = true;
    c.job.lo = -most;
    c.job.hi = most;
    codec_encode_host(&c.job, &c.receipt);
    codec_decode_host(&c.job);
    memcpy(c.back, c.job.raw_out, n * sizeof(float));
    return c;
}

static double noise_within(const float *x, unsigned n, struct hbm_encoding encoding, float most)
{
    struct coded c = encode_within(x, n, encoding, most);
    double noise = 0;

    for (unsigned i = 0; i < n; i++)
        noise += ((double)x[i] - c.back[i]) * ((double)x[i] - c.back[i]);
    release(&c);
    return noise;
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
        cmocka_unit_test(the_largest_half_is_a_range_as_any),
        cmocka_unit_test(the_ends_beside_a_histogram_are_those_of_what_is_finite),
    };
    return cmocka_run_group_tests_name("calibration", tests, NULL, NULL);
}
