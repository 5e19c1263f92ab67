/* The plain-C codecs, one a file, as codec.c's table names them. */
#pragma once

#include "kernels/codec.h"
#include "kernels/element.h"
#include "kernels/tally.h"
#include "kernels/view.h"

struct codec_reference {
    void (*encode)(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally);
    void (*decode)(const struct codec_job *job, const struct codec_view *view);
};

extern const struct codec_reference codec_reference_fp16, codec_reference_bf16, codec_reference_int8,
    codec_reference_fp8_e4m3, codec_reference_fp8_e5m2, codec_reference_fp16_scaled, codec_reference_int4,
    codec_reference_int8_asym, codec_reference_bf16_lossless, codec_reference_int8_split;

static inline float element_load(const void *base, unsigned dtype, uint64_t index)
{
    switch (dtype) {
    case HBM_F16:
        return element_float(element_f16_up(((const uint16_t *)base)[index]));
    case HBM_BF16:
        return element_float(element_bf16_up(((const uint16_t *)base)[index]));
    default:
        return ((const float *)base)[index];
    }
}

static inline void element_store(void *base, unsigned dtype, uint64_t index, float x)
{
    switch (dtype) {
    case HBM_F16:
        ((uint16_t *)base)[index] = element_f16_down(element_bits(x));
        break;
    case HBM_BF16:
        ((uint16_t *)base)[index] = element_bf16_down(element_bits(x));
        break;
    default:
        ((float *)base)[index] = x;
    }
}
