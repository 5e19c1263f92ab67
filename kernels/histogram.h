/* How many elements have which magnitude, of either sign or of one. Of 16-bit floats a bin is one bit pattern; of F32 it is the
 * upper half of one, and a second pass counts what lies in one bin by the lower half. Counts are exact, and the same on every machine. */
#pragma once

#include "kernels/element.h"
#include "proto/vocab.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HISTOGRAM_BINS 32768u /* those of NaN and infinities among them */
#define HISTOGRAM_FINE 65536u /* in one of them */
#define HISTOGRAM_ALL UINT32_MAX

/* Of the finite elements seen so far: tally_key (kernels/tally.h) of the largest, and the complement of that of the least. 0: none. */
struct histogram_ends {
    uint32_t highest, lowest;
};

/* Which elements are counted, by their sign bits. */
enum histogram_side { HISTOGRAM_BOTH, HISTOGRAM_ABOVE, HISTOGRAM_BELOW };

struct histogram_job {
    const void *raw; /* F32, F16 or BF16, aligned to its elements */
    uint64_t count;
    unsigned dtype;
    uint32_t within; /* F32: the bin whose elements are counted by their lower half; HISTOGRAM_ALL: all, by bins */
    struct histogram_ends *ends; /* of both sides; NULL: not asked for; lies where the counts do */
    enum histogram_side side;
};

/* Adds to HISTOGRAM_BINS counters, or HISTOGRAM_FINE of them, and to the ends. */
void histogram_host(const struct histogram_job *job, uint64_t *counts);
/* The same in device memory, asynchronous on `stream` (a cudaStream_t). Returns a cudaError_t as int. */
int histogram_cuda(const struct histogram_job *job, uint64_t *counts, void *stream);

/* The least magnitude of a bin: bin + 1 is the next above it. */
static inline float histogram_value(unsigned dtype, uint32_t bin)
{
    return element_float(dtype == HBM_F16 ? element_f16_up((uint16_t)bin) : bin << 16);
}

/* An element counts if, of the upper half of its pattern (the whole of 16 bits), what the mask leaves is what is wanted. */
static inline uint32_t histogram_mask(const struct histogram_job *job)
{
    return (job->side == HISTOGRAM_BOTH ? 0 : 0x8000u) | (job->within == HISTOGRAM_ALL ? 0 : 0x7fffu);
}

static inline uint32_t histogram_wanted(const struct histogram_job *job)
{
    return (job->side == HISTOGRAM_BELOW ? 0x8000u : 0) | (job->within == HISTOGRAM_ALL ? 0 : job->within);
}

/* The first bin that holds no finite numbers. */
static inline uint32_t histogram_end(unsigned dtype)
{
    return dtype == HBM_F16 ? 0x7c00u : 0x7f80u;
}

#ifdef __cplusplus
}
#endif
