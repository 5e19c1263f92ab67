/* int8: the bits of int8_code and int8_value of element.h, mostly without a division. */
#pragma once

#include "kernels/unit_kernels.cuh"

struct int8 {
    static constexpr unsigned bits = 8;
    static constexpr bool has_zero = false;
    template <class Raw> static constexpr unsigned elements = chunk_elements<typename Raw::word, uint8_t>;
    typedef amax_range range;

    struct unit {
        float scale;
        float reciprocal; /* NaN where the estimates below would not hold: every chunk then goes the exact way */
        float near;       /* an element this far from what it is stored as is too near to a tie to be trusted */
    };

    static __device__ __forceinline__ unit_params params(const amax_range &of)
    {
        return {int8_scale(element_float(of.most)), 0};
    }

    /* Within these bounds the squares of what fills the unit's range are far from binary32's ends.
     * The reciprocal of a power of two is exact, and so is the product with it: no integer is in doubt. That
     * spares the bfloat16 units whose amax is 127 times one: half of what they hold may be ties. */
    static __device__ __forceinline__ unit of(const unit_params &params)
    {
        float scale = params.scale;
        bool plain = scale >= 0x1p-50f && scale <= 0x1p+50f;
        bool exact = (__float_as_uint(scale) & 0x7fffffu) == 0;

        return {scale, plain ? __frcp_rn(scale) : NOT_A_NUMBER, element_mul(scale, exact ? 1.0f : 0.5f - 0x1p-15f)};
    }

    static __device__ __forceinline__ float value(uint32_t code, const unit_params &params)
    {
        return int8_value((int8_t)code, params.scale);
    }

    static __device__ __forceinline__ uint32_t encode_exact(float x, const unit_params &params, thread_tally &tally)
    {
        bool clipped;
        int code = int8_code(x, params.scale, &clipped);

        tally.add(x, int8_value(code, params.scale), clipped);
        return (uint32_t)code;
    }

    static __device__ __forceinline__ unit_params params_of(const unit &unit)
    {
        return {unit.scale, 0};
    }

    static __device__ __forceinline__ float missed(float x, float shifted, const unit &unit)
    {
        return element_sub(x, element_mul(element_sub(shifted, ELEMENT_ROUNDER), unit.scale));
    }

    /* What is missed, in steps of the scale, is the distance of the true quotient from the integer to within 2^-16:
     * two roundings, of at most 127 steps and of one. Where it is farther than 2^-15 from a tie, the quotient
     * rounds to that integer, however it was found, and that is at most 127. What misses more goes by the division:
     * of bfloat16 that is every element of half the unit's amax. */
    template <class Raw, unsigned N, class Units>
    static __device__ __forceinline__ packed<8, N> encode(const chunk<typename Raw::word, N> &raw, const Units &units,
                                                          few_tally &few)
    {
        float x[N], shifted[N]; /* the integer is in its low byte: the rounder's own is 0 */
        float miss[N];
        few_tally mine;
        bool close = false;

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            shifted[i] = __fmaf_rn(x[i], units[i].reciprocal, ELEMENT_ROUNDER);
            miss[i] = missed(x[i], shifted[i], units[i]);
            mine.add(x[i], miss[i]);
            if (!Units::one)
                close |= fabsf(miss[i]) >= units[i].near;
        }
        if (Units::one ? mine.error >= units[0].near : close) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                if (fabsf(miss[i]) >= units[i].near) {
                    shifted[i] = element_add(quotient(x[i], units[i].scale, units[i].reciprocal), ELEMENT_ROUNDER);
                    miss[i] = missed(x[i], shifted[i], units[i]);
                }
            mine.missed_again<N>(miss);
        }
        few.join(mine);
        return low_bytes<N>(shifted);
    }

    template <unsigned N>
    static __device__ __forceinline__ void values(const packed<8, N> &codes, const unit_params &params, float x[N])
    {
        bytes_up(codes, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            x[i] = element_mul(x[i], params.scale);
    }

    /* Where no code can leave the raw type's range, nothing has to be held within. */
    template <class Raw, unsigned N>
    static __device__ __forceinline__ chunk<typename Raw::word, N> decode(const packed<8, N> &codes,
                                                                          const unit_params &params)
    {
        chunk<typename Raw::word, N> raw;
        float code[N];

        bytes_up(codes, code);
        if (fabsf(params.scale) <= __uint_as_float(Raw::most) / 128) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                raw.w[i] = Raw::down_finite(element_mul(code[i], params.scale));
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                raw.w[i] = Raw::down(int8_value((int)code[i], params.scale));
        }
        return raw;
    }
};
