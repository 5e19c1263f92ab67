/* bf16-lossless on the host: whatever goes in comes back, bit for bit, and takes no more than it should. */
#include "coded.h"

#include "kernels/lossless.h"
#include "kernels/tally.h"

/* A tensor and its stream, each in memory of exactly its size. */
struct stream {
    struct codec_job job;
    struct codec_tally tally;
    struct lossless_code code;
    uint16_t *elements, *back;
    uint64_t n;
};

static uint64_t measure(struct stream *s, const struct lossless_code *given)
{
    uint64_t counts[256] = {0}, all = lossless_blocks_at(s->n);
    uint32_t *words = calloc(lossless_blocks(s->n) + 1, sizeof(*words));

    lossless_count_host(s->elements, s->n, counts);
    if (given)
        s->code = *given;
    else
        lossless_code_of(counts, &s->code);
    lossless_words_host(s->elements, s->n, &s->code, words);
    for (uint64_t b = 0; b < lossless_blocks(s->n); b++)
        all += 4ull * words[b];
    free(words);
    return all;
}

static struct stream stream_of(unsigned dtype, const uint16_t *elements, uint64_t n, const struct lossless_code *code)
{
    struct stream s = {.n = n};

    s.job = (struct codec_job){
        .rank = 1, .dims = {n}, .dtype = dtype, .encoding = encoding_of(HBM_CODEC_BF16_LOSSLESS, HBM_PER_TENSOR, 0, 0)};
    assert_true(codec_supported(dtype, &s.job.encoding, s.job.dims, 1));
    s.elements = malloc(n * 2);
    s.back = malloc(n * 2);
    if (n)
        memcpy(s.elements, elements, n * 2);
    s.job.data_bytes = measure(&s, code);
    return s;
}

static void encode_stream(struct stream *s)
{
    s->job.raw_in = s->elements;
    s->job.raw_out = s->back;
    s->job.code = &s->code;
    s->job.data = malloc(s->job.data_bytes);
    memset(s->job.data, 0xa5, s->job.data_bytes);
    codec_tally_host(&s->job, &s->tally);
}

static void release_stream(struct stream *s)
{
    free(s->elements);
    free(s->back);
    free(s->job.data);
}

/* Its bytes. */
static uint64_t returns(unsigned dtype, const uint16_t *elements, uint64_t n, const struct lossless_code *code)
{
    struct stream s = stream_of(dtype, elements, n, code);
    uint64_t bytes = s.job.data_bytes;

    encode_stream(&s);
    assert_int_equal(s.tally.overflow, 0);
    assert_true(bytes <= lossless_most(n));
    memset(s.back, 0x5a, n * 2);
    codec_decode_host(&s.job);
    assert_memory_equal(s.back, s.elements, n * 2);
    release_stream(&s);
    return bytes;
}

static uint16_t *weights(uint64_t n, unsigned dtype)
{
    uint16_t *elements = malloc(n * 2);

    for (uint64_t i = 0; i < n; i++)
        store(elements, dtype, i, 0.02f * normal());
    return elements;
}

static uint16_t *noise(uint64_t n)
{
    uint16_t *elements = malloc(n * 2);

    for (uint64_t i = 0; i < n; i++)
        elements[i] = (uint16_t)next();
    return elements;
}

static void every_bit_pattern_of_a_16_bit_float_comes_back(void **state)
{
    (void)state;
    static uint16_t all[1 << 16];

    for (unsigned i = 0; i < 1 << 16; i++)
        all[i] = (uint16_t)(i * 40503u);
    returns(HBM_BF16, all, 1 << 16, NULL);
    returns(HBM_F16, all, 1 << 16, NULL);
}

static void every_length_around_runs_steps_and_blocks_comes_back(void **state)
{
    (void)state;
    static const uint64_t around[] = {0, 8, 16, 64, 256, 264, 4096, 8192, 12288};
    uint16_t *x = weights(1 << 14, HBM_BF16), *random = noise(1 << 14);

    for (unsigned i = 0; i < COUNT(around); i++)
        for (int off = -3; off <= 3; off++) {
            if ((int64_t)around[i] + off < 0)
                continue;
            returns(HBM_BF16, x, around[i] + (uint64_t)off, NULL);
            returns(HBM_F16, random, around[i] + (uint64_t)off, NULL);
        }
    free(x);
    free(random);
}

static void weights_take_less_than_70_percent_and_halves_of_them_less_than_90(void **state)
{
    (void)state;
    const uint64_t n = 1 << 20;
    uint16_t *x = weights(n, HBM_BF16), *half = weights(n, HBM_F16);
    double share = (double)returns(HBM_BF16, x, n, NULL) / (double)(2 * n);

    assert_true(share > 0.659 && share < 0.675); /* the entropy of the exponents is the floor */
    assert_true((double)returns(HBM_F16, half, n, NULL) < 0.9 * 2 * (double)n);
    free(x);
    free(half);
}

static void what_has_nothing_to_save_grows_by_its_header_and_a_word_a_block(void **state)
{
    (void)state;
    const uint64_t n = (1 << 18) + 5;
    uint16_t *random = noise(n);

    assert_true(returns(HBM_BF16, random, n, NULL) <= 2 * n + LOSSLESS_HEADER + 4 * lossless_blocks(n) + 36);
    free(random);
}

static void equal_elements_take_nine_bits_each(void **state)
{
    (void)state;
    static const uint16_t values[] = {0, 0x8000, 0x3f80, 0x7fff, 0xff80, 1};
    static uint16_t x[1 << 16];

    for (unsigned v = 0; v < COUNT(values); v++) {
        for (unsigned i = 0; i < 1 << 16; i++)
            x[i] = values[v];
        uint64_t bytes = returns(HBM_BF16, x, 1 << 16, NULL);
        assert_true(bytes < (1 << 16) * 9 / 8 + LOSSLESS_HEADER + 16 * 68 + 32);
    }
}

/* Counts that would have codewords of up to 40 bits. */
static void codewords_stay_within_twelve_bits_whatever_is_counted(void **state)
{
    (void)state;
    uint64_t counts[256] = {0}, a = 1, b = 1;
    struct lossless_code code;
    unsigned kraft = 0;

    for (unsigned i = 0; i < 40; i++, b += a, a = b - a)
        counts[i * 5] = a;
    lossless_code_of(counts, &code);
    for (unsigned i = 0; i < 256; i++) {
        assert_int_equal(code.length[i] > 0, counts[i] > 0);
        assert_true(code.length[i] <= LOSSLESS_LONGEST);
        kraft += code.length[i] ? LOSSLESS_TABLE >> code.length[i] : 0;
    }
    assert_int_equal(kraft, LOSSLESS_TABLE);
    for (unsigned i = 0; i < 256; i++)
        counts[i] = UINT64_MAX / 512;
    lossless_code_of(counts, &code);
    for (unsigned i = 0; i < 256; i++)
        assert_int_equal(code.length[i], 8);
}

static void a_code_that_was_made_for_something_else_still_gives_all_back(void **state)
{
    (void)state;
    const uint64_t n = 10000;
    uint16_t *x = weights(n, HBM_BF16), *random = noise(n);
    struct stream s = stream_of(HBM_BF16, x, n, NULL);

    returns(HBM_BF16, random, n, &s.code);
    returns(HBM_BF16, x, n, &(struct lossless_code){0});
    release_stream(&s);
    free(x);
    free(random);
}

static void what_does_not_fit_is_told_and_nothing_is_written_behind_its_end(void **state)
{
    (void)state;
    const uint64_t n = 9000;
    uint16_t *x = weights(n, HBM_BF16);
    struct stream whole = stream_of(HBM_BF16, x, n, NULL);

    for (uint64_t bytes = 1; bytes < whole.job.data_bytes; bytes += 97) {
        struct stream s = stream_of(HBM_BF16, x, n, NULL);
        s.job.data_bytes = bytes;
        encode_stream(&s);
        assert_int_equal(s.tally.overflow, 1);
        release_stream(&s);
    }
    release_stream(&whole);
    free(x);
}

static void nan_and_infinities_are_counted(void **state)
{
    (void)state;
    const uint16_t x[] = {0x7f80, 0xff80, 0x7fc1, 0x3f80, 0x7c00, 0xfe00};
    struct stream bf16 = stream_of(HBM_BF16, x, 6, NULL), fp16 = stream_of(HBM_F16, x, 6, NULL);
    struct hbm_receipt receipt;

    encode_stream(&bf16);
    encode_stream(&fp16);
    assert_int_equal(bf16.tally.nonfinite, 3);
    assert_int_equal(fp16.tally.nonfinite, 6 - 1);
    assert_int_equal(bf16.tally.nans, 1);
    assert_int_equal(fp16.tally.nans, 4);
    codec_receipt_of(&bf16.tally, 6, &receipt);
    assert_true(isinf(receipt.sqnr_db) && receipt.max_abs_error == 0);
    release_stream(&bf16);
    release_stream(&fp16);
}

/* The address sanitizer looks on. */
static void a_damaged_stream_decodes_to_something_within_its_bounds(void **state)
{
    (void)state;
    const uint64_t n = 9000;
    uint16_t *x = weights(n, HBM_BF16);
    struct stream s = stream_of(HBM_BF16, x, n, NULL);
    uint64_t bytes = s.job.data_bytes;

    encode_stream(&s);
    unsigned char *whole = malloc(bytes);
    memcpy(whole, s.job.data, bytes);
    for (unsigned i = 0; i < 400; i++) {
        unsigned char *damaged = malloc(bytes);
        memcpy(damaged, whole, bytes);
        for (unsigned j = 0; j < 20; j++)
            damaged[next() % (i % 2 ? LOSSLESS_HEADER + 12 : bytes)] = (unsigned char)next();
        s.job.data_bytes = i % 8 ? bytes : next() % bytes;
        struct codec_job job = s.job;
        job.data = realloc(damaged, job.data_bytes ? job.data_bytes : 1);
        codec_decode_host(&job);
        free(job.data);
    }
    free(whole);
    release_stream(&s);
    free(x);
}

static void binary32_and_scales_are_refused(void **state)
{
    (void)state;
    const uint64_t n = 8, many = LOSSLESS_MAX + 1;
    struct hbm_encoding e = encoding_of(HBM_CODEC_BF16_LOSSLESS, HBM_PER_TENSOR, 0, 0),
                        channels = encoding_of(HBM_CODEC_BF16_LOSSLESS, HBM_PER_CHANNEL, 0, 0);

    assert_true(codec_supported(HBM_F16, &e, &n, 1) && codec_supported(HBM_BF16, &e, &n, 1));
    assert_false(codec_supported(HBM_F32, &e, &n, 1));
    assert_false(codec_supported(HBM_BF16, &channels, &n, 1));
    assert_false(codec_supported(HBM_BF16, &e, &many, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_pattern_of_a_16_bit_float_comes_back),
        cmocka_unit_test(every_length_around_runs_steps_and_blocks_comes_back),
        cmocka_unit_test(weights_take_less_than_70_percent_and_halves_of_them_less_than_90),
        cmocka_unit_test(what_has_nothing_to_save_grows_by_its_header_and_a_word_a_block),
        cmocka_unit_test(equal_elements_take_nine_bits_each),
        cmocka_unit_test(codewords_stay_within_twelve_bits_whatever_is_counted),
        cmocka_unit_test(a_code_that_was_made_for_something_else_still_gives_all_back),
        cmocka_unit_test(what_does_not_fit_is_told_and_nothing_is_written_behind_its_end),
        cmocka_unit_test(nan_and_infinities_are_counted),
        cmocka_unit_test(a_damaged_stream_decodes_to_something_within_its_bounds),
        cmocka_unit_test(binary32_and_scales_are_refused),
    };
    return cmocka_run_group_tests_name("lossless codec", tests, NULL, NULL);
}
