/* The kernels of a codec that has units, from its Code (unit.cuh); codec_cuda.cu's table takes them by these names.
 */
#pragma once

#include "kernels/decode.cuh"
#include "kernels/fused.cuh"
#include "kernels/measure.cuh"
#include "kernels/two_pass.cuh"

#define TENSOR_KERNELS_OF(Code, Raw)                                                                               \
    template <> cudaError_t Code##_two_pass_encode<Raw>(const struct codec_call &call)                             \
    {                                                                                                              \
        return two_pass_encode<Code, Raw>(call);                                                                   \
    }                                                                                                              \
    template <> cudaError_t Code##_decode<Raw>(const struct codec_call &call)                                      \
    {                                                                                                              \
        return unit_decode<Code, Raw>(call);                                                                       \
    }                                                                                                              \
    template <> cudaError_t Code##_measure<Raw>(const struct codec_call &call)                                     \
    {                                                                                                              \
        return unit_measure<Code, Raw>(call);                                                                      \
    }

#define UNIT_KERNELS_OF(Code, Raw)                                                                                 \
    TENSOR_KERNELS_OF(Code, Raw)                                                                                   \
    template <> cudaError_t Code##_fused_encode<Raw>(const struct codec_call &call)                                \
    {                                                                                                              \
        return fused_encode<Code, Raw>(call);                                                                      \
    }

/* Of one that takes the tensor alone. */
#define TENSOR_KERNELS(Code)                                                                                       \
    TENSOR_KERNELS_OF(Code, f32)                                                                                   \
    TENSOR_KERNELS_OF(Code, f16)                                                                                   \
    TENSOR_KERNELS_OF(Code, bf16)                                                                                  \
    static_assert(true, "takes the semicolon")

#define UNIT_KERNELS(Code)                                                                                         \
    UNIT_KERNELS_OF(Code, f32)                                                                                     \
    UNIT_KERNELS_OF(Code, f16)                                                                                     \
    UNIT_KERNELS_OF(Code, bf16)                                                                                    \
    static_assert(true, "takes the semicolon")
