/* fp8, the two of the Open Compute Project: e4m3 has no infinity, and its NaN is 0x7f; e5m2 is the upper half of an
 * fp16. Conversions are integer arithmetic on bit patterns, as in element.h. */
#pragma once

#include "kernels/element.h"

struct fp8_kind {
    unsigned mantissa; /* bits */
    unsigned bias;
    float most;        /* largest finite value */
    uint8_t most_code; /* its code */
    uint8_t infinity;  /* code; that of `most` where there is none */
    uint8_t nan;
    float beyond; /* what is larger would round to more than the largest finite value */
};

#define FP8_E4M3                                                                                                   \
    {                                                                                                              \
        3, 7, 448.0f, 0x7e, 0x7e, 0x7f, 464.0f                                                                   \
    }
#define FP8_E5M2                                                                                                   \
    {                                                                                                              \
        2, 15, 57344.0f, 0x7b, 0x7c, 0x7e, 61439.99609375f                                                         \
    }

/* Rounds half to even; what is finite and beyond the largest finite value becomes that. */
ELEMENT_FN uint8_t fp8_down(uint32_t bits, struct fp8_kind kind)
{
    uint32_t sign = bits >> 24 & 0x80u, a = bits & ELEMENT_ABS, code;
    unsigned cut = 23 - kind.mantissa,
             least = 128 - kind.bias; /* exponent field of the least normal, in binary32 */

    if (a > ELEMENT_INF)
        return (uint8_t)(sign | kind.nan);
    if (a == ELEMENT_INF)
        return (uint8_t)(sign | kind.infinity);
    if (a >> 23 >= least) {
        a -= (least - 1) << 23;
        code = (a + (1u << (cut - 1)) - 1 + (a >> cut & 1u)) >> cut;
        return (uint8_t)(sign | (code < kind.most_code ? code : kind.most_code));
    }
    unsigned shift = cut + least - (a >> 23);
    if (shift > 24) /* below half of the least subnormal */
        return (uint8_t)sign;
    uint32_t fraction = (a & 0x7fffffu) | 0x800000u, rest = fraction & ((1u << shift) - 1), tie = 1u << (shift - 1);
    code = fraction >> shift;
    return (uint8_t)(sign | (code + (rest > tie || (rest == tie && (code & 1u)))));
}

/* Bits of the binary32. */
ELEMENT_FN uint32_t fp8_up(uint8_t code, struct fp8_kind kind)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, a = code & 0x7fu;
    uint32_t exponent = a >> kind.mantissa, fraction = a & ((1u << kind.mantissa) - 1);

    if (a > kind.infinity)
        return sign | 0x7fc00000u;
    if (a > kind.most_code)
        return sign | ELEMENT_INF;
    if (a == 0)
        return sign;
    if (exponent == 0) /* a subnormal is a normal binary32: move its leading one to the implicit place */
        for (exponent = 1; !(fraction >> kind.mantissa); fraction <<= 1)
            exponent--;
    return sign | (exponent + 127 - kind.bias) << 23 | (fraction << (23 - kind.mantissa) & 0x7fffffu);
}

ELEMENT_FN uint8_t fp8_code(float x, float scale, struct fp8_kind kind)
{
    if (!element_finite(x))
        return fp8_down(element_bits(x), kind);
    return fp8_down(element_bits(element_mul(x, element_div(1.0f, scale))), kind);
}

ELEMENT_FN bool fp8_clips(float x, float scale, struct fp8_kind kind)
{
    float v = element_mul(x, element_div(1.0f, scale));

    return element_finite(x) && (v > kind.beyond || v < -kind.beyond);
}

ELEMENT_FN float fp8_value(uint8_t code, float scale, struct fp8_kind kind)
{
    float x = element_float(fp8_up(code, kind));

    return element_finite(x) ? element_held(element_mul(x, scale)) : x;
}
