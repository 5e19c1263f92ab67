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

    /* A NaN, an infinity or an extreme scale shows in the sums. */
    template <class Raw, unsigned N>
    static __device__ __forceinline__ packed<4, N> encode(const chunk<typename Raw::word, N> &raw, const unit &unit,
                                                          few_tally &few, thread_tally &tally)
    {
        packed<4, N> codes;
        few_tally mine;
        float x[N];

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            /* The integer is in the low bits: the rounder's own are 0. */
            float shifted = element_add(element_mul(x[i], unit.reciprocal), ELEMENT_ROUNDER);

            codes.put(i, __float_as_uint(shifted));
            mine.add(x[i], element_sub(x[i], element_mul(element_sub(shifted, ELEMENT_ROUNDER), unit.scale)));
        }
        if (!mine.holds())
            return chunk_exact<int4_packed, Raw, N>(raw, {unit.scale, 0}, tally);
        few.join(mine);
        return codes;
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
