/* fp8: the bits of fp8.h; what is finite and within range the device converts by itself. */
#include <cuda_fp8.h>

#include "kernels/fp8.h"
#include "kernels/unit_kernels.cuh"

template <__nv_fp8_interpretation_t KIND> struct fp8 {
    static constexpr unsigned bits = 8;
    static constexpr bool has_zero = false;
    static constexpr fp8_kind kind = KIND == __NV_E4M3 ? fp8_kind FP8_E4M3 : fp8_kind FP8_E5M2;
    template <class Raw> static constexpr unsigned elements = chunk_elements<typename Raw::word, uint8_t>;
    typedef amax_range range;

    struct unit {
        float scale;
        float reciprocal; /* NaN where squares may be near binary32's ends: every chunk then goes the exact way */
    };

    static __device__ __forceinline__ unit_params params(const amax_range &of)
    {
        return {element_scale(element_float(of.most), kind.most), 0};
    }
    static __device__ __forceinline__ unit of(const unit_params &params)
    {
        bool plain = params.scale >= 0x1p-50f && params.scale <= 0x1p+40f;

        return {params.scale, plain ? __frcp_rn(params.scale) : NOT_A_NUMBER};
    }
    static __device__ __forceinline__ float value(uint32_t code, const unit_params &params)
    {
        return fp8_value((uint8_t)code, params.scale, kind);
    }
    static __device__ __forceinline__ uint32_t encode_exact(float x, const unit_params &params, thread_tally &tally)
    {
        uint8_t code = fp8_code(x, params.scale, kind);

        tally.add(x, fp8_value(code, params.scale, kind), fp8_clips(x, params.scale, kind));
        return code;
    }

    static __device__ __forceinline__ float2 pair_up(uint32_t pair)
    {
        return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)pair, KIND)));
    }

    static __device__ __forceinline__ unit_params params_of(const unit &unit)
    {
        return {unit.scale, 0};
    }

    template <class Raw, unsigned N, class Units>
    static __device__ __forceinline__ packed<8, N> encode(const chunk<typename Raw::word, N> &raw, const Units &units,
                                                          few_tally &few)
    {
        packed<8, N> codes = {};
        few_tally mine;
        float x[N];

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i += 2) {
            float2 v = make_float2(element_mul(x[i], units[i].reciprocal),
                                   element_mul(x[i + 1], units[i + 1].reciprocal));
            uint32_t pair = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, KIND);
            float2 back = pair_up(pair);

            codes.w[i / 4] |= pair << i % 4 * 8;
            mine.add(x[i], element_sub(x[i], element_mul(back.x, units[i].scale)));
            mine.add(x[i + 1], element_sub(x[i + 1], element_mul(back.y, units[i + 1].scale)));
        }
        few.join(mine);
        return codes;
    }

    template <unsigned N>
    static __device__ __forceinline__ void values(const packed<8, N> &codes, const unit_params &params, float x[N])
    {
#pragma unroll
        for (unsigned i = 0; i < N; i += 2) {
            float2 two = pair_up(codes.w[i / 4] >> i % 4 * 8 & 0xffffu);

            x[i] = element_mul(two.x, params.scale);
            x[i + 1] = element_mul(two.y, params.scale);
        }
    }

    /* Whether one of four codes is no finite number. */
    static __device__ __forceinline__ bool special(uint32_t four)
    {
        constexpr uint32_t first = (kind.most_code + 1u) * 0x01010101u;

        return ((four & 0x7f7f7f7fu) + (0x80808080u - first)) & 0x80808080u;
    }

    template <class Raw, unsigned N>
    static __device__ __forceinline__ chunk<typename Raw::word, N> decode(const packed<8, N> &codes,
                                                                          const unit_params &params)
    {
        chunk<typename Raw::word, N> raw;
        bool plain = params.scale <= __uint_as_float(Raw::most) / (2 * kind.most);

#pragma unroll
        for (unsigned k = 0; k < N / 4; k++)
            plain = plain && !special(codes.w[k]);
        if (plain) {
#pragma unroll
            for (unsigned i = 0; i < N; i += 2) {
                float2 x = pair_up(codes.w[i / 4] >> i % 4 * 8 & 0xffffu);

                raw.w[i] = Raw::down_finite(element_mul(x.x, params.scale));
                raw.w[i + 1] = Raw::down_finite(element_mul(x.y, params.scale));
            }
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                raw.w[i] = Raw::down(value(codes.get(i), params));
        }
        return raw;
    }
};

typedef fp8<__NV_E4M3> fp8_e4m3;
typedef fp8<__NV_E5M2> fp8_e5m2;

UNIT_KERNELS(fp8_e4m3);
UNIT_KERNELS(fp8_e5m2);
