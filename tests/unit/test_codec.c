/* The reference codecs and the words of proto/vocab.c, against formulas written a second time here (FAULTS 25). */
#include "tests/unit/coded.h"

#include <float.h>

static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
static const float specials[] = {0,   -0.0f, 1e-45f, -1e-39f,  1e-37f, 6e-8f, 3e-5f,   0.5f,    1,   -2.5f, 479,
                                 480, 65504, 65520,  70000.0f, -1e30f, 1e30f, FLT_MAX, FLT_MIN, 127, 126.5f};

static int8_t code(const struct coded *c, uint64_t i)
{
    return ((const int8_t *)c->job.data)[i];
}

static void check_int8(struct coded *c)
{
    float *amax = calloc(c->units + 1, sizeof(*amax));
    double signal = 0, noise = 0, worst = 0;
    uint64_t nonfinite = 0;

    for (uint64_t i = 0; i < c->count; i++)
        if (isfinite(c->x[i]))
            amax[unit_of(c, i)] = fmaxf(amax[unit_of(c, i)], fabsf(c->x[i]));
    for (uint64_t u = 0; u < c->units; u++)
        assert_true(c->job.scale[u] == (amax[u] == 0 ? 1 : fmaxf(amax[u] / 127, 0x1p-149f)));
    for (uint64_t i = 0; i < c->count; i++) {
        float x = c->x[i], scale = c->job.scale[unit_of(c, i)];
        float q = isnan(x) ? 0 : fmaxf(-127, fminf(127, nearbyintf(x / scale)));
        float stored = fmaxf(-FLT_MAX, fminf(FLT_MAX, q * scale));

        assert_int_equal(code(c, i), (int)q);
        assert_true(c->back[i] == rounded_to(c->job.dtype, stored));
        if (!isfinite(x)) {
            nonfinite++;
            continue;
        }
        double error = fabs((double)x - stored);
        if (fabsf(x / scale) < 127.5f)
            assert_true(error <= 0.5 * scale * (1 + 0x1p-16));
        signal += (double)x * x;
        noise += error * error;
        worst = fmax(worst, error);
    }
    assert_int_equal(c->receipt.elements, c->count);
    assert_int_equal(c->receipt.nonfinite, nonfinite);
    assert_true(fabs(c->receipt.max_abs_error - worst) <= 1e-6 * worst);
    if (noise > 0)
        assert_true(fabs(c->receipt.sqnr_db - 10 * log10(signal / noise)) < 1e-4);
    else
        assert_true(isinf(c->receipt.sqnr_db) && c->receipt.sqnr_db > 0);
    free(amax);
}

/* --- conversions -----------------------------------------------------------------------------------------------
 */

static void every_half_converts_as_the_compiler_does(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t half = (uint16_t)h;
        _Float16 compiler;
        memcpy(&compiler, &half, sizeof(half));
        float theirs = (float)compiler, ours = element_float(element_f16_up(half));

        if (isnan(theirs))
            assert_true(isnan(ours));
        else
            assert_int_equal(element_bits(ours), element_bits(theirs));
        assert_int_equal(element_f16_down(element_f16_up(half)), half);
        assert_int_equal(element_bf16_down(element_bf16_up(half)), half);
    }
}

static void check_f16_down(uint32_t bits)
{
    float x = element_float(bits);
    uint16_t ours = element_f16_down(bits), theirs;
    _Float16 compiler = (_Float16)x;

    memcpy(&theirs, &compiler, sizeof(theirs));
    if (isnan(x))
        assert_true((ours & 0x7fff) > 0x7c00 && ours >> 15 == bits >> 31);
    else if (isfinite(x) && fabsf(x) > 65504)
        assert_int_equal(ours, (bits >> 31) << 15 | 0x7bff);
    else if (ours != theirs)
        fail_msg("%08x: %04x, not %04x", bits, ours, theirs);
}

static void floats_round_to_fp16_as_the_compiler_does(void **state)
{
    (void)state;
    /* Around every half: itself, the tie above it, and the neighbours of both. */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        uint32_t low = element_f16_up((uint16_t)h), high = element_f16_up((uint16_t)(h + 1));
        float low_x = element_float(low), high_x = h + 1 == 0x7c00 ? 65536.0f : element_float(high);
        uint32_t tie = element_bits((float)(((double)low_x + high_x) / 2));

        for (uint32_t sign = 0; sign < 2; sign++)
            for (uint32_t d = 0; d < 3; d++) {
                check_f16_down(sign << 31 | ((tie + d - 1) & ELEMENT_ABS));
                if (low)
                    check_f16_down(sign << 31 | (low + d - 1));
            }
    }
    for (uint64_t bits = 0; bits < 0x100000000u; bits += 1021)
        check_f16_down((uint32_t)bits);
}

static void floats_round_to_bf16_at_the_nearest_even(void **state)
{
    (void)state;
    for (uint64_t b = 0; b < 0x100000000u; b += 1021) {
        uint32_t bits = (uint32_t)b;
        float x = element_float(bits), ours = element_float(element_bf16_up(element_bf16_down(bits)));

        if (isnan(x)) {
            assert_true(isnan(ours) && !signbit(ours) == !signbit(x));
            continue;
        }
        if (isinf(x) || fabsf(x) > element_float(ELEMENT_BF16_MAX)) {
            assert_true(ours == (isinf(x) ? x : copysignf(element_float(ELEMENT_BF16_MAX), x)));
            continue;
        }
        float below = element_float(bits & 0xffff0000u), above = element_float((bits & 0xffff0000u) + 0x10000u);
        double down = fabs((double)x - below), up = fabs((double)above - x);
        bool even = !(bits >> 16 & 1);
        assert_true(element_bits(ours) == element_bits(down < up || (down == up && even) ? below : above));
    }
}

/* --- int8 ------------------------------------------------------------------------------------------------------
 */

static void int8_of_an_all_zero_tensor_is_zero_with_scale_one(void **state)
{
    (void)state;
    const float zeros[] = {0, -0.0f, 0, 0, 0};
    for (unsigned d = 0; d < COUNT(dtypes); d++) {
        struct coded c = encode_flat(dtypes[d], HBM_CODEC_INT8, zeros, 5);
        assert_true(c.job.scale[0] == 1);
        for (unsigned i = 0; i < 5; i++)
            assert_int_equal(code(&c, i), 0);
        assert_true(isinf(c.receipt.sqnr_db));
        release(&c);
    }
}

static void one_zero_row_has_scale_one_and_leaves_its_neighbours_alone(void **state)
{
    (void)state;
    const float x[] = {1, -2, 4, 0, 0, 0, 8, 16, -32};
    struct coded c = encode(HBM_F32, encoding_of(HBM_CODEC_INT8, HBM_PER_CHANNEL, 0, 0), (uint64_t[]){3, 3}, 2, x);
    assert_true(c.job.scale[0] == 4.0f / 127 && c.job.scale[1] == 1 && c.job.scale[2] == 32.0f / 127);
    check_int8(&c);
    release(&c);
}

static void nan_encodes_as_zero_and_infinities_as_the_ends(void **state)
{
    (void)state;
    const float x[] = {NAN, INFINITY, -INFINITY, 2, -1, -NAN};
    for (unsigned d = 0; d < COUNT(dtypes); d++) {
        struct coded c = encode_flat(dtypes[d], HBM_CODEC_INT8, x, 6);
        const int8_t expected[] = {0, 127, -127, 127, -64, 0};
        assert_memory_equal(c.job.data, expected, 6);
        assert_true(c.job.scale[0] == 2.0f / 127);
        assert_int_equal(c.receipt.nonfinite, 4);
        assert_true(c.receipt.clipped_fraction == 0);
        check_int8(&c);
        release(&c);
    }
}

static void a_unit_with_no_finite_element_has_scale_one(void **state)
{
    (void)state;
    const float x[] = {NAN, INFINITY, -INFINITY};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8, x, 3);
    assert_true(c.job.scale[0] == 1 && code(&c, 1) == 127 && code(&c, 2) == -127);
    release(&c);
}

static void halves_of_a_step_round_to_even(void **state)
{
    (void)state;
    const float x[] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f};
    const int8_t expected[] = {127, 0, 2, 2, 0, -2, -2, 126};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8, x, 8);
    assert_memory_equal(c.job.data, expected, 8);
    release(&c);
}

static void every_special_value_alone_survives_as_the_end_of_its_range(void **state)
{
    (void)state;
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned i = 0; i < COUNT(specials); i++) {
            struct coded c = encode_flat(dtypes[d], HBM_CODEC_INT8, &specials[i], 1);
            check_int8(&c);
            if (fabsf(c.x[0]) >= FLT_MIN)
                assert_int_equal(code(&c, 0), specials[i] > 0 ? 127 : -127);
            assert_true(isfinite(c.back[0]));
            release(&c);
        }
}

static void special_values_together_follow_the_contract(void **state)
{
    (void)state;
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned n = 1; n <= COUNT(specials); n++) {
            struct coded c = encode_flat(dtypes[d], HBM_CODEC_INT8, specials, n);
            check_int8(&c);
            release(&c);
        }
}

static void the_least_subnormals_are_coded_exactly(void **state)
{
    (void)state;
    const float x[] = {1e-45f, -3e-45f, 0};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8, x, 3);
    assert_true(c.job.scale[0] == 0x1p-149f);
    for (unsigned i = 0; i < 3; i++)
        assert_true(c.back[i] == c.x[i]);
    assert_true(isinf(c.receipt.sqnr_db));
    release(&c);
}

static void equal_elements_all_take_the_last_code(void **state)
{
    (void)state;
    float x[33];
    for (unsigned i = 0; i < COUNT(x); i++)
        x[i] = -3.25f;
    struct coded c = encode_flat(HBM_BF16, HBM_CODEC_INT8, x, COUNT(x));
    for (unsigned i = 0; i < COUNT(x); i++)
        assert_int_equal(code(&c, i), -127);
    assert_true(c.receipt.sqnr_db > 100);
    release(&c);
}

static void an_empty_tensor_has_an_empty_receipt(void **state)
{
    (void)state;
    for (unsigned codec = HBM_CODEC_FP16; codec <= HBM_CODEC_INT8; codec++) {
        struct coded c = encode_flat(HBM_F32, codec, NULL, 0);
        assert_int_equal(c.receipt.elements, 0);
        assert_true(c.receipt.clipped_fraction == 0 && isinf(c.receipt.sqnr_db));
        release(&c);
    }
    struct coded c =
        encode(HBM_F32, encoding_of(HBM_CODEC_INT8, HBM_PER_CHANNEL, 0, 0), (uint64_t[]){3, 0}, 2, NULL);
    assert_int_equal(c.units, 3);
    assert_true(c.job.scale[0] == 1 && c.job.scale[2] == 1);
    release(&c);
    c = encode(HBM_F32, encoding_of(HBM_CODEC_INT8, HBM_PER_GROUP, 0, 4), (uint64_t[]){3, 0}, 2, NULL);
    assert_int_equal(c.units, 0);
    release(&c);
}

static void a_scalar_of_rank_zero_is_one_element(void **state)
{
    (void)state;
    const float x = -5;
    struct coded c = encode(HBM_F16, encoding_of(HBM_CODEC_INT8, HBM_PER_TENSOR, 0, 0), (uint64_t[]){0}, 0, &x);
    assert_int_equal(c.count, 1);
    assert_int_equal(code(&c, 0), -127);
    release(&c);
}

static void every_dtype_axis_group_and_odd_shape_follows_the_contract(void **state)
{
    (void)state;
    static const struct {
        uint64_t dims[4];
        unsigned rank;
    } shapes[] = {{{1}, 1},          {{31}, 1},          {{255}, 1},     {{3, 5, 7}, 3},
                  {{2, 1, 9, 4}, 4}, {{1, 1003}, 2},     {{1003, 1}, 2}, {{33, 65}, 2},
                  {{16, 128}, 2},    {{5, 3, 1, 11}, 4}, {{4, 8, 8}, 3}, {{17, 256}, 2}};
    const unsigned groups[] = {1, 3, 8, 32, 128, 4096};
    float *x = normals(8192);

    seed = 7;
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned s = 0; s < COUNT(shapes); s++) {
            const uint64_t *dims = shapes[s].dims;
            unsigned rank = shapes[s].rank;
            struct coded c = encode(dtypes[d], encoding_of(HBM_CODEC_INT8, HBM_PER_TENSOR, 0, 0), dims, rank, x);
            check_int8(&c);
            release(&c);
            for (unsigned axis = 0; axis < rank; axis++) {
                c = encode(dtypes[d], encoding_of(HBM_CODEC_INT8, HBM_PER_CHANNEL, axis, 0), dims, rank, x);
                assert_int_equal(c.units, dims[axis]);
                check_int8(&c);
                release(&c);
            }
            for (unsigned g = 0; g < COUNT(groups); g++) {
                c = encode(dtypes[d], encoding_of(HBM_CODEC_INT8, HBM_PER_GROUP, 0, groups[g]), dims, rank, x);
                check_int8(&c);
                release(&c);
            }
        }
    free(x);
}

/* Rounding noise is uniform in a step, so the figure follows from the sample's largest element alone:
 * 12 * 127^2 / amax^2. At 2^18 samples that is 39..41 dB for the usual amax of 4 to 4.9; a rare sample has a larger
 * one. */
static void int8_of_a_normal_sample_lands_at_40_dB(void **state)
{
    (void)state;
    uint64_t n = 1 << 18;
    unsigned usual = 0;
    for (unsigned i = 0; i < 15; i++) {
        seed = 100 + i;
        float *x = normals(n);
        struct coded c = encode_flat(dtypes[i % COUNT(dtypes)], HBM_CODEC_INT8, x, n);
        double amax = c.job.scale[0] * 127.0;
        assert_true(fabs(c.receipt.sqnr_db - 10 * log10(12 * 127.0 * 127.0 / (amax * amax))) < 0.1);
        assert_true(c.receipt.clipped_fraction == 0);
        usual += c.receipt.sqnr_db > 39 && c.receipt.sqnr_db < 41;
        check_int8(&c);
        release(&c);
        free(x);
    }
    print_message("%u of 15 samples within 39..41 dB\n", usual);
    assert_true(usual >= 11);
}

static void ten_outliers_ruin_a_tensor_scale_and_not_a_group_scale(void **state)
{
    (void)state;
    seed = 2;
    uint64_t n = 1 << 18;
    float *x = normals(n);
    for (unsigned i = 0; i < 10; i++)
        x[next() % n] = i % 2 ? 100 : -100;
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_INT8, x, n);
    assert_true(fabs(c.receipt.sqnr_db - 14.3) < 0.5);
    release(&c);
    c = encode(HBM_F32, encoding_of(HBM_CODEC_INT8, HBM_PER_GROUP, 0, 128), &n, 1, x);
    assert_true(fabs(c.receipt.sqnr_db - 36.7) < 1);
    release(&c);
    free(x);
}

/* --- fp16, bf16 ------------------------------------------------------------------------------------------------
 */

static void halves_saturate_count_what_they_clip_and_keep_nan_and_infinity(void **state)
{
    (void)state;
    const float x[] = {NAN, INFINITY, -INFINITY, 65504, 65505, -1e30f, 1};
    struct coded c = encode_flat(HBM_F32, HBM_CODEC_FP16, x, 7);
    assert_true(isnan(c.back[0]) && c.back[1] == INFINITY && c.back[2] == -INFINITY);
    assert_true(c.back[3] == 65504 && c.back[4] == 65504 && c.back[5] == -65504 && c.back[6] == 1);
    assert_true(c.receipt.clipped_fraction == 2.0 / 7);
    assert_int_equal(c.receipt.nonfinite, 3);
    assert_true(c.receipt.max_abs_error == (float)(1e30f - 65504));
    release(&c);

    const float y[] = {FLT_MAX, -FLT_MAX, NAN, -INFINITY, 1e30f};
    c = encode_flat(HBM_F32, HBM_CODEC_BF16, y, 5);
    assert_true(c.back[0] == element_float(ELEMENT_BF16_MAX) && c.back[1] == -c.back[0]);
    assert_true(isnan(c.back[2]) && c.back[3] == -INFINITY);
    assert_true(c.receipt.clipped_fraction == 2.0 / 5);
    release(&c);
}

static void halves_of_their_own_dtype_are_the_identity(void **state)
{
    (void)state;
    uint16_t *in = malloc(0x20000), *data = malloc(0x20000), *out = malloc(0x20000);
    for (uint32_t h = 0; h < 0x10000; h++)
        in[h] = (uint16_t)h;
    for (unsigned codec = HBM_CODEC_FP16; codec <= HBM_CODEC_BF16; codec++) {
        struct codec_job job = {.raw_in = in,
                                .raw_out = out,
                                .data = data,
                                .dims = {0x10000},
                                .rank = 1,
                                .dtype = hbm_codec_stored_dtype(codec),
                                .encoding = encoding_of(codec, HBM_PER_TENSOR, 0, 0)};
        struct hbm_receipt receipt;
        codec_encode_host(&job, &receipt);
        codec_decode_host(&job);
        assert_memory_equal(in, data, 0x20000);
        assert_memory_equal(in, out, 0x20000);
        assert_true(isinf(receipt.sqnr_db) && receipt.clipped_fraction == 0);
    }
    free(in);
    free(data);
    free(out);
}

static void halves_of_every_dtype_round_once(void **state)
{
    (void)state;
    seed = 3;
    float *x = normals(1001);
    memcpy(x, specials, sizeof(specials));
    for (unsigned d = 0; d < COUNT(dtypes); d++)
        for (unsigned codec = HBM_CODEC_FP16; codec <= HBM_CODEC_BF16; codec++) {
            struct coded c = encode_flat(dtypes[d], codec, x, 1001);
            for (unsigned i = 0; i < 1001; i++) {
                float stored = rounded_to(hbm_codec_stored_dtype(codec), c.x[i]);
                assert_true(load(c.job.data, c.job.encoding.stored, i) == stored);
                assert_true(c.back[i] == rounded_to(dtypes[d], stored));
            }
            release(&c);
        }
    free(x);
}

static void what_the_codecs_do_not_take_is_refused(void **state)
{
    (void)state;
    const uint64_t dims[] = {4, 6}, huge[] = {1ull << 40, 1ull << 30};
    struct hbm_encoding e = encoding_of(HBM_CODEC_INT8, HBM_PER_TENSOR, 0, 0);

    assert_true(codec_supported(HBM_F32, &e, dims, 2));
    assert_false(codec_supported(HBM_F64, &e, dims, 2));
    assert_false(codec_supported(HBM_I8, &e, dims, 2));
    assert_false(codec_supported(HBM_F32, &e, huge, 2));
    assert_false(codec_supported(HBM_F32, &e, dims, HBM_RANK_MAX + 1));
    e.stored = HBM_U8;
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e = encoding_of(HBM_CODEC_INT8, HBM_PER_CHANNEL, 2, 0);
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e = encoding_of(HBM_CODEC_INT8, HBM_PER_GROUP, 0, 0);
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e = encoding_of(HBM_CODEC_INT8, 3, 0, 0);
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e = encoding_of(HBM_CODEC_FP16, HBM_PER_CHANNEL, 0, 0);
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e = encoding_of(HBM_CODEC_RAW, HBM_PER_TENSOR, 0, 0);
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
    e.codec = 200;
    assert_false(codec_supported(HBM_F32, &e, dims, 2));
}

/* --- vocabulary ------------------------------------------------------------------------------------------------
 */

static void shapes_count_their_elements_and_refuse_to_overflow(void **state)
{
    (void)state;
    uint64_t n;
    assert_true(hbm_shape_elements(NULL, 0, &n));
    assert_int_equal(n, 1);
    assert_true(hbm_shape_elements((uint64_t[]){3, 5, 7}, 3, &n));
    assert_int_equal(n, 105);
    assert_true(hbm_shape_elements((uint64_t[]){5, 0, 7}, 3, &n));
    assert_int_equal(n, 0);
    assert_false(hbm_shape_elements((uint64_t[]){1ull << 32, 1ull << 32}, 2, &n));
    assert_false(hbm_shape_elements((uint64_t[9]){1}, 9, &n));
}

static void a_zero_dimension_does_not_hide_an_overflow(void **state)
{
    (void)state;
    uint64_t n;
    assert_false(hbm_shape_elements((uint64_t[]){0, 1ull << 32, 1ull << 32}, 3, &n));
    assert_false(hbm_shape_elements((uint64_t[]){1ull << 32, 1ull << 32, 0}, 3, &n));
}

static void bytes_of_a_shape_round_sub_byte_types_up_once(void **state)
{
    (void)state;
    uint64_t bytes;
    assert_true(hbm_shape_bytes((uint64_t[]){3}, 1, HBM_F4, &bytes));
    assert_int_equal(bytes, 2);
    assert_true(hbm_shape_bytes((uint64_t[]){3, 3}, 2, HBM_F4, &bytes));
    assert_int_equal(bytes, 5);
    assert_true(hbm_shape_bytes((uint64_t[]){5}, 1, HBM_F6_E2M3, &bytes));
    assert_int_equal(bytes, 4);
    assert_true(hbm_shape_bytes((uint64_t[]){5}, 1, HBM_C64, &bytes));
    assert_int_equal(bytes, 40);
    assert_false(hbm_shape_bytes((uint64_t[]){1ull << 62}, 1, HBM_F32, &bytes));
    assert_false(hbm_shape_bytes((uint64_t[]){1ull << 62}, 1, HBM_F6_E3M2, &bytes));
    assert_false(hbm_shape_bytes((uint64_t[]){1}, 1, 99, &bytes));
}

static void units_follow_the_granularity(void **state)
{
    (void)state;
    const uint64_t dims[] = {4, 6, 10}, empty[] = {4, 0};
    uint64_t units;
    struct hbm_encoding e = encoding_of(HBM_CODEC_INT8, HBM_PER_TENSOR, 0, 0);
    assert_true(hbm_encoding_units(&e, dims, 3, &units));
    assert_int_equal(units, 1);
    e = encoding_of(HBM_CODEC_INT8, HBM_PER_CHANNEL, 1, 0);
    assert_true(hbm_encoding_units(&e, dims, 3, &units));
    assert_int_equal(units, 6);
    e = encoding_of(HBM_CODEC_INT8, HBM_PER_GROUP, 0, 4);
    assert_true(hbm_encoding_units(&e, dims, 3, &units));
    assert_int_equal(units, 4 * 6 * 3);
    assert_true(hbm_encoding_units(&e, empty, 2, &units));
    assert_int_equal(units, 0);
    assert_false(hbm_encoding_units(&e, dims, 0, &units));
}

static void names_and_numbers_of_the_vocabulary_go_both_ways(void **state)
{
    (void)state;
    for (unsigned i = 0; hbm_dtype_name(i); i++) {
        assert_int_equal(hbm_dtype_by_name(hbm_dtype_name(i)), i);
        assert_true(hbm_dtype_bits(i) > 0);
        assert_int_equal(hbm_dtype_codable(i), i == HBM_F16 || i == HBM_BF16 || i == HBM_F32);
    }
    for (unsigned i = 0; hbm_codec_name(i); i++)
        assert_int_equal(hbm_codec_by_name(hbm_codec_name(i)), i);
    assert_int_equal(hbm_dtype_by_name("bf16"), -1);
    assert_int_equal(hbm_codec_by_name(""), -1);
    assert_null(hbm_codec_name(77));
    assert_int_equal(hbm_dtype_bits(77), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_converts_as_the_compiler_does),
        cmocka_unit_test(floats_round_to_fp16_as_the_compiler_does),
        cmocka_unit_test(floats_round_to_bf16_at_the_nearest_even),
        cmocka_unit_test(int8_of_an_all_zero_tensor_is_zero_with_scale_one),
        cmocka_unit_test(one_zero_row_has_scale_one_and_leaves_its_neighbours_alone),
        cmocka_unit_test(nan_encodes_as_zero_and_infinities_as_the_ends),
        cmocka_unit_test(a_unit_with_no_finite_element_has_scale_one),
        cmocka_unit_test(halves_of_a_step_round_to_even),
        cmocka_unit_test(every_special_value_alone_survives_as_the_end_of_its_range),
        cmocka_unit_test(special_values_together_follow_the_contract),
        cmocka_unit_test(the_least_subnormals_are_coded_exactly),
        cmocka_unit_test(equal_elements_all_take_the_last_code),
        cmocka_unit_test(an_empty_tensor_has_an_empty_receipt),
        cmocka_unit_test(a_scalar_of_rank_zero_is_one_element),
        cmocka_unit_test(every_dtype_axis_group_and_odd_shape_follows_the_contract),
        cmocka_unit_test(int8_of_a_normal_sample_lands_at_40_dB),
        cmocka_unit_test(ten_outliers_ruin_a_tensor_scale_and_not_a_group_scale),
        cmocka_unit_test(halves_saturate_count_what_they_clip_and_keep_nan_and_infinity),
        cmocka_unit_test(halves_of_their_own_dtype_are_the_identity),
        cmocka_unit_test(halves_of_every_dtype_round_once),
        cmocka_unit_test(what_the_codecs_do_not_take_is_refused),
        cmocka_unit_test(shapes_count_their_elements_and_refuse_to_overflow),
        cmocka_unit_test(a_zero_dimension_does_not_hide_an_overflow),
        cmocka_unit_test(bytes_of_a_shape_round_sub_byte_types_up_once),
        cmocka_unit_test(units_follow_the_granularity),
        cmocka_unit_test(names_and_numbers_of_the_vocabulary_go_both_ways),
    };
    return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
