/* Codec jobs on the host, for the tests of the codecs: memory of exactly the right size, so that the address
 * sanitizer sees a write past an end; samples; and the sentences of codec.h about units, a second time. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"
#include "kernels/element.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct coded {
    struct codec_job job;
    struct hbm_receipt receipt;
    uint64_t count, units, data_bytes;
    float *x;    /* the original as binary32 */
    float *back; /* decoded, as binary32 */
};

static inline float load(const void *base, unsigned dtype, uint64_t i)
{
    if (dtype == HBM_F32)
        return ((const float *)base)[i];
    uint16_t half = ((const uint16_t *)base)[i];
    return element_float(dtype == HBM_F16 ? element_f16_up(half) : element_bf16_up(half));
}

static inline void store(void *base, unsigned dtype, uint64_t i, float x)
{
    if (dtype == HBM_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] =
            dtype == HBM_F16 ? element_f16_down(element_bits(x)) : element_bf16_down(element_bits(x));
}

static inline struct hbm_encoding encoding_of(unsigned codec, unsigned granularity, unsigned axis, unsigned group)
{
    return (struct hbm_encoding){.codec = (uint8_t)codec,
                                 .granularity = (uint8_t)granularity,
                                 .axis = (uint8_t)axis,
                                 .stored = (uint8_t)hbm_codec_stored_dtype(codec),
                                 .group = group};
}

static inline struct coded encode(unsigned dtype, struct hbm_encoding encoding, const uint64_t *dims, unsigned rank,
                                  const float *values)
{
    struct coded c = {.job = {.rank = rank, .dtype = dtype, .encoding = encoding}};
    unsigned bytes = hbm_dtype_bits(dtype) / 8;

    assert_true(codec_supported(dtype, &encoding, dims, rank));
    memcpy(c.job.dims, dims, rank * sizeof(*dims));
    assert_true(hbm_shape_elements(dims, rank, &c.count));
    assert_true(hbm_encoding_units(&encoding, dims, rank, &c.units));
    void *raw = malloc(c.count * bytes);
    c.x = malloc(c.count * sizeof(float));
    c.back = malloc(c.count * sizeof(float));
    for (uint64_t i = 0; i < c.count; i++) {
        store(raw, dtype, i, values[i]);
        c.x[i] = load(raw, dtype, i);
    }
    c.job.raw_in = raw;
    assert_true(hbm_shape_bytes(dims, rank, encoding.stored, &c.data_bytes));
    c.job.data = malloc(c.data_bytes);
    c.job.scale = hbm_codec_scale_bytes(encoding.codec) ? malloc(c.units * sizeof(float)) : NULL;
    c.job.zero = hbm_codec_zero_bytes(encoding.codec) ? malloc(c.units * sizeof(int32_t)) : NULL;
    c.job.raw_out = malloc(c.count * bytes);
    if (hbm_codec_splits(encoding.codec)) {
        uint64_t outliers = 0;

        assert_true(hbm_split_elements(&encoding, dims, rank, &outliers));
        c.job.channels = malloc(encoding.group * sizeof(int32_t));
        c.job.outliers = malloc(outliers * sizeof(uint16_t));
        c.job.marks = malloc(dims[encoding.axis] * sizeof(uint32_t));
    }
    codec_encode_host(&c.job, &c.receipt);
    codec_decode_host(&c.job);
    for (uint64_t i = 0; i < c.count; i++)
        c.back[i] = load(c.job.raw_out, dtype, i);
    return c;
}

static inline void release(struct coded *c)
{
    free((void *)c->job.raw_in);
    free(c->job.raw_out);
    free(c->job.data);
    free(c->job.scale);
    free(c->job.zero);
    free(c->job.channels);
    free(c->job.outliers);
    free(c->job.marks);
    free(c->x);
    free(c->back);
}

static inline struct coded encode_flat(unsigned dtype, unsigned codec, const float *values, uint64_t count)
{
    return encode(dtype, encoding_of(codec, HBM_PER_TENSOR, 0, 0), &count, 1, values);
}

static uint64_t seed;

static inline uint64_t next(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline float normal(void)
{
    double u = ((double)(next() >> 11) + 1) * 0x1p-53, v = (double)(next() >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

static inline float *normals(uint64_t count)
{
    float *x = malloc(count * sizeof(*x));
    for (uint64_t i = 0; i < count; i++)
        x[i] = normal();
    return x;
}

/* The unit of element i, by the sentences of codec.h. */
static inline uint64_t unit_of(const struct coded *c, uint64_t i)
{
    const struct codec_job *j = &c->job;
    uint64_t inner = 1, last = j->rank ? j->dims[j->rank - 1] : 1;

    switch (j->encoding.granularity) {
    case HBM_PER_CHANNEL:
        for (unsigned k = j->encoding.axis + 1u; k < j->rank; k++)
            inner *= j->dims[k];
        return i / inner % j->dims[j->encoding.axis];
    case HBM_PER_GROUP:
        return i / last * ((last + j->encoding.group - 1) / j->encoding.group) + i % last / j->encoding.group;
    default:
        return 0;
    }
}

static inline float rounded_to(unsigned dtype, float x)
{
    if (dtype == HBM_F32)
        return x;
    uint32_t bits = element_bits(x);
    return element_float(dtype == HBM_F16 ? element_f16_up(element_f16_down(bits))
                                          : element_bf16_up(element_bf16_down(bits)));
}
