/* int8-asym: the bits of int8_asym.h, mostly without a division. */
#include "kernels/int8_asym.h"
#include "kernels/unit_kernels.cuh"

struct int8_asym {
    static constexpr unsigned bits = 8;
    static constexpr bool has_zero = true;
    template <class Raw> static constexpr unsigned elements = chunk_elements<typename Raw::word, uint8_t>;
    typedef ends_range range;

    struct unit {
        int8_asym_params params;
        float reciprocal; /* NaN where the estimates below would not hold: every chunk then goes the exact way */
        float zero, near; /* an element this far from what it is stored as is too near to a tie to be trusted */
    };

    static __device__ __forceinline__ int8_asym_params own(const unit_params &params)
    {
        return {params.scale, params.zero};
    }
    static __device__ __forceinline__ unit_params params(const ends_range &of)
    {
        int8_asym_params params = int8_asym_params_of(element_float(of.below), element_float(of.above));

        return {params.scale, params.zero};
    }
    static __device__ __forceinline__ unit of(const unit_params &params)
    {
        bool plain = params.scale >= 0x1p-50f && params.scale <= 0x1p+50f;

        return {own(params), plain ? __frcp_rn(params.scale) : NOT_A_NUMBER, (float)params.zero,
                element_mul(params.scale, 0.5f - 0x1p-14f)};
    }
    static __device__ __forceinline__ float value(uint32_t code, const unit_params &params)
    {
        return int8_asym_value((int8_t)code, own(params));
    }
    static __device__ __forceinline__ uint32_t encode_exact(float x, const unit_params &params, thread_tally &tally)
    {
        bool clipped;
        int code = int8_asym_code(x, own(params), &clipped);

        tally.add(x, int8_asym_value(code, own(params)), clipped);
        return (uint32_t)code;
    }

    static __device__ __forceinline__ unit_params params_of(const unit &unit)
    {
        return {unit.params.scale, unit.params.zero};
    }

    static __device__ __forceinline__ float missed(float x, float rounded, const unit &unit)
    {
        return element_sub(x, element_mul(element_sub(rounded, ELEMENT_ROUNDER), unit.params.scale));
    }

    /* As int8's, of quotients up to 255: what is missed is the distance of the true one from the integer to within 2^-15.
     * Where it is farther than that from a tie, the quotient rounds to that integer, and so lies within the codes. */
    template <class Raw, unsigned N, class Units>
    static __device__ __forceinline__ packed<8, N> encode(const chunk<typename Raw::word, N> &raw, const Units &units,
                                                          few_tally &few)
    {
        float x[N], shifted[N];
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
                    float exact = quotient(x[i], units[i].params.scale, units[i].reciprocal);

                    exact = fminf(fmaxf(exact, INT8_ASYM_LEAST - units[i].zero), INT8_ASYM_MOST - units[i].zero);
                    shifted[i] = element_add(exact, ELEMENT_ROUNDER);
                    miss[i] = missed(x[i], shifted[i], units[i]);
                }
            mine.missed_again<N>(miss);
        }
        few.join(mine);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            shifted[i] = element_add(shifted[i], units[i].zero); /* the code is its low byte */
        return low_bytes<N>(shifted);
    }

    template <unsigned N>
    static __device__ __forceinline__ void values(const packed<8, N> &codes, const unit_params &params, float x[N])
    {
        bytes_up(codes, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            x[i] = element_mul(element_sub(x[i], (float)params.zero), params.scale);
    }

    /* Where no code can leave the raw type's range, nothing has to be held within. */
    template <class Raw, unsigned N>
    static __device__ __forceinline__ chunk<typename Raw::word, N> decode(const packed<8, N> &codes,
                                                                          const unit_params &params)
    {
        chunk<typename Raw::word, N> raw;
        bool plain = params.scale <= __uint_as_float(Raw::most) / 256;
        float code[N];

        bytes_up(codes, code);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float x = element_mul(element_sub(code[i], (float)params.zero), params.scale);

            raw.w[i] = plain ? Raw::down_finite(x) : Raw::down(element_held(x));
        }
        return raw;
    }
};

UNIT_KERNELS(int8_asym);
