/* The int8 code on the device: the bits of int8_code and int8_value of element.h, mostly without a division. */
#pragma once

#include "kernels/chunk.cuh"
#include "kernels/tally.cuh"
#include "kernels/view.h"

/* What one unit's elements are coded with. */
struct int8_unit {
    float scale;
    float reciprocal; /* NaN where the estimates below would not hold: every chunk then goes the exact way */
    float near;       /* an estimate this far from its integer is too near to a tie to be trusted */
};

/* Within these bounds the squares of what the unit holds, and of its errors, are far from binary32's ends.
 * The reciprocal of a power of two is exact, and so is the product with it: no estimate is in doubt. That spares
 * the bfloat16 units whose amax is 127 times one: half of what they hold may be ties. */
static __device__ __forceinline__ int8_unit int8_unit_of(float scale)
{
    bool plain = scale >= 0x1p-50f && scale <= 0x1p+50f;
    bool exact = (__float_as_uint(scale) & 0x7fffffu) == 0;

    return {scale, plain ? __frcp_rn(scale) : __uint_as_float(0x7fc00000u), exact ? 1.0f : 0.5f - 0x1p-15f};
}

/* One element by the words of element.h. */
static __device__ __forceinline__ int8_t int8_encode_exact(float x, float scale, thread_tally &tally)
{
    bool clipped;
    int code = int8_code(x, scale, &clipped);

    tally.add(x, int8_value(code, scale), clipped);
    return (int8_t)code;
}

/* N codes, four a word: bytes that two ways bring together would be taken apart and put together again. */
template <unsigned N> struct int8_codes {
    uint32_t w[N / 4];

    __device__ __forceinline__ chunk<int8_t, N> bytes() const
    {
        return *reinterpret_cast<const chunk<int8_t, N> *>(this);
    }
};

template <unsigned N> struct int8_exact {
    int8_codes<N> codes;
    thread_tally tally; /* its own: a caller's whose address is taken would leave its registers */
};

template <class Raw, unsigned N>
static __device__ __noinline__ int8_exact<N> int8_chunk_exact(chunk<typename Raw::word, N> raw, float scale)
{
    int8_exact<N> exact;

    for (unsigned i = 0; i < N; i++) {
        uint32_t code = (uint8_t)int8_encode_exact(Raw::up(raw.w[i]), scale, exact.tally);
        exact.codes.w[i / 4] = (i % 4 ? exact.codes.w[i / 4] : 0) | code << i % 4 * 8;
    }
    return exact;
}

/* The low bytes of N words. */
template <unsigned N> static __device__ __forceinline__ int8_codes<N> low_bytes(const float word[N])
{
    int8_codes<N> codes;

#pragma unroll
    for (unsigned i = 0; i < N; i += 4) {
        uint32_t low = __byte_perm(__float_as_uint(word[i]), __float_as_uint(word[i + 1]), 0x0040);
        uint32_t high = __byte_perm(__float_as_uint(word[i + 2]), __float_as_uint(word[i + 3]), 0x0040);
        codes.w[i / 4] = __byte_perm(low, high, 0x5410);
    }
    return codes;
}

/* A chunk whose elements share one unit; those outside the span are zeros, which code to 0 and add nothing.
 * x * reciprocal lies within 2^-16 of the true quotient (|quotient| <= 127 and a bit, two roundings of 2^-24). An
 * estimate that is farther than 2^-15 from a tie therefore rounds to the integer that the quotient rounds to, and
 * that integer is at most 127. A chunk that holds such an estimate goes by the division, and so does one with a
 * NaN, an infinity or an extreme scale: its sums are no numbers. */
template <class Raw, unsigned N>
static __device__ __forceinline__ int8_codes<N> int8_encode_chunk(const chunk<typename Raw::word, N> &raw,
                                                                  const int8_unit &unit, few_tally &few,
                                                                  thread_tally &tally)
{
    float off = 0, x[N], shifted[N];
    few_tally mine;

    chunk_up<Raw, N>(raw, x);
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        float estimate = element_mul(x[i], unit.reciprocal);

        shifted[i] =
            element_add(estimate, ELEMENT_ROUNDER); /* the integer is in its low byte: the rounder's own is 0 */
        float whole = element_sub(shifted[i], ELEMENT_ROUNDER);
        mine.add(x[i], element_sub(x[i], element_mul(whole, unit.scale)));
        off = fmaxf(off, fabsf(element_sub(estimate, whole)));
    }
    if (off >= unit.near || !(mine.signal + mine.noise < __uint_as_float(ELEMENT_INF))) {
        int8_exact<N> exact = int8_chunk_exact<Raw, N>(raw, unit.scale);
        tally.join(exact.tally);
        return exact.codes;
    }
    few.join(mine);
    return low_bytes<N>(shifted);
}

/* How a kernel finds the unit of a chunk. */
enum int8_units {
    ONE_UNIT,
    EVEN_UNITS, /* runs of view.group elements, one after the other, whole chunks each */
    ANY_UNITS,
};

static inline enum int8_units int8_units_of(const struct codec_view &view, unsigned elements)
{
    bool runs = view.period == view.rows && (view.groups == 1 || view.row % view.group == 0);

    return view.units == 1 ? ONE_UNIT : runs && view.group % elements == 0 ? EVEN_UNITS : ANY_UNITS;
}

/* The unit that all of [at, at + elements) lies in; false if there is no such. */
template <enum int8_units UNITS>
static __device__ __forceinline__ bool int8_unit_at(const struct codec_view &view, uint64_t at, unsigned elements,
                                                    uint64_t &unit, struct codec_walk &walk)
{
    if (UNITS == ONE_UNIT) {
        unit = 0;
        return true;
    }
    if (UNITS == EVEN_UNITS) {
        unit = codec_divide(at, view.group, view.per_group);
        return true;
    }
    walk = codec_walk_at(&view, at);
    unit = walk.unit;
    return codec_walk_uniform(&view, &walk, elements);
}
