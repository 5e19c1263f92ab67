/* The raw sums behind a receipt, over the elements that are finite in the original. */
#pragma once

#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/element.h"

#ifdef __cplusplus
extern "C" {
#endif

struct codec_tally {
    double signal; /* sum of x^2 */
    double noise;  /* sum of (x - x')^2 */
    uint64_t clipped;
    uint64_t nonfinite;
    uint32_t max_error; /* bits of the largest |x - x'|: they order as integers do */
    uint32_t unused;
};

/* Fills *receipt except seconds and bytes_*. */
void codec_receipt_of(const struct codec_tally *tally, uint64_t elements, struct hbm_receipt *receipt);

/* What another part of the same tensor came to. */
static inline void codec_tally_join(struct codec_tally *tally, const struct codec_tally *part)
{
    tally->signal += part->signal;
    tally->noise += part->noise;
    tally->clipped += part->clipped;
    tally->nonfinite += part->nonfinite;
    if (part->max_error > tally->max_error)
        tally->max_error = part->max_error;
}

static inline void codec_tally_add(struct codec_tally *tally, float x, float stored, bool clipped)
{
    if (!element_finite(x)) {
        tally->nonfinite++;
        return;
    }
    float error = element_sub(x, stored);
    uint32_t magnitude = element_bits(error) & ELEMENT_ABS;

    tally->signal += (double)x * x;
    tally->noise += (double)error * error;
    tally->clipped += clipped;
    if (magnitude > tally->max_error)
        tally->max_error = magnitude;
}

#ifdef __cplusplus
}
#endif
