/* What a receipt says of a lossy codec, against formulas over the original and what is decoded (NUMBERS: oracles). */
#include "tests/unit/coded.h"

#include "kernels/tally.h"
#include "kernels/view.h"

static struct hbm_quality quality_of(const struct coded *c)
{
    struct codec_tally tally;
    struct hbm_quality quality;

    codec_tally_host(&c->job, &tally);
    codec_quality_of(&tally, &c->job.encoding, &quality);
    return quality;
}

static bool is_near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-6 * fabs(b);
}

/* Of F32: what is decoded is what a reader of the stored form sees. */
static void check_quality(const struct coded *c, bool (*is_clipped)(float x))
{
    struct hbm_quality q = quality_of(c);
    double signal = 0, noise = 0, relative = 0;
    float most = 0;
    uint64_t zeroed = 0, nans = 0, infinities = 0, clipped = 0;

    for (uint64_t i = 0; i < c->count; i++) {
        float x = c->x[i], y = c->back[i];
        if (!isfinite(x)) {
            nans += isnan(x) != 0;
            infinities += isinf(x) != 0;
            continue;
        }
        double error = (double)x - y;
        most = fmaxf(most, fabsf(x));
        zeroed += x != 0 && y == 0;
        if (x != 0)
            relative = fmax(relative, fabs(error / x));
        if (is_clipped && is_clipped(x)) {
            clipped++;
            continue;
        }
        signal += (double)x * x;
        noise += error * error;
    }
    assert_int_equal(q.zeroed, zeroed);
    assert_int_equal(q.nans, nans);
    assert_int_equal(q.infinities, infinities);
    assert_int_equal(q.nans + q.infinities, c->receipt.nonfinite);
    assert_int_equal(q.clipped, clipped);
    assert_true(is_near(q.max_rel_error, relative));
    if (noise > 0)
        assert_true(fabs(q.sqnr_inlier_db - 10 * log10(signal / noise)) < 1e-4);
    else
        assert_true(isinf(q.sqnr_inlier_db) && q.sqnr_inlier_db > 0);
    bool has_range = hbm_codec_scale_bytes(c->job.encoding.codec) && !hbm_codec_zero_bytes(c->job.encoding.codec);
    assert_true(has_range ? q.hi == most && q.lo == -most : !hbm_codec_scale_bytes(c->job.encoding.codec) == (q.hi == 0));
    assert_int_equal(q.method, HBM_CALIBRATE_MINMAX);
}

static void a_receipt_counts_what_each_codec_lost(void **state)
{
    static const struct hbm_encoding encodings[] = {
        {.codec = HBM_CODEC_INT8, .stored = HBM_I8},
        {.codec = HBM_CODEC_INT8, .stored = HBM_I8, .granularity = HBM_PER_CHANNEL},
        {.codec = HBM_CODEC_INT8, .stored = HBM_I8, .granularity = HBM_PER_GROUP, .group = 7},
        {.codec = HBM_CODEC_INT4, .stored = HBM_I4, .granularity = HBM_PER_GROUP, .group = 32},
        {.codec = HBM_CODEC_FP8_E4M3, .stored = HBM_F8_E4M3},
        {.codec = HBM_CODEC_FP8_E5M2, .stored = HBM_F8_E5M2, .granularity = HBM_PER_CHANNEL},
        {.codec = HBM_CODEC_FP16_SCALED, .stored = HBM_F16},
        {.codec = HBM_CODEC_BF16, .stored = HBM_BF16},
        {.codec = HBM_CODEC_FP16, .stored = HBM_F16},
    };
    const uint64_t dims[] = {8, 100};
    float *x = normals(800);
    (void)state;

    for (unsigned i = 0; i < 800; i += 9)
        x[i] *= 1e-3f;
    for (unsigned i = 0; i < 800; i += 50)
        x[i] = 0;
    x[3] = NAN, x[5] = -INFINITY, x[700] = INFINITY, x[703] = 1e-30f, x[799] = NAN;
    for (unsigned i = 0; i < COUNT(encodings); i++) {
        struct coded c = encode(HBM_F32, encodings[i], dims, 2, x);
        check_quality(&c, NULL);
        release(&c);
    }
    free(x);
}

static bool beyond_fp16(float x)
{
    return fabsf(x) > 65504;
}

static void inliers_are_what_is_not_clipped(void **state)
{
    float *x = normals(1000);
    (void)state;

    x[1] = 1e6f, x[2] = -7e4f, x[3] = 65504, x[4] = 1e-9f;
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_FP16, x, 1000);
    check_quality(&c, beyond_fp16);
    assert_true(c.receipt.sqnr_db < 1 && quality_of(&c).sqnr_inlier_db > 60);
    assert_int_equal(quality_of(&c).zeroed, 1);
    release(&c);
    free(x);
}

/* Pieces are measured one by one, and joined. */
static void the_tallies_of_parts_are_that_of_the_whole(void **state)
{
    float *x = normals(1000);
    struct codec_tally sum = {0}, whole;
    struct hbm_quality got, wanted;
    (void)state;

    x[10] = -9, x[990] = 12, x[500] = NAN;
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_FP16, x, 1000);
    codec_tally_host(&c.job, &whole);
    for (unsigned i = 0; i < 10; i++) {
        struct coded part = encode_flat(HBM_F32, HBM_CODEC_FP16, x + 100 * i, 100);
        struct codec_tally tally;
        codec_tally_host(&part.job, &tally);
        codec_tally_join(&sum, &tally);
        release(&part);
    }
    codec_quality_of(&sum, &c.job.encoding, &got);
    codec_quality_of(&whole, &c.job.encoding, &wanted);
    assert_true(sum.highest == whole.highest && sum.lowest == whole.lowest && tally_of_key(sum.highest) == 12 && tally_of_key(~sum.lowest) == -9);
    assert_true(is_near(got.sqnr_inlier_db, wanted.sqnr_inlier_db) && got.max_rel_error == wanted.max_rel_error);
    assert_true(got.zeroed == wanted.zeroed && got.nans == 1 && wanted.nans == 1);
    release(&c);
    free(x);
}

static void an_empty_tensor_loses_nothing(void **state)
{
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8, NULL, 0);
    struct hbm_quality q = quality_of(&c);
    (void)state;

    assert_true(isinf(q.sqnr_inlier_db) && q.max_rel_error == 0 && q.zeroed == 0 && q.lo == 0 && q.hi == 0);
    release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receipt_counts_what_each_codec_lost),
        cmocka_unit_test(inliers_are_what_is_not_clipped),
        cmocka_unit_test(the_tallies_of_parts_are_that_of_the_whole),
        cmocka_unit_test(an_empty_tensor_loses_nothing),
    };
    return cmocka_run_group_tests_name("receipts", tests, NULL, NULL);
}
