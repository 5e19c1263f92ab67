/* int4: the bits of int4.h. */
#include "kernels/int4.h"
#include "kernels/unit_kernels.cuh"

struct int4_packed {
    static constexpr unsigned bits = 4;
    static constexpr bool has_zero = false;
    template <class Raw> static constexpr unsigned elements = 8; /* a word of codes */
    typedef amax_range range;

    struct unit {
        float scale;
        float reciprocal; /* NaN where squares may be near binary32's ends: every chunk then goes the exact way */
    };

    static __device__ __forceinline__ unit_params params(const amax_range &of)
    {
        return {element_scale(element_float(of.most), INT4_MOST), 0};
    }
    static __device__ __forceinline__ unit of(const unit_params &params)
    {
        bool plain = params.scale >= 0x1p-50f && params.scale <= 0x1p+50f;

        return {params.scale, plain ? __frcp_rn(params.scale) : NOT_A_NUMBER};
    }
    static __device__ __forceinline__ float value(uint32_t code, const unit_params &params)
    {
        return int4_value(int4_signed(code), params.scale);
    }
    static __device__ __forceinline__ uint32_t encode_exact(float x, const unit_params &params, thread_tally &tally)
    {
        int code = int4_code(x, params.scale);

        tally.add(x, int4_value(code, params.scale), false);
        return (uint32_t)code;
    }

    static __device__ __forceinline__ unit_params params_of(const unit &unit)
    {
        return {unit.scale, 0};
    }

    /* A byte is made as a float: 8 is added to either code, so that none is negative, then the higher one's sixteenfold;
     * a code's highest bit is turned back where four bytes are together. What is added is even: ties round as without. */
    template <class Raw, unsigned N, class Units>
    static __device__ __forceinline__ packed<4, N> encode(const chunk<typename Raw::word, N> &raw, const Units &units,
                                                          few_tally &few)
    {
        const float biased = ELEMENT_ROUNDER + 8 + 16 * 8;
        float x[N], bytes[N / 2];
        packed<4, N> codes;
        few_tally mine;

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i += 2) {
            float low = element_add(element_mul(x[i], units[i].reciprocal), biased);
            float high = element_add(element_mul(x[i + 1], units[i + 1].reciprocal), ELEMENT_ROUNDER);

            high = element_sub(high, ELEMENT_ROUNDER);
            bytes[i / 2] = __fmaf_rn(high, 16, low);
            mine.add(x[i], element_sub(x[i], element_mul(element_sub(low, biased), units[i].scale)));
            mine.add(x[i + 1], element_sub(x[i + 1], element_mul(high, units[i + 1].scale)));
        }
        few.join(mine);
        packed<8, N / 2> four = low_bytes<N / 2>(bytes);
#pragma unroll
        for (unsigned k = 0; k < N / 8; k++)
            codes.w[k] = four.w[k] ^ 0x88888888u;
        return codes;
    }

    template <unsigned N>
    static __device__ __forceinline__ void values(const packed<4, N> &codes, const unit_params &params, float x[N])
    {
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            uint32_t turned = (codes.w[i / 8] ^ 0x88888888u) >> i % 8 * 4 & 15u;

            x[i] = element_mul(element_sub(__uint_as_float(turned | 0x4b000000u), 8388616.0f), params.scale);
        }
    }

    /* Codes as floats: their sign turned, as the low bits of 2^23, from which 2^23 + 8 is taken. */
    template <class Raw, unsigned N>
    static __device__ __forceinline__ chunk<typename Raw::word, N> decode(const packed<4, N> &codes,
                                                                          const unit_params &params)
    {
        chunk<typename Raw::word, N> raw;
        bool plain = params.scale <= __uint_as_float(Raw::most) / 8;
        uint32_t turned = codes.w[0] ^ 0x88888888u;

#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float code = element_sub(__uint_as_float((turned >> i * 4 & 15u) | 0x4b000000u), 8388616.0f);
            float x = element_mul(code, params.scale);

            raw.w[i] = plain ? Raw::down_finite(x) : Raw::down(element_held(x));
        }
        return raw;
    }
};

UNIT_KERNELS(int4_packed);
