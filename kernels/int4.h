/* int4: symmetric, -7 to 7; two a byte, the first in the low bits, as one run over the whole tensor: where that has an odd
 * number of elements, the high bits of the last byte are 0. */
#pragma once

#include "kernels/element.h"

#define INT4_MOST 7.0f

ELEMENT_FN int int4_code(float x, float scale)
{
    float v = element_mul(x, element_div(1.0f, scale));

    if (v != v)
        return 0;
    v = v > INT4_MOST ? INT4_MOST : v < -INT4_MOST ? -INT4_MOST : v;
    return (int)(element_bits(element_add(v, ELEMENT_ROUNDER)) - element_bits(ELEMENT_ROUNDER));
}

ELEMENT_FN float int4_value(int code, float scale)
{
    return element_held(element_mul((float)code, scale));
}

/* Of the low four bits. */
ELEMENT_FN int int4_signed(unsigned code)
{
    return (int)((code & 15u) ^ 8u) - 8;
}
