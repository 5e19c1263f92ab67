/* A buffer coded piece by piece, as ENCODE and DECODE do it, against the whole of it in one go (FAULTS 25). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#undef fail

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/code_cut.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct shape {
    uint64_t dims[3];
    unsigned rank;
} shapes[] = {{{1000}, 1}, {{1}, 1}, {{33, 77}, 2}, {{256, 64}, 2}, {{3, 5, 64}, 3}, {{7, 300, 1}, 3}, {{0, 4}, 2}, {{1, 4096}, 2}};

static const struct {
    struct hbm_encoding e;
    bool whole; /* one piece, if it is encoded: what shares a scale is not cut */
} ways[] = {
    {{.codec = HBM_CODEC_FP16, .stored = HBM_F16}, false},
    {{.codec = HBM_CODEC_BF16, .stored = HBM_BF16}, false},
    {{.codec = HBM_CODEC_INT8, .granularity = HBM_PER_TENSOR, .stored = HBM_I8}, true},
    {{.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 0, .stored = HBM_I8}, false},
    {{.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 1, .stored = HBM_I8}, true},
    {{.codec = HBM_CODEC_INT8, .granularity = HBM_PER_GROUP, .group = 32, .stored = HBM_I8}, false},
    {{.codec = HBM_CODEC_INT8, .granularity = HBM_PER_GROUP, .group = 7, .stored = HBM_I8}, false},
    {{.codec = HBM_CODEC_FP16_SCALED, .granularity = HBM_PER_TENSOR, .stored = HBM_F16}, true},
    {{.codec = HBM_CODEC_INT4, .granularity = HBM_PER_GROUP, .group = 32, .stored = HBM_I4}, false},
    {{.codec = HBM_CODEC_INT4, .granularity = HBM_PER_GROUP, .group = 7, .stored = HBM_I4}, false},
    {{.codec = HBM_CODEC_INT8_ASYM, .granularity = HBM_PER_TENSOR, .stored = HBM_I8}, true},
    {{.codec = HBM_CODEC_INT8_ASYM, .granularity = HBM_PER_CHANNEL, .axis = 0, .stored = HBM_I8}, false},
    {{.codec = HBM_CODEC_INT8_ASYM, .granularity = HBM_PER_GROUP, .group = 32, .stored = HBM_I8}, false},
};
static const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
static const uint64_t at_once[] = {1, 64, 1000, 4096, 1 << 20};

struct forms {
    uint64_t elements, raw, data, scales, zeros;
    unsigned char *in, *out, *coded;
    float *scale;
    int32_t *zero;
};

/* Blocks of exactly the right size, so that the address sanitizer sees a write past an end. */
static struct forms forms_of(const struct codec_job *job)
{
    struct forms f = {0};
    uint64_t units = 0;

    assert_true(hbm_shape_elements(job->dims, job->rank, &f.elements));
    assert_true(hbm_shape_bytes(job->dims, job->rank, job->dtype, &f.raw));
    assert_true(hbm_encoding_units(&job->encoding, job->dims, job->rank, &units));
    assert_true(hbm_shape_bytes(job->dims, job->rank, job->encoding.stored, &f.data));
    f.scales = units * hbm_codec_scale_bytes(job->encoding.codec);
    f.zeros = units * hbm_codec_zero_bytes(job->encoding.codec);
    f.zero = calloc(1, f.zeros);
    f.in = malloc(f.raw), f.out = calloc(1, f.raw), f.coded = calloc(1, f.data), f.scale = calloc(1, f.scales);
    for (uint64_t i = 0; i < f.raw; i++)
        f.in[i] = (unsigned char)(i * 2654435761u >> 13);
    for (uint64_t i = 1; i < f.raw; i += 2) /* no NaN, no infinity, of any of the three */
        f.in[i] &= 0xbf;
    return f;
}

static void drop(struct forms *f)
{
    free(f->in), free(f->out), free(f->coded), free(f->scale), free(f->zero);
}

static void point(struct codec_job *job, const struct forms *f)
{
    job->raw_in = f->in;
    job->raw_out = f->out;
    job->data = f->coded;
    job->scale = f->scales ? f->scale : NULL;
    job->zero = f->zeros ? f->zero : NULL;
}

static bool is_near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-9 * fabs(b);
}

static void code(struct codec_job *job, uint64_t bytes)
{
    struct forms one = forms_of(job), cut = forms_of(job);
    struct hbm_receipt wanted = {0}, got = {0};
    struct codec_tally sum = {0};
    uint64_t raw = 0;

    point(job, &one);
    codec_encode_host(job, &wanted);
    codec_decode_host(job);
    point(job, &cut);
    struct code_cut encode = code_cut(job, true, bytes), decode = code_cut(job, false, bytes);
    for (uint64_t i = 0; i < encode.pieces; i++) {
        struct codec_job piece = code_cut_piece(&encode, i);
        struct codec_tally tally = {0};
        assert_true(codec_supported(piece.dtype, &piece.encoding, piece.dims, piece.rank));
        codec_tally_host(&piece, &tally);
        codec_tally_join(&sum, &tally);
        raw += code_cut_bytes(&encode, i);
    }
    codec_receipt_of(&sum, cut.elements, &got);
    assert_int_equal(raw, cut.raw);
    assert_memory_equal(cut.coded, one.coded, cut.data);
    assert_memory_equal(cut.scale, one.scale, cut.scales);
    assert_memory_equal(cut.zero, one.zero, cut.zeros);
    assert_true(got.elements == wanted.elements && got.max_abs_error == wanted.max_abs_error && is_near(got.sqnr_db, wanted.sqnr_db));
    raw = 0;
    for (uint64_t i = 0; i < decode.pieces; raw += code_cut_bytes(&decode, i++)) {
        struct codec_job piece = code_cut_piece(&decode, i);
        codec_decode_host(&piece);
    }
    assert_int_equal(raw, cut.raw);
    assert_memory_equal(cut.out, one.out, cut.raw);
    if (bytes >= cut.raw)
        assert_true(encode.pieces == 1 && decode.pieces == 1);
    drop(&one), drop(&cut);
}

static void pieces_of_any_size_come_to_what_the_whole_does(void **state)
{
    (void)state;
    for (unsigned s = 0; s < COUNT(shapes); s++)
        for (unsigned w = 0; w < COUNT(ways); w++)
            for (unsigned d = 0; d < COUNT(dtypes); d++)
                for (unsigned b = 0; b < COUNT(at_once); b++) {
                    struct codec_job job = {.rank = shapes[s].rank, .dtype = dtypes[d], .encoding = ways[w].e};
                    memcpy(job.dims, shapes[s].dims, sizeof(shapes[s].dims));
                    if (codec_supported(job.dtype, &job.encoding, job.dims, job.rank))
                        code(&job, at_once[b]);
                }
}

static uint64_t pieces(const struct codec_job *job, bool encode)
{
    return code_cut(job, encode, 1 << 20).pieces;
}

/* 4 MiB of binary32. */
static void what_is_large_is_cut_but_what_shares_a_scale_is_encoded_in_one(void **state)
{
    struct codec_job job = {.dims = {1024, 1024}, .rank = 2, .dtype = HBM_F32};

    (void)state;
    for (unsigned w = 0; w < COUNT(ways); w++) {
        job.encoding = ways[w].e;
        assert_int_equal(pieces(&job, false), 4);
        assert_int_equal(pieces(&job, true), ways[w].whole ? 1 : 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_come_to_what_the_whole_does),
        cmocka_unit_test(what_is_large_is_cut_but_what_shares_a_scale_is_encoded_in_one),
    };

    return cmocka_run_group_tests_name("code_cut", tests, NULL, NULL);
}
