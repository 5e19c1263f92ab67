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
    /* From here on what costs an element too much to be summed while it is encoded: kernels do it in a pass of its own. */
    uint32_t max_relative; /* bits of the largest |x - x'|/|x|, of what is not 0 */
    double inlier_signal;  /* the sums over what is not clipped */
    double inlier_noise;
    uint64_t zeroed;
    uint64_t nans;
    uint32_t highest; /* tally_key of the largest x */
    uint32_t lowest;  /* the complement of the smallest one's: 0 before any */
    uint32_t overflow; /* not 0: it did not fit where it was to lie, and was not encoded */
    uint32_t unused;
};

/* Keys of floats that order as they do, and are above 0. */
ELEMENT_FN uint32_t tally_key(float x)
{
    uint32_t bits = element_bits(x);

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

ELEMENT_FN float tally_of_key(uint32_t key)
{
    return element_float(key >> 31 ? key & ELEMENT_ABS : ~key);
}

/* Fills *receipt except seconds and bytes_*. */
void codec_receipt_of(const struct codec_tally *tally, uint64_t elements, struct hbm_receipt *receipt);
/* The rest of it, with min/max as the method: the range of what was seen, where the codec has one. */
void codec_quality_of(const struct codec_tally *tally, const struct hbm_encoding *encoding, struct hbm_quality *quality);

static inline void tally_raise(uint32_t *most, uint32_t value)
{
    if (value > *most)
        *most = value;
}

/* What another part of the same tensor came to. */
static inline void codec_tally_join(struct codec_tally *tally, const struct codec_tally *part)
{
    tally->signal += part->signal;
    tally->noise += part->noise;
    tally->clipped += part->clipped;
    tally->nonfinite += part->nonfinite;
    tally->inlier_signal += part->inlier_signal;
    tally->inlier_noise += part->inlier_noise;
    tally->zeroed += part->zeroed;
    tally->nans += part->nans;
    tally_raise(&tally->max_error, part->max_error);
    tally_raise(&tally->max_relative, part->max_relative);
    tally_raise(&tally->highest, part->highest);
    tally_raise(&tally->lowest, part->lowest);
    tally->overflow |= part->overflow;
}

static inline void codec_tally_add(struct codec_tally *tally, float x, float stored, bool clipped)
{
    if (!element_finite(x)) {
        tally->nonfinite++;
        tally->nans += x != x;
        return;
    }
    float error = element_sub(x, stored);
    uint32_t magnitude = element_bits(error) & ELEMENT_ABS;

    tally->signal += (double)x * x;
    tally->noise += (double)error * error;
    tally->clipped += clipped;
    tally->inlier_signal += clipped ? 0 : (double)x * x;
    tally->inlier_noise += clipped ? 0 : (double)error * error;
    tally->zeroed += x != 0 && stored == 0;
    tally_raise(&tally->max_error, magnitude);
    if (x != 0)
        tally_raise(&tally->max_relative, element_bits(element_div(error, x)) & ELEMENT_ABS);
    tally_raise(&tally->highest, tally_key(x));
    tally_raise(&tally->lowest, ~tally_key(x));
}

#ifdef __cplusplus
}
#endif
