/* The search for a range over a histogram: on the host, whatever device counted. Symmetric, [-T, T], or of int8-asym from lo to hi,
 * 0 among it.
 *
 * percentile:P  T is the least magnitude that at least P % of the finite elements do not exceed; lo and hi leave half of the other
 *               elements, rounded down, beyond either end
 * mse           the range by which the codec has the least sum of squared errors, found to 1 % (lo and hi in turn);
 *               where a bin of F32 has room for many values, its elements are taken to lie evenly in it
 * entropy       for int8 and int8-asym: as TensorRT's entropy calibration. 2048 even bins up to the largest magnitude; of the first
 *               128 .. 2048 of them, those whose distribution (what lies beyond counted in the last) diverges the least from
 *               what 128 levels make of it, by Kullback and Leibler (what is empty there counts 1e-4 elements); T is half a bin beyond their end, or the largest magnitude.
 *               lo and hi are -T and T, but no farther than the elements reach, as ONNX Runtime has it */
#pragma once

#include "kernels/codec.h"
#include "kernels/histogram.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if such a range is one for this encoding: of the whole tensor, by a codec that clips to a range. */
bool calibrate_takes(const struct hbm_encoding *encoding, unsigned method, double parameter);
/* What was counted: elements of either sign apart, or all magnitudes as if they were above 0. NULL: there are none. */
struct calibrate_counts {
    const uint64_t *above, *below;
    unsigned dtype;
};

struct calibrate_range {
    float lo, hi;
};

/* Finite elements; and which of them, from 1 on, by magnitude, is the one looked for (percentile), or the last. */
uint64_t calibrate_finite(const uint64_t *bins, unsigned dtype);
uint64_t calibrate_rank(uint64_t finite, unsigned method, double parameter);
/* lo..hi: of the finite elements on one side of 0, by magnitude, the last one that is to lie within; 0: none. */
uint64_t calibrate_side_rank(uint64_t side, uint64_t finite, unsigned method, double parameter);
/* The bin of the element of that rank, which becomes its rank within the bin. There must be so many. */
uint32_t calibrate_bin(const uint64_t *bins, uint64_t *rank);
/* From *range, which is that of the elements of those ranks, to the one looked for. False: memory is out. */
bool calibrate_search(const struct calibrate_counts *counts, const struct hbm_encoding *encoding, unsigned method,
                      struct calibrate_range *range);

#ifdef __cplusplus
}
#endif
