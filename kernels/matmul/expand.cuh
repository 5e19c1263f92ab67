/* Stored elements of weights, a register of them at a time, as pairs of 16 bits for tensor cores. Integers become
 * halves by the bits of a number near 2^10 (in BF16: 2^7), whose low bits they are. */
#pragma once

#include "kernels/matmul/hbm_tile.cuh"

/* Pairs that a register of stored elements makes, and which of its elements pair i has. */
template <class Store> struct pairs_of {
    static constexpr unsigned N = 4 / sizeof(Store) / 2;
    static constexpr bool APART = false; /* elements 2 i and 2 i + 1 */
};
template <> struct pairs_of<hbm_int4> {
    static constexpr unsigned N = 4;
    static constexpr bool APART = true; /* elements i and i + 4: what lies 16 bits apart */
};

template <class Pair> static __device__ __forceinline__ uint32_t bits_of(Pair pair)
{
    return *(const uint32_t *)&pair;
}
static __device__ __forceinline__ uint32_t as_pair(__half, float low, float high)
{
    return bits_of(__floats2half2_rn(low, high));
}
static __device__ __forceinline__ uint32_t as_pair(__nv_bfloat16, float low, float high)
{
    return bits_of(__floats2bfloat162_rn(low, high));
}
static __device__ __forceinline__ float2 as_floats(__half, uint32_t pair)
{
    return __half22float2(*(const __half2 *)&pair);
}
static __device__ __forceinline__ float2 as_floats(__nv_bfloat16, uint32_t pair)
{
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* The difference of two pairs of whole numbers, exact. */
static __device__ __forceinline__ uint32_t less(__half, uint32_t pair, uint32_t by)
{
    return bits_of(__hsub2(*(const __half2 *)&pair, *(const __half2 *)&by));
}
static __device__ __forceinline__ uint32_t less(__nv_bfloat16, uint32_t pair, uint32_t by)
{
    return bits_of(__hsub2(*(const __nv_bfloat162 *)&pair, *(const __nv_bfloat162 *)&by));
}

template <class X> static __device__ __forceinline__ void expand(uint32_t (&to)[1], uint32_t bits, X)
{
    to[0] = bits;
}

static __device__ __forceinline__ void expand(uint32_t (&to)[2], uint32_t bits, __half x, int8_t)
{
    bits ^= 0x80808080u;
    to[0] = less(x, __byte_perm(bits, 0x64646464u, 0x4140), 0x64806480u); /* 1024 + 128 */
    to[1] = less(x, __byte_perm(bits, 0x64646464u, 0x4342), 0x64806480u);
}
static __device__ __forceinline__ void expand(uint32_t (&to)[2], uint32_t bits, __nv_bfloat16 x, int8_t)
{
    float f[4];

    bits ^= 0x80808080u;
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        f[i] = __uint_as_float(__byte_perm(bits, 0x4b000000u, 0x7440 + i)) - 8388736.0f; /* 2^23 + 128 */
    to[0] = as_pair(x, f[0], f[1]), to[1] = as_pair(x, f[2], f[3]);
}

static __device__ __forceinline__ void expand(uint32_t (&to)[4], uint32_t bits, __half x, hbm_int4)
{
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        to[i] = less(x, (bits >> 4 * i & 0x000f000fu) ^ 0x64086408u, 0x64086408u); /* 1024 + 8 */
}
static __device__ __forceinline__ void expand(uint32_t (&to)[4], uint32_t bits, __nv_bfloat16 x, hbm_int4)
{
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        to[i] = less(x, (bits >> 4 * i & 0x000f000fu) ^ 0x43084308u, 0x43084308u); /* 128 + 8 */
}

template <__nv_fp8_interpretation_t KIND>
static __device__ __forceinline__ void expand_fp8(uint32_t (&to)[2], uint32_t bits, __half)
{
    __half2_raw low = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(bits & 0xffffu), KIND),
                high = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(bits >> 16), KIND);

    to[0] = bits_of(low), to[1] = bits_of(high);
}
template <__nv_fp8_interpretation_t KIND>
static __device__ __forceinline__ void expand_fp8(uint32_t (&to)[2], uint32_t bits, __nv_bfloat16 x)
{
    expand_fp8<KIND>(to, bits, __half());
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        float2 two = as_floats(__half(), to[i]);
        to[i] = as_pair(x, two.x, two.y);
    }
}
template <class X>
static __device__ __forceinline__ void expand(uint32_t (&to)[2], uint32_t bits, X x, __nv_fp8_e4m3)
{
    expand_fp8<__NV_E4M3>(to, bits, x);
}
template <class X>
static __device__ __forceinline__ void expand(uint32_t (&to)[2], uint32_t bits, X x, __nv_fp8_e5m2)
{
    expand_fp8<__NV_E5M2>(to, bits, x);
}
