/* fp16-scaled: the bits of fp16_scaled.h. */
#include "kernels/fp16_scaled.h"
#include "kernels/unit_kernels.cuh"

struct fp16_scaled {
    static constexpr unsigned bits = 16;
    static constexpr bool has_zero = false;
    template <class Raw> static constexpr unsigned elements = chunk_elements<typename Raw::word, uint16_t>;
    typedef amax_range range;

    struct unit {
        float scale;
        float reciprocal; /* NaN where squares may be near binary32's ends: every chunk then goes the exact way */
    };

    static __device__ __forceinline__ unit_params params(const amax_range &of)
    {
        return {fp16_scaled_scale(element_float(of.most)), 0};
    }
    static __device__ __forceinline__ unit of(const unit_params &params)
    {
        bool plain = params.scale >= 0x1p-50f && params.scale <= 0x1p+40f;

        return {params.scale, plain ? __frcp_rn(params.scale) : NOT_A_NUMBER};
    }
    static __device__ __forceinline__ float value(uint32_t code, const unit_params &params)
    {
        return fp16_scaled_value((uint16_t)code, params.scale);
    }
    static __device__ __forceinline__ uint32_t encode_exact(float x, const unit_params &params, thread_tally &tally)
    {
        uint16_t code = fp16_scaled_code(x, params.scale);

        tally.add(x, fp16_scaled_value(code, params.scale), false);
        return code;
    }

    static __device__ __forceinline__ unit_params params_of(const unit &unit)
    {
        return {unit.scale, 0};
    }

    template <class Raw, unsigned N, class Units>
    static __device__ __forceinline__ packed<16, N> encode(const chunk<typename Raw::word, N> &raw, const Units &units,
                                                           few_tally &few)
    {
        packed<16, N> codes;
        few_tally mine;
        float x[N];

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            uint16_t code = f16::down_finite(element_mul(x[i], units[i].reciprocal));

            codes.put(i, code);
            mine.add(x[i], element_sub(x[i], element_mul(f16::up_finite(code), units[i].scale)));
        }
        few.join(mine);
        return codes;
    }

    template <unsigned N>
    static __device__ __forceinline__ void values(const packed<16, N> &codes, const unit_params &params, float x[N])
    {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            x[i] = element_mul(f16::up_finite((uint16_t)codes.get(i)), params.scale);
    }

    template <class Raw, unsigned N>
    static __device__ __forceinline__ chunk<typename Raw::word, N> decode(const packed<16, N> &codes,
                                                                          const unit_params &params)
    {
        chunk<typename Raw::word, N> raw;

#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float x = f16::up((uint16_t)codes.get(i));

            raw.w[i] = Raw::down(element_finite(x) ? element_held(element_mul(x, params.scale)) : x);
        }
        return raw;
    }
};

TENSOR_KERNELS(fp16_scaled);
