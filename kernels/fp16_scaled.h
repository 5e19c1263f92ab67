/* fp16-scaled: fp16 after a division by a power of two, which brings the largest magnitude to 2^14 .. 2^15: neither does it
 * overflow, nor do small values underflow that fp16's 40 binades under it can hold. Both directions are exact but for the
 * rounding to fp16 (and, of a result under 2^-126, for that of a binary32). */
#pragma once

#include "kernels/element.h"

/* A power of two from 2^-126 to 2^113: its reciprocal is a normal binary32, too. */
ELEMENT_FN float fp16_scaled_scale(float amax)
{
    uint32_t exponent = element_bits(amax) >> 23;

    if (amax == 0)
        return 1.0f;
    return element_float((exponent > 15 ? exponent - 14 : 1) << 23);
}

ELEMENT_FN uint16_t fp16_scaled_code(float x, float scale)
{
    if (!element_finite(x))
        return element_f16_down(element_bits(x));
    return element_f16_down(element_bits(element_mul(x, element_div(1.0f, scale))));
}

ELEMENT_FN float fp16_scaled_value(uint16_t code, float scale)
{
    float x = element_float(element_f16_up(code));

    return element_finite(x) ? element_held(element_mul(x, scale)) : x;
}
