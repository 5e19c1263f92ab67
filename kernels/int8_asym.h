/* int8, asymmetric: a unit's codes -128 to 127 are spread over what it holds, from the least to the largest, 0 among it;
 * 0 itself is the zero point. */
#pragma once

#include "kernels/element.h"

#define INT8_ASYM_LEAST (-128)
#define INT8_ASYM_MOST 127

struct int8_asym_params {
    float scale;
    int32_t zero;
};

/* below and above: how far the unit's finite elements reach to either side of 0, neither of them negative. Where both ends
 * lie near codes, as those of what has been decoded do but for the rounding to its dtype, or reach equally far, the farther
 * one is stored exactly: what is encoded again and again comes to rest. */
ELEMENT_FN struct int8_asym_params int8_asym_params_of(float below, float above)
{
    const float steps = INT8_ASYM_MOST - INT8_ASYM_LEAST, near = 0.25f;
    float reach = element_add(above, below);
    struct int8_asym_params params = {element_scale(above, INT8_ASYM_MOST), 0};

    if (above == below)
        return params;
    params.scale = element_finite(reach) ? element_scale(reach, steps)
                                         : element_add(element_div(above, steps), element_div(below, steps));
    float exact = element_div(below, params.scale);
    float whole = element_sub(element_add(exact, ELEMENT_ROUNDER), ELEMENT_ROUNDER);
    params.zero = INT8_ASYM_LEAST + (int32_t)whole;
    bool full = params.scale > element_float(ELEMENT_LEAST); /* the codes reach from end to end */
    if (full && element_sub(exact, whole) < near && element_sub(whole, exact) < near)
        params.scale = above < below ? element_scale(below, whole) : element_scale(above, element_sub(steps, whole));
    return params;
}

/* *clipped: a finite x whose quotient lies a step or more beyond the codes. What lies within the range that the parameters are
 * of never does: rounding the zero point puts its ends half a step beyond at most. */
ELEMENT_FN int int8_asym_code(float x, struct int8_asym_params params, bool *clipped)
{
    float v = element_div(x, params.scale);
    float least = (float)(INT8_ASYM_LEAST - params.zero), most = (float)(INT8_ASYM_MOST - params.zero);

    *clipped = element_finite(x) && (v >= most + 1 || v <= least - 1);
    if (v != v)
        return params.zero;
    v = v > most ? most : v < least ? least : v;
    return (int)(element_bits(element_add(v, ELEMENT_ROUNDER)) - element_bits(ELEMENT_ROUNDER)) + params.zero;
}

ELEMENT_FN float int8_asym_value(int code, struct int8_asym_params params)
{
    return element_held(element_mul((float)(code - params.zero), params.scale));
}
