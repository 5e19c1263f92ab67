/* The codecs with a scale (and a zero point) that multiply with its reciprocal, against their sentences in codec.h
 * written a second time: every code that a format has in a table, and the nearest of it to x * (1/scale). */
#include "tests/unit/coded.h"

#include <float.h>

static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};

/* --- formats ----------------------------------------------------------------------------------------------------
 */

struct format {
    unsigned codec;
    double most;           /* what the amax of a unit becomes */
    float (*decoded)(int); /* the value of a code; NaN and infinities where it is none */
    int codes;             /* 0 .. codes - 1, bits as stored */
    bool keeps_nan, keeps_infinity;
};

/* By its definition: (-1)^s * 2^(e - bias) * 1.m, or 2^(1 - bias) * 0.m. */
static float minifloat(int code, int mantissa, int bias)
{
    int e = (code & 0x7f) >> mantissa, m = code & ((1 << mantissa) - 1);
    double x = e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);

    return (float)(code & 0x80 ? -x : x);
}

static float e4m3(int code)
{
    return (code & 0x7f) == 0x7f ? NAN : minifloat(code, 3, 7);
}

static float e5m2(int code)
{
    return (code & 0x7f) > 0x7c    ? NAN
           : (code & 0x7f) == 0x7c ? copysignf(INFINITY, code & 0x80 ? -1 : 1)
                                   : minifloat(code, 2, 15);
}

static float half(int code)
{
    uint16_t bits = (uint16_t)code;
    _Float16 x;

    memcpy(&x, &bits, sizeof(x));
    return (float)x;
}

static float nibble(int code)
{
    return code == 8 ? NAN : (float)(code < 8 ? code : code - 16);
}

static float byte(int code)
{
    return (float)(int8_t)code;
}

static const struct format formats[] = {
    {HBM_CODEC_FP16_SCALED, 0, half, 0x10000, true, true},
    {HBM_CODEC_INT4, 7, nibble, 16, false, false},
    {HBM_CODEC_FP8_E4M3, 448, e4m3, 256, true, false},
    {HBM_CODEC_FP8_E5M2, 57344, e5m2, 256, true, true},
    {HBM_CODEC_INT8_ASYM, 127, byte, 256, false, false},
};

static int code_at(const struct coded *c, uint64_t i)
{
    const uint8_t *bytes = c->job.data;

    switch (hbm_dtype_bits(c->job.encoding.stored)) {
    case 4:
        return bytes[i / 2] >> i % 2 * 4 & 15;
    case 8:
        return bytes[i];
    default:
        return bytes[2 * i] | bytes[2 * i + 1] << 8;
    }
}

/* Of the finite codes the nearest; of two the one whose last bit is 0. */
static float nearest(const struct format *f, float v)
{
    float best = 0;
    int best_code = -1;

    if (f->codes == 0x10000) /* too many to look at: as the compiler has it */
        return (float)(_Float16)v;
    for (int code = 0; code < f->codes; code++) {
        float candidate = f->decoded(code);
        if (!isfinite(candidate))
            continue;
        double new = fabs((double)v - candidate), old = fabs((double)v - best);
        if (best_code < 0 || new < old || (new == old && !(code & 1) && (best_code & 1)))
            best = candidate, best_code = code;
    }
    return best;
}

static float expected_scale(const struct format *f, float amax)
{
    if (amax == 0)
        return 1;
    return f->most > 0 ? fmaxf(amax / (float)f->most, FLT_MIN) : ldexpf(1, ilogbf(amax) - 14 < -126 ? -126 : ilogbf(amax) - 14);
}

static float held(float x)
{
    return fmaxf(-FLT_MAX, fminf(FLT_MAX, x));
}

static void expect_unit(const struct format *f, const struct coded *c, uint64_t unit, float below, float above)
{
    float scale = expected_scale(f, fmaxf(below, above));
    int zero = 0;

    if (c->job.zero && below != above) {
        scale = fmaxf(isfinite(above + below) ? (above + below) / 255 : above / 255 + below / 255, FLT_MIN);
        float k = nearbyintf(below / scale);
        zero = (int)k - 128;
        if (scale > FLT_MIN && fabsf(below / scale - k) < 0.25f)
            scale = fmaxf(below > above ? below / k : above / (255 - k), FLT_MIN);
    }
    assert_true(c->job.scale[unit] == scale);
    assert_true(!c->job.zero || c->job.zero[unit] == zero);
}

/* Of a codec with zero points: ONNX's QuantizeLinear, then DequantizeLinear. */
static float expected_affine(float x, float scale, int zero)
{
    float q = isnan(x) ? (float)zero : fmaxf(-128, fminf(127, nearbyintf(x / scale) + (float)zero));

    return held((q - (float)zero) * scale);
}

/* What x is to be stored as. */
static float expected(const struct format *f, float x, float scale)
{
    if (isnan(x))
        return f->keeps_nan ? NAN : 0;
    if (isinf(x))
        return f->keeps_infinity ? x : held(copysignf((float)f->most, x) * scale);
    return held(nearest(f, x * (1 / scale)) * scale);
}

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b;
}

static void check(const struct format *f, const struct coded *c)
{
    float *below = calloc(c->units + 1, sizeof(*below)), *above = calloc(c->units + 1, sizeof(*above));
    double signal = 0, noise = 0, worst = 0;
    uint64_t nonfinite = 0;

    for (uint64_t i = 0; i < c->count; i++)
        if (isfinite(c->x[i])) {
            above[unit_of(c, i)] = fmaxf(above[unit_of(c, i)], c->x[i]);
            below[unit_of(c, i)] = fmaxf(below[unit_of(c, i)], -c->x[i]);
        }
    for (uint64_t u = 0; u < c->units; u++)
        expect_unit(f, c, u, below[u], above[u]);
    for (uint64_t i = 0; i < c->count; i++) {
        int zero = c->job.zero ? c->job.zero[unit_of(c, i)] : 0;
        float x = c->x[i], scale = c->job.scale[unit_of(c, i)];
        float stored = c->job.zero ? expected_affine(x, scale, zero) : expected(f, x, scale);
        float code = f->decoded(code_at(c, i)) - (float)zero;

        if (!same(isfinite(code) ? held(code * scale) : code, stored))
            fail_msg("codec %u: %a (scale %a) is stored as code %x, %a, not %a", f->codec, (double)x, (double)scale,
                     (unsigned)code_at(c, i), (double)(code * scale), (double)stored);
        assert_true(same(c->back[i], rounded_to(c->job.dtype, stored)));
        assert_true(!isfinite(x) || isfinite(c->back[i]));
        assert_true(x != 0 || c->back[i] == 0);
        if (!isfinite(x)) {
            nonfinite++;
            continue;
        }
        double error = fabs((double)x - stored);
        signal += (double)x * x;
        noise += error * error;
        worst = fmax(worst, error);
    }
    assert_int_equal(c->receipt.elements, c->count);
    assert_int_equal(c->receipt.nonfinite, nonfinite);
    assert_true(c->receipt.clipped_fraction == 0);
    assert_true(fabs(c->receipt.max_abs_error - worst) <= 1e-6 * worst);
    if (noise > 0)
        assert_true(fabs(c->receipt.sqnr_db - 10 * log10(signal / noise)) < 1e-4);
    else
        assert_true(isinf(c->receipt.sqnr_db) && c->receipt.sqnr_db > 0);
    free(below);
    free(above);
}

/* --- values ------------------------------------------------------------------------------------------------------
 */

static void with_each_format(void (*body)(const struct format *f, unsigned granularity, unsigned group))
{
    for (unsigned i = 0; i < COUNT(formats); i++)
        for (unsigned g = HBM_PER_TENSOR; g <= HBM_PER_GROUP; g++)
            if (hbm_codec_takes(formats[i].codec, g))
                body(&formats[i], g, g == HBM_PER_GROUP ? 32 : 0);
}

/* Of one dimension; per channel it is one channel. */
static void check_flat(const struct format *f, unsigned granularity, unsigned group, unsigned dtype, const float *x,
                       uint64_t n)
{
    const uint64_t dims[] = {1, n};
    struct coded c = encode(dtype, encoding_of(f->codec, granularity, 0, group), dims, 2, x);

    check(f, &c);
    release(&c);
}

/* Each in the company of others of its size, so that no scale leaves all of them at 0. */
static void all_16_bit_values(const struct format *f, unsigned granularity, unsigned group)
{
    float *x = malloc(0x10000 * sizeof(*x));

    for (unsigned d = 1; d < COUNT(dtypes); d++) {
        for (uint32_t h = 0; h < 0x10000; h++)
            x[h] = element_float(dtypes[d] == HBM_F16 ? element_f16_up((uint16_t)h) : element_bf16_up((uint16_t)h));
        if (granularity != HBM_PER_CHANNEL) /* of one channel: the tensor */
            check_flat(f, granularity, group, dtypes[d], x, 0x10000);
    }
    free(x);
}

static void every_half_and_every_bfloat16_is_coded_by_the_contract(void **state)
{
    (void)state;
    with_each_format(all_16_bit_values);
}

static const float classes[][8] = {
    {0, -0.0f, 0, 0, 0, 0, 0, 0},
    {-3.25f, -3.25f, -3.25f, -3.25f, -3.25f, -3.25f, -3.25f, -3.25f},
    {1e-45f, -1e-40f, 3e-42f, 0, -1e-39f, 1e-38f, 0, 1e-44f},
    {NAN, -NAN, NAN, NAN, NAN, NAN, NAN, NAN},
    {INFINITY, -INFINITY, NAN, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY},
    {NAN, INFINITY, -INFINITY, 2, -1, -NAN, 0.3f, 1e-20f},
    {FLT_MAX, -FLT_MAX, 1, 1e38f, -1e30f, FLT_MIN, 1e-45f, 0},
    {479, 480, 448, 464, -464, 465, 57344, -61440},
    {1e30f, 1e-37f, 65504, 65520, 6e-8f, 1e-37f, -1e-30f, 0.5f},
    {5, 6, 7, 8, 9, 10, 11, 12},
    {-5, -6, -7, -8, -9, -10, -11, -12},
};

static void value_classes(const struct format *f, unsigned granularity, unsigned group)
{
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned k = 0; k < COUNT(classes); k++)
            for (unsigned n = 1; n <= COUNT(classes[k]); n++)
                check_flat(f, granularity, group, dtypes[d], classes[k], n);
}

static void zeros_equals_subnormals_nan_infinities_and_the_ends_follow_the_contract(void **state)
{
    (void)state;
    with_each_format(value_classes);
}

static void odd_shapes(const struct format *f, unsigned granularity, unsigned group)
{
    static const struct {
        uint64_t dims[4];
        unsigned rank;
    } shapes[] = {{{1}, 1},       {{31}, 1},     {{255}, 1},     {{3, 5, 7}, 3}, {{2, 1, 9, 4}, 4}, {{1, 1003}, 2},
                  {{1003, 1}, 2}, {{33, 65}, 2}, {{16, 128}, 2}, {{3, 0}, 2},    {{0}, 1}};
    const unsigned groups[] = {1, 3, 8, 32, 4096};
    float *x;

    (void)group;
    seed = 7;
    x = normals(4096);
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned s = 0; s < COUNT(shapes); s++)
            for (unsigned cut = 0; cut < (granularity == HBM_PER_GROUP     ? COUNT(groups)
                                          : granularity == HBM_PER_CHANNEL ? shapes[s].rank
                                                                           : 1);
                 cut++) {
                unsigned axis = granularity == HBM_PER_CHANNEL ? cut : 0;
                struct coded c =
                    encode(dtypes[d],
                           encoding_of(f->codec, granularity, axis, granularity == HBM_PER_GROUP ? groups[cut] : 0),
                           shapes[s].dims, shapes[s].rank, x);
                check(f, &c);
                release(&c);
            }
    free(x);
}

static void every_dtype_axis_group_and_odd_shape_follows_the_contract(void **state)
{
    (void)state;
    with_each_format(odd_shapes);
}

/* Sleeping and waking again and again must not wear a model down. */
static void what_is_encoded_with_zero_points_again_and_again_comes_to_rest(void **state)
{
    (void)state;
    const uint64_t dims[] = {128, 128}, n = dims[0] * dims[1];
    const struct hbm_encoding encoding = encoding_of(HBM_CODEC_INT8_ASYM, HBM_PER_CHANNEL, 0, 0);

    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (seed = 50; seed < 56; seed++) {
            uint64_t changed = n;
            float *x = normals(n);
            for (uint64_t i = 0; seed & 1 && i < n; i++)
                x[i] = x[i] * 0.02f + 0.05f;
            for (unsigned round = 0; round < 5; round++) {
                struct coded c = encode(dtypes[d], encoding, dims, 2, x);
                changed = 0;
                for (uint64_t i = 0; i < n; i++)
                    changed += c.back[i] != c.x[i];
                memcpy(x, c.back, n * sizeof(*x));
                release(&c);
            }
            assert_int_equal(changed, 0);
            free(x);
        }
}

static void zero_points_use_all_codes_of_what_lies_to_one_side(void **state)
{
    (void)state;
    const float x[] = {0, 2, 4, 510}, y[] = {-510, -4, -2, 0}, z[] = {-1, 0.5f, 1};
    const int8_t above[] = {-128, -127, -126, 127}, below[] = {-128, 125, 126, 127};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8_ASYM, x, 4);

    assert_true(c.job.scale[0] == 2 && c.job.zero[0] == -128);
    assert_memory_equal(c.job.data, above, 4);
    release(&c);
    c = encode_flat(HBM_F32, HBM_CODEC_INT8_ASYM, y, 4);
    assert_true(c.job.scale[0] == 2 && c.job.zero[0] == 127);
    assert_memory_equal(c.job.data, below, 4);
    release(&c);
    c = encode_flat(HBM_F32, HBM_CODEC_INT8_ASYM, z, 3);
    assert_true(c.job.scale[0] == 1.0f / 127 && c.job.zero[0] == 0 && c.back[0] == -1 && c.back[2] == 1);
    release(&c);
}

/* What a float format loses is a part of each element, whatever their size. */
static void fp8_keeps_its_signal_to_noise_at_every_size(void **state)
{
    (void)state;
    seed = 3;
    uint64_t n = 1 << 16;
    float *x = normals(n);
    static const struct {
        unsigned codec;
        double least, most;
    } bounds[] = {{HBM_CODEC_FP8_E4M3, 31, 32.5}, {HBM_CODEC_FP8_E5M2, 25, 26.5}};

    for (unsigned i = 0; i < 9; i++) {
        for (unsigned k = 0; k < COUNT(bounds); k++) {
            struct coded c = encode_flat(HBM_F32, bounds[k].codec, x, n);
            assert_true(c.receipt.sqnr_db > bounds[k].least && c.receipt.sqnr_db < bounds[k].most);
            release(&c);
        }
        for (uint64_t j = 0; j < n; j++)
            x[j] *= 1e-3f;
    }
    free(x);
}

/* The patterns of the Open Compute Project's table. */
static void fp8_codes_are_those_of_their_standard(void **state)
{
    (void)state;
    const float x[] = {448, -448, 1, 0.0625f * 0.25f, 0.001953125f, -0.0f},
                y[] = {57344, -57344, 1, 0x1p-14f, 0x1p-16f, -0.0f};
    const uint8_t as_e4m3[] = {0x7e, 0xfe, 0x38, 0x08, 0x01, 0x80},
                  as_e5m2[] = {0x7b, 0xfb, 0x3c, 0x04, 0x01, 0x80};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_FP8_E4M3, x, 6);

    assert_true(c.job.scale[0] == 1);
    assert_memory_equal(c.job.data, as_e4m3, 6);
    release(&c);
    c = encode_flat(HBM_F32, HBM_CODEC_FP8_E5M2, y, 6);
    assert_true(c.job.scale[0] == 1);
    assert_memory_equal(c.job.data, as_e5m2, 6);
    release(&c);
}

/* 6e-8 is the least fp16: without a scale all of these are zeros. */
static void what_underflows_in_fp16_does_not_in_scaled_fp16(void **state)
{
    (void)state;
    float *x = normals(1000);
    for (unsigned i = 0; i < 1000; i++)
        x[i] *= 1e-9f;
    struct coded plain = encode_flat(HBM_F32, HBM_CODEC_FP16, x, 1000);
    struct coded scaled = encode_flat(HBM_F32, HBM_CODEC_FP16_SCALED, x, 1000);

    assert_true(plain.receipt.sqnr_db < 1 && scaled.receipt.sqnr_db > 70);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(plain.back[i] == 0);
    release(&plain);
    release(&scaled);
    free(x);
}

static void int4_lies_two_a_byte_and_an_odd_end_is_padded_with_zero(void **state)
{
    (void)state;
    const float x[] = {7, -7, 1, -1, 0, 3, -2};
    const uint8_t bytes[] = {0x97, 0xf1, 0x30, 0x0e};
    const uint64_t n = 7;
    struct coded c = encode(HBM_F32, encoding_of(HBM_CODEC_INT4, HBM_PER_GROUP, 0, 16), &n, 1, x);

    assert_int_equal(c.data_bytes, 4);
    assert_memory_equal(c.job.data, bytes, 4);
    for (unsigned i = 0; i < n; i++)
        assert_true(c.back[i] == x[i]);
    release(&c);
}

static void what_a_codec_does_not_take_is_refused(void **state)
{
    (void)state;
    const uint64_t dims[] = {4, 6};

    for (unsigned codec = HBM_CODEC_RAW + 1; hbm_codec_name(codec); codec++)
        for (unsigned g = 0; g < 5; g++) {
            struct hbm_encoding e = encoding_of(codec, g, 0, 4);
            assert_int_equal(codec_supported(HBM_BF16, &e, dims, 2), hbm_codec_takes(codec, g) && !hbm_codec_splits(codec)); /* none to split off */
            e.stored = HBM_U64;
            assert_false(codec_supported(HBM_BF16, &e, dims, 2));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_and_every_bfloat16_is_coded_by_the_contract),
        cmocka_unit_test(zeros_equals_subnormals_nan_infinities_and_the_ends_follow_the_contract),
        cmocka_unit_test(every_dtype_axis_group_and_odd_shape_follows_the_contract),
        cmocka_unit_test(what_is_encoded_with_zero_points_again_and_again_comes_to_rest),
        cmocka_unit_test(zero_points_use_all_codes_of_what_lies_to_one_side),
        cmocka_unit_test(fp8_keeps_its_signal_to_noise_at_every_size),
        cmocka_unit_test(fp8_codes_are_those_of_their_standard),
        cmocka_unit_test(what_underflows_in_fp16_does_not_in_scaled_fp16),
        cmocka_unit_test(int4_lies_two_a_byte_and_an_odd_end_is_padded_with_zero),
        cmocka_unit_test(what_a_codec_does_not_take_is_refused),
    };
    return cmocka_run_group_tests_name("codec units", tests, NULL, NULL);
}
