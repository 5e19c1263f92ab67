/* The int8 code on the device: the bits of int8_code and int8_value of element.h, mostly without a division. */
#pragma once

#include "kernels/chunk.cuh"
#include "kernels/tally.cuh"

/* What one unit's elements are coded with. */
struct int8_unit {
    float scale;
    float reciprocal; /* NaN where the estimate below would not hold: every element then takes the exact way */
};

static __device__ __forceinline__ int8_unit int8_unit_of(float scale)
{
    bool plain = scale >= 0x1p-100f && scale <= 0x1p+100f;

    return {scale, plain ? __frcp_rn(scale) : __uint_as_float(0x7fc00000u)};
}

static __device__ __noinline__ int int8_code_exact(float x, float scale, bool *clipped)
{
    return int8_code(x, scale, clipped);
}

/* x * reciprocal lies within 2^-15 of the true quotient (|quotient| <= 127 and a bit, three roundings of 2^-24).
 * An estimate that is farther than 2^-14 from a tie therefore rounds to the integer that the quotient rounds to,
 * and that integer is at most 127. Ties, NaN, infinities and extreme scales are decided by the division. */
static __device__ __forceinline__ int8_t int8_encode_one(float x, const int8_unit &unit, thread_tally &tally)
{
    float estimate = element_mul(x, unit.reciprocal);
    float shifted = element_add(estimate, ELEMENT_ROUNDER);
    float whole = element_sub(shifted, ELEMENT_ROUNDER);
    float off = element_sub(estimate, whole);

    if (fabsf(off) < 0.5f - 0x1p-14f) {
        tally.finite(x, element_mul(whole, unit.scale));
        return (int8_t)(element_bits(shifted) - element_bits(ELEMENT_ROUNDER));
    }
    bool clipped;
    int code = int8_code_exact(x, unit.scale, &clipped);
    tally.add(x, int8_value(code, unit.scale), clipped);
    return (int8_t)code;
}

/* A chunk whose elements share one unit. Elements outside the span are zeros: they code to 0 and add nothing. */
template <class Raw>
static __device__ __forceinline__ void int8_encode_chunk(const span &s, const chunk<typename Raw::word> &raw,
                                                         const int8_unit &unit, void *out, thread_tally &tally)
{
    chunk<int8_t> coded;

#pragma unroll
    for (unsigned i = 0; i < CHUNK; i++)
        coded.w[i] = int8_encode_one(Raw::up(raw.w[i]), unit, tally);
    span_store(s, out, coded);
}

template <class Raw>
static __device__ __forceinline__ uint32_t chunk_magnitude(const chunk<typename Raw::word> &raw)
{
    uint32_t most = 0;

#pragma unroll
    for (unsigned i = 0; i < CHUNK; i++)
        most = max(most, element_magnitude(Raw::up(raw.w[i])));
    return most;
}
