/* int8-split against its sentences in codec.h, written a second time. */
#include "tests/unit/coded.h"

#include <float.h>

struct shape {
    unsigned rank;
    uint64_t dims[4];
};

static const struct shape shapes[] = {{1, {2}}, {1, {300}}, {2, {64, 96}}, {2, {1, 33}}, {3, {3, 50, 7}}, {4, {2, 3, 5, 8}}, {2, {4, 0}}};

static struct hbm_encoding split_of(unsigned axis, unsigned kept)
{
    return encoding_of(HBM_CODEC_INT8_SPLIT, HBM_PER_TENSOR, axis, kept);
}

static uint64_t channel_of(const struct coded *c, uint64_t i)
{
    struct coded by_channel = *c;

    by_channel.job.encoding.granularity = HBM_PER_CHANNEL;
    return unit_of(&by_channel, i);
}

/* Of equal ones the first; NaN and infinities say nothing. */
static void loudest(const struct coded *c, bool *apart)
{
    uint64_t channels = c->job.dims[c->job.encoding.axis];
    float *reach = calloc(channels, sizeof(*reach));

    for (uint64_t i = 0; i < c->count; i++)
        if (isfinite(c->x[i]))
            reach[channel_of(c, i)] = fmaxf(reach[channel_of(c, i)], fabsf(c->x[i]));
    for (unsigned k = 0; k < c->job.encoding.group; k++) {
        uint64_t best = channels;
        for (uint64_t channel = 0; channel < channels; channel++)
            if (!apart[channel] && (best == channels || reach[channel] > reach[best]))
                best = channel;
        apart[best] = true;
    }
    free(reach);
}

static float as_half(float x)
{
    return isfinite(x) ? (float)(_Float16)fmaxf(-65504, fminf(65504, x)) : x;
}

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b;
}

static void check(const struct coded *c)
{
    uint64_t channels = c->job.dims[c->job.encoding.axis], clipped = 0, outliers = 0;
    bool *apart = calloc(channels, sizeof(*apart));
    float rest = 0;
    unsigned k = 0;

    loudest(c, apart);
    for (uint64_t channel = 0; channel < channels; channel++)
        if (apart[channel])
            assert_int_equal(c->job.channels[k++], channel);
    for (uint64_t i = 0; i < c->count; i++)
        if (!apart[channel_of(c, i)] && isfinite(c->x[i]))
            rest = fmaxf(rest, fabsf(c->x[i]));
    float scale = rest > 0 ? fmaxf(rest / 127, FLT_TRUE_MIN) : 1;
    assert_true(c->job.scale[0] == scale);
    for (uint64_t i = 0; i < c->count; i++) {
        int8_t code = ((int8_t *)c->job.data)[i];
        float x = c->x[i];

        if (apart[channel_of(c, i)]) { /* in the order of the tensor */
            float half = load(c->job.outliers, HBM_F16, outliers++);
            assert_true(same(half, as_half(x)));
            assert_int_equal(code, 0);
            assert_true(same(c->back[i], rounded_to(c->job.dtype, half)));
            clipped += isfinite(x) && fabsf(x) > 65504;
            continue;
        }
        float q = isnan(x) ? 0 : fmaxf(-127, fminf(127, nearbyintf(x / scale)));
        assert_int_equal(code, (int)q);
        assert_true(c->back[i] == rounded_to(c->job.dtype, fmaxf(-FLT_MAX, fminf(FLT_MAX, q * scale))));
        clipped += isfinite(x) && fabsf(nearbyintf(x / scale)) > 127;
    }
    assert_int_equal(c->receipt.elements, c->count);
    assert_true(fabs(c->receipt.clipped_fraction * (double)c->count - (double)clipped) < 0.5);
    free(apart);
}

/* One, two, three and all but one. */
static unsigned more(unsigned kept, uint64_t channels)
{
    return kept < 3 ? kept + 1 : kept + 1 < channels ? (unsigned)channels - 1 : (unsigned)channels;
}

static void check_all(float (*sample)(void))
{
    static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};

    for (unsigned s = 0; s < COUNT(shapes); s++) {
        uint64_t count;

        assert_true(hbm_shape_elements(shapes[s].dims, shapes[s].rank, &count));
        float *x = malloc((count + 1) * sizeof(*x));
        for (uint64_t i = 0; i < count; i++)
            x[i] = sample();
        for (unsigned axis = 0; axis < shapes[s].rank; axis++)
            for (unsigned kept = 1; kept < shapes[s].dims[axis]; kept = more(kept, shapes[s].dims[axis]))
                for (unsigned d = 0; d < COUNT(dtypes); d++) {
                    struct coded c = encode(dtypes[d], split_of(axis, kept), shapes[s].dims, shapes[s].rank, x);
                    check(&c);
                    release(&c);
                }
        free(x);
    }
}

static float any_bits(void)
{
    return element_float((uint32_t)next());
}

static float a_level(void)
{
    return (float)(next() % 3); /* most channels reach the same */
}

static float a_zero(void)
{
    return 0;
}

static void the_loudest_channels_are_fp16_and_the_others_int8_by_what_they_reach(void **state)
{
    (void)state;
    check_all(normal);
    check_all(any_bits);
    check_all(a_level);
    check_all(a_zero);
}

/* NUMBERS.md: ten outliers of 100 in 2^18 samples of N(0, 1) leave int8 14.3 dB, and groups of 128 36.7. */
static void ten_outliers_in_one_channel_cost_the_others_nothing(void **state)
{
    (void)state;
    const uint64_t dims[] = {256, 1024};
    float *x = normals(dims[0] * dims[1]);

    for (uint64_t i = 0; i < 10; i++)
        x[77 * dims[1] + 100 * i] = i % 2 ? 100 : -100;
    struct coded whole = encode(HBM_F32, encoding_of(HBM_CODEC_INT8, HBM_PER_TENSOR, 0, 0), dims, 2, x);
    struct coded split = encode(HBM_F32, split_of(0, 1), dims, 2, x);
    assert_true(fabs(whole.receipt.sqnr_db - 14.3) < 0.5);
    assert_int_equal(split.job.channels[0], 77);
    assert_true(split.receipt.sqnr_db > 39 && split.receipt.sqnr_db < 42);
    assert_true(split.receipt.max_abs_error <= split.job.scale[0] / 2 * 1.0001);
    /* Down the other axis they are in ten channels. */
    struct coded down = encode(HBM_F32, split_of(1, 10), dims, 2, x);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(down.job.channels[i], 100 * i);
    assert_true(down.receipt.sqnr_db > 39 && down.receipt.sqnr_db < 42);
    release(&whole);
    release(&split);
    release(&down);
    free(x);
}

static void a_loud_channel_beyond_fp16_saturates_and_counts_as_clipped(void **state)
{
    (void)state;
    const float x[] = {1, -2, 1e6f, -1e6f, 3, INFINITY, NAN, 0};
    const uint64_t dims[] = {4, 2};
    struct coded c = encode(HBM_F32, split_of(0, 1), dims, 2, x);

    assert_int_equal(c.job.channels[0], 1);
    assert_true(c.back[2] == 65504 && c.back[3] == -65504);
    assert_true(c.back[5] == 3 && c.back[6] == 0); /* int8's NaN and infinities */
    assert_true(c.receipt.clipped_fraction == 0.25);
    assert_int_equal(c.receipt.nonfinite, 2);
    release(&c);
    c = encode(HBM_F32, split_of(0, 2), dims, 2, x);
    assert_int_equal(c.job.channels[1], 2);
    assert_true(isinf(c.back[5])); /* fp16's */
    release(&c);
}

static void channels_that_are_none_write_nowhere(void **state)
{
    (void)state;
    const float x[] = {1, 2, 300, 400, 5, 6};
    const uint64_t dims[] = {3, 2};
    struct coded c = encode(HBM_F32, split_of(0, 1), dims, 2, x);

    for (int32_t wrong = -1; wrong <= 3; wrong += 4) {
        c.job.channels[0] = wrong;
        codec_decode_host(&c.job);
        assert_true(load(c.job.raw_out, HBM_F32, 2) == 0 && load(c.job.raw_out, HBM_F32, 5) == 6);
    }
    release(&c);
}

static void none_all_and_more_channels_than_there_are_cannot_be_kept(void **state)
{
    (void)state;
    const uint64_t dims[] = {3, 1};

    for (unsigned kept = 0; kept < 5; kept++) {
        struct hbm_encoding rows = split_of(0, kept), columns = split_of(1, kept), none = split_of(2, kept);
        assert_int_equal(codec_supported(HBM_BF16, &rows, dims, 2), kept == 1 || kept == 2);
        assert_false(codec_supported(HBM_BF16, &columns, dims, 2)); /* one channel only */
        assert_false(codec_supported(HBM_BF16, &none, dims, 2));
        assert_false(codec_supported(HBM_BF16, &rows, dims, 0));
    }
    struct hbm_encoding channels = encoding_of(HBM_CODEC_INT8_SPLIT, HBM_PER_CHANNEL, 0, 1);
    assert_false(codec_supported(HBM_F32, &channels, dims, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loudest_channels_are_fp16_and_the_others_int8_by_what_they_reach),
        cmocka_unit_test(ten_outliers_in_one_channel_cost_the_others_nothing),
        cmocka_unit_test(a_loud_channel_beyond_fp16_saturates_and_counts_as_clipped),
        cmocka_unit_test(channels_that_are_none_write_nowhere),
        cmocka_unit_test(none_all_and_more_channels_than_there_are_cannot_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
