/* The search for a range over a histogram: on the host, whatever device counted.
 *
 * percentile:P  the least magnitude that at least P % of the finite elements do not exceed
 * mse           the magnitude T by which a codec with the range [-T, T] has the least sum of squared errors, found to 1 %;
 *               where a bin of F32 has room for many values, its elements are taken to lie evenly in it
 * entropy       for int8: as TensorRT's entropy calibration. 2048 even bins up to the largest magnitude; of the first
 *               128 .. 2048 of them, those whose distribution (what lies beyond counted in the last) diverges the least from
 *               what 128 levels make of it, by Kullback and Leibler (what is empty there counts 1e-4 elements); T is half a bin beyond their end, or the largest magnitude */
#pragma once

#include "kernels/codec.h"
#include "kernels/histogram.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if such a range is one for this encoding: of the whole tensor, by a codec that clips to a range. */
bool calibrate_takes(const struct hbm_encoding *encoding, unsigned method, double parameter);
/* Finite elements; and which of them, from 1 on, by magnitude, is the one looked for (percentile), or the last. */
uint64_t calibrate_finite(const uint64_t *bins, unsigned dtype);
uint64_t calibrate_rank(uint64_t finite, unsigned method, double parameter);
/* The bin of the element of that rank, which becomes its rank within the bin. There must be so many. */
uint32_t calibrate_bin(const uint64_t *bins, uint64_t *rank);
/* T, from the bins and the magnitude of that rank. False: memory is out. */
bool calibrate_search(const uint64_t *bins, unsigned dtype, const struct hbm_encoding *encoding, unsigned method, float most,
                      float *magnitude);

#ifdef __cplusplus
}
#endif
