/* What a unit's elements have in common: how a kernel finds it, and what it has to know of them.
 *
 * fused.cuh, two_pass.cuh and decode.cuh are the same for all codecs that have units. What differs is a type of its
 * own, here called Code: bits, elements<Raw>        of a code; codes a chunk has range                      what is
 * measured of a unit: amax_range or ends_range has_zero                   whether there are zero points
 *   params(range)              its scale and zero point
 *   unit, of(params)           what its elements are coded with
 *   params_of(unit)            back
 *   encode(raw, units, few)    a chunk: the codes are right where the sums hold; units is a one_unit or own_units
 *   encode_exact(x, params, tally)  one element, by the words of the reference
 *   decode(codes, params)      a chunk that shares one unit
 *   values(codes, params, x)   the same as binary32, of finite codes and a scale that is not extreme
 *   value(code, params)        one element, by the words of the reference */
#pragma once

#include <climits>

#include "kernels/chunk.cuh"
#include "kernels/packed.cuh"
#include "kernels/tally.cuh"
#include "kernels/view.h"

struct unit_params {
    float scale;
    int32_t zero;
};

/* Where those of all units lie. */
struct unit_arrays {
    float *scale;
    int32_t *zero; /* NULL for codecs without */

    template <bool ZERO> __device__ __forceinline__ unit_params at(uint64_t unit) const
    {
        return {scale[unit], ZERO ? zero[unit] : 0};
    }
    template <bool ZERO> __device__ __forceinline__ void put(uint64_t unit, const unit_params &params) const
    {
        scale[unit] = params.scale;
        if (ZERO)
            zero[unit] = params.zero;
    }
};

/* Most values do not raise their unit's; a look at L2 spares those the atomic. */
static __device__ __forceinline__ void raise(uint32_t *most, uint32_t value)
{
    if (value > __ldcg(most))
        atomicMax(most, value);
}

/* The largest finite magnitude, as bits. In two passes it gathers where the scale will be. */
struct amax_range {
    uint32_t most = 0;

    template <class Raw, unsigned N> __device__ __forceinline__ void look(const chunk<typename Raw::word, N> &raw)
    {
        most = max(most, chunk_magnitude<Raw, N>(raw));
    }
    __device__ __forceinline__ void look(float x)
    {
        most = max(most, element_magnitude(x));
    }
    /* K chunks: whether all is finite is asked once. */
    template <class Raw, unsigned N, unsigned K, class At> __device__ __forceinline__ void look_all(At at)
    {
        uint32_t of_all = 0;

#pragma unroll
        for (unsigned k = 0; k < K; k++)
            of_all = max(of_all, chunk_most<Raw, N>(at(k)));
        if (of_all < ELEMENT_INF) {
            most = max(most, of_all);
            return;
        }
#pragma unroll 1
        for (unsigned k = 0; k < K; k++)
            look<Raw, N>(at(k));
    }
    template <class Of> __device__ __forceinline__ void each(Of of)
    {
        most = of(most);
    }
    __device__ __forceinline__ void gather(const unit_arrays &all, uint64_t unit) const
    {
        raise(reinterpret_cast<uint32_t *>(&all.scale[unit]), most);
    }
    __device__ __forceinline__ void gathered(const unit_arrays &all, uint64_t unit)
    {
        most = __float_as_uint(all.scale[unit]);
    }
};

/* How far the finite elements reach below 0 and above it, as bits. In two passes these gather where the zero point and the
 * scale will be. */
struct ends_range {
    uint32_t below = 0, above = 0;

    template <class Raw, unsigned N> __device__ __forceinline__ void look(const chunk<typename Raw::word, N> &raw)
    {
        float x[N];

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            look(x[i]);
    }
    template <class Raw, unsigned N, unsigned K, class At> __device__ __forceinline__ void look_all(At at)
    {
#pragma unroll
        for (unsigned k = 0; k < K; k++)
            look<Raw, N>(at(k));
    }
    /* As signed integers what is negative is less than any of these. */
    __device__ __forceinline__ void look(float x)
    {
        int bits = element_finite(x) ? __float_as_int(x) : 0;

        above = (uint32_t)max((int)above, bits);
        below = (uint32_t)max((int)below, bits ^ INT_MIN);
    }
    template <class Of> __device__ __forceinline__ void each(Of of)
    {
        below = of(below);
        above = of(above);
    }
    __device__ __forceinline__ void gather(const unit_arrays &all, uint64_t unit) const
    {
        raise(reinterpret_cast<uint32_t *>(&all.zero[unit]), below);
        raise(reinterpret_cast<uint32_t *>(&all.scale[unit]), above);
    }
    __device__ __forceinline__ void gathered(const unit_arrays &all, uint64_t unit)
    {
        below = (uint32_t)all.zero[unit];
        above = __float_as_uint(all.scale[unit]);
    }
};

/* Whether all of a chunk lies within a range that was given; bits is the magnitude of its nearer end. What may reach farther to one
 * side than to the other is looked at by elements where that does not tell. */
template <class Code, class Raw, unsigned N>
static __device__ __forceinline__ bool chunk_within(const chunk<typename Raw::word, N> &raw, uint32_t bits, float lo, float hi)
{
    if (chunk_most<Raw, N>(raw) <= bits)
        return true;
    if constexpr (Code::has_zero) {
        float x[N];
        bool within = true;

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            within = within && x[i] >= lo && x[i] <= hi;
        return within;
    }
    return false;
}

/* How a kernel finds the unit of a chunk. */
enum unit_layout {
    ONE_UNIT,
    EVEN_UNITS, /* runs of view.group elements, one after the other, whole chunks each */
    ANY_UNITS,
};

static inline enum unit_layout unit_layout_of(const struct codec_view &view, unsigned elements)
{
    bool runs = view.period == view.rows && (view.groups == 1 || view.row % view.group == 0);

    return view.units == 1 ? ONE_UNIT : runs && view.group % elements == 0 ? EVEN_UNITS : ANY_UNITS;
}

/* The unit that all of [at, at + elements) lies in; false if there is no such. */
template <enum unit_layout UNITS>
static __device__ __forceinline__ bool unit_at(const struct codec_view &view, uint64_t at, unsigned elements,
                                               uint64_t &unit, struct codec_walk &walk)
{
    if (UNITS == ONE_UNIT) {
        unit = 0;
        return true;
    }
    if (UNITS == EVEN_UNITS) {
        bool shifts = (view.group & (view.group - 1)) == 0; /* as groups mostly do */

        unit = shifts ? at >> (63 - __clzll((long long)view.group)) : codec_divide(at, view.group, view.per_group);
        return true;
    }
    walk = codec_walk_at(&view, at);
    unit = walk.unit;
    return codec_walk_uniform(&view, &walk, elements);
}

/* What the elements of a chunk are coded with: all of them with the same, or each with its own. */
template <class Unit> struct one_unit {
    static constexpr bool one = true;
    Unit unit;

    __device__ __forceinline__ const Unit &operator[](unsigned) const
    {
        return unit;
    }
};

template <class Unit, unsigned N> struct own_units {
    static constexpr bool one = false;
    Unit unit[N];

    __device__ __forceinline__ const Unit &operator[](unsigned i) const
    {
        return unit[i];
    }
};

/* ---- For Codes ---- */

#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

template <class Code, unsigned N> struct exact_chunk {
    packed<Code::bits, N> codes;
    thread_tally tally; /* its own: a caller's whose address is taken would leave its registers */
};

template <class Code, class Raw, unsigned N>
static __device__ __noinline__ exact_chunk<Code, N> chunk_exactly(const chunk<typename Raw::word, N> raw,
                                                                  const unit_params params)
{
    exact_chunk<Code, N> exact;

    for (unsigned i = 0; i < N; i++)
        exact.codes.put(i, Code::encode_exact(Raw::up(raw.w[i]), params, exact.tally));
    return exact;
}

/* A chunk by the words of the reference. */
template <class Code, class Raw, unsigned N>
static __device__ __forceinline__ packed<Code::bits, N> chunk_exact(const chunk<typename Raw::word, N> &raw,
                                                                    const unit_params &params, thread_tally &tally)
{
    exact_chunk<Code, N> exact = chunk_exactly<Code, Raw, N>(raw, params);

    tally.join(exact.tally);
    return exact.codes;
}

/* A chunk that shares one unit. */
template <class Code, class Raw, unsigned N>
static __device__ __forceinline__ packed<Code::bits, N> chunk_encode(const chunk<typename Raw::word, N> &raw,
                                                                     const typename Code::unit &unit, thread_tally &tally)
{
    few_tally few;
    packed<Code::bits, N> codes = Code::template encode<Raw, N>(raw, one_unit<typename Code::unit>{unit}, few);

    /* A NaN, an infinity or an extreme scale shows in the sums. */
    if (!few.holds())
        return chunk_exact<Code, Raw, N>(raw, Code::params_of(unit), tally);
    tally.few(few);
    return codes;
}

/* x/y as the division rounds it, from the rounded 1/y, where nothing is near binary32's ends: a quotient within a unit of
 * its last place comes out right from one more step (Markstein). */
static __device__ __forceinline__ float quotient(float x, float y, float reciprocal)
{
    float q = element_mul(x, reciprocal);

    q = __fmaf_rn(__fmaf_rn(-q, y, x), reciprocal, q);
    return __fmaf_rn(__fmaf_rn(-q, y, x), reciprocal, q);
}

/* The low bytes of N words. */
template <unsigned N> static __device__ __forceinline__ packed<8, N> low_bytes(const float word[N])
{
    packed<8, N> codes;

#pragma unroll
    for (unsigned i = 0; i < N; i += 4) {
        uint32_t low = __byte_perm(__float_as_uint(word[i]), __float_as_uint(word[i + 1]), 0x0040);
        uint32_t high = __byte_perm(__float_as_uint(word[i + 2]), __float_as_uint(word[i + 3]), 0x0040);
        codes.w[i / 4] = __byte_perm(low, high, 0x5410);
    }
    return codes;
}

/* Signed bytes as floats: their sign turned, as the low bits of 2^23, from which 2^23 + 128 is taken. */
template <unsigned N> static __device__ __forceinline__ void bytes_up(const packed<8, N> &codes, float value[N])
{
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        uint32_t turned = codes.w[i / 4] ^ 0x80808080u;
        value[i] = element_sub(__uint_as_float(__byte_perm(turned, 0x4b000000u, 0x7440u + i % 4)), 8388736.0f);
    }
}
