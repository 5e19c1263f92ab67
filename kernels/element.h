/* One element: exact conversions between binary32 and the two 16-bit floats, and the int8 code.
 * Used by the reference and by the kernels, so both round by the same words. Conversions are integer arithmetic on
 * bit patterns: no rounding mode, no flush of subnormals and no quieting of a NaN can change them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ELEMENT_FN static __host__ __device__ __forceinline__
#else
#define ELEMENT_FN static inline
#endif

#define ELEMENT_ABS 0x7fffffffu
#define ELEMENT_INF 0x7f800000u
#define ELEMENT_MAX 0x7f7fffffu      /* bits of the largest finite binary32 */
#define ELEMENT_LEAST 0x00800000u    /* bits of the least normal binary32 */
#define ELEMENT_F16_MAX 0x477fe000u  /* bits of 65504 */
#define ELEMENT_BF16_MAX 0x7f7f0000u /* bits of the largest finite bfloat16 */

ELEMENT_FN uint32_t element_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

ELEMENT_FN float element_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Division, product and difference that no compiler flag fuses or approximates. */
ELEMENT_FN float element_div(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

ELEMENT_FN float element_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

ELEMENT_FN float element_add(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

ELEMENT_FN float element_sub(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

ELEMENT_FN uint32_t element_f16_up(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 31u;
    uint32_t fraction = half & 0x3ffu;

    if (exponent == 31)
        return sign | ELEMENT_INF | fraction << 13;
    if (exponent != 0)
        return sign | (exponent + 112) << 23 | fraction << 13;
    if (fraction == 0)
        return sign;
    /* A subnormal half is a normal binary32: move its leading one to the implicit place. */
    for (exponent = 113; !(fraction & 0x400u); fraction <<= 1)
        exponent--;
    return sign | exponent << 23 | (fraction & 0x3ffu) << 13;
}

/* Finite values beyond 65504 become 65504; a NaN keeps its sign and what fits of its payload. */
ELEMENT_FN uint16_t element_f16_down(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t a = bits & ELEMENT_ABS;

    if (a > ELEMENT_INF) {
        uint32_t payload = a >> 13 & 0x3ffu;
        return (uint16_t)(sign | 0x7c00u | (payload ? payload : 0x200u));
    }
    if (a == ELEMENT_INF)
        return (uint16_t)(sign | 0x7c00u);
    if (a > ELEMENT_F16_MAX)
        return (uint16_t)(sign | 0x7bffu);
    if (a >= 0x38800000u) { /* 2^-14: normal in both */
        a -= 112u << 23;
        return (uint16_t)(sign | (a + 0xfffu + (a >> 13 & 1u)) >> 13);
    }
    if (a < 0x33000000u) /* below half of the least subnormal */
        return (uint16_t)sign;

    uint32_t shift = 126 - (a >> 23); /* 14..24: the result counts in 2^-24 */
    uint32_t fraction = (a & 0x7fffffu) | 0x800000u;
    uint32_t code = fraction >> shift;
    uint32_t rest = fraction & ((1u << shift) - 1);
    uint32_t tie = 1u << (shift - 1);
    if (rest > tie || (rest == tie && (code & 1u)))
        code++;
    return (uint16_t)(sign | code);
}

ELEMENT_FN uint32_t element_bf16_up(uint16_t half)
{
    return (uint32_t)half << 16;
}

ELEMENT_FN uint16_t element_bf16_down(uint32_t bits)
{
    uint32_t a = bits & ELEMENT_ABS;

    if (a > ELEMENT_INF)
        return (uint16_t)(bits >> 16 | ((bits >> 16 & 0x7fu) ? 0u : 0x40u));
    if (a == ELEMENT_INF)
        return (uint16_t)(bits >> 16);
    if (a > ELEMENT_BF16_MAX)
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7f7fu);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

ELEMENT_FN bool element_finite(float x)
{
    return (element_bits(x) & ELEMENT_ABS) < ELEMENT_INF;
}

/* The part of x that counts for a unit's amax, as bits: magnitudes of finite floats order as integers do. */
ELEMENT_FN uint32_t element_magnitude(float x)
{
    uint32_t a = element_bits(x) & ELEMENT_ABS;
    return a < ELEMENT_INF ? a : 0;
}

/* 1.5 * 2^23: adding it rounds any |v| < 2^22 to an integer, half to even, kept in the low bits of the sum. */
#define ELEMENT_ROUNDER 12582912.0f

/* amax/most, for codecs that multiply with its reciprocal: no less than the least normal, so that this is finite. */
ELEMENT_FN float element_scale(float amax, float most)
{
    float scale = element_div(amax, most), least = element_float(ELEMENT_LEAST);

    if (amax == 0)
        return 1.0f;
    return scale < least ? least : scale;
}

/* Held within the finite floats: a code never decodes to an infinity that was none. */
ELEMENT_FN float element_held(float x)
{
    float most = element_float(ELEMENT_MAX);

    return x > most ? most : x < -most ? -most : x;
}

/* amax/127 underflows to 0 for the least subnormals; the smallest positive scale then codes them exactly. */
ELEMENT_FN float int8_scale(float amax)
{
    float scale = element_div(amax, 127.0f);

    if (amax == 0)
        return 1.0f;
    return scale > 0 ? scale : element_float(1);
}

/* *clipped: a finite x whose rounded quotient lies outside [-127, 127]. */
ELEMENT_FN int int8_code(float x, float scale, bool *clipped)
{
    float v = element_div(x, scale);

    *clipped = element_finite(x) && (v >= 127.5f || v <= -127.5f);
    if (v != v)
        return 0;
    v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
    return (int)(element_bits(element_add(v, ELEMENT_ROUNDER)) - element_bits(ELEMENT_ROUNDER));
}

/* 127 * scale may round past the largest finite float when amax is next to it; a code never decodes to infinity. */
ELEMENT_FN float int8_value(int code, float scale)
{
    return element_held(element_mul((float)code, scale));
}
