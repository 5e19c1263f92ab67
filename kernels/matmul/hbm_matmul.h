/* y = x w^T on attached buffers: x [m][k] activations, w [n][k] weights as checkpoints have them (torch's Linear),
 * raw or as hbmd's codecs store them, y [m][n]. Row-major, without gaps, any m, n and k. Sums are binary32.
 *
 * A ladder of kernels that compute the same: tests/bench/matmul_bench.cu prints what each step gains. Quantised
 * weights become elements of x's type on their way into shared memory (hbm_tile.cuh). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "proto/vocab.h"

enum hbm_matmul_kernel {
    HBM_MATMUL_AUTO,   /* ROWS for up to 8 rows of x, else FAST */
    HBM_MATMUL_NAIVE,  /* F32, raw: a thread an element, all from device memory */
    HBM_MATMUL_TILED,  /* F32, raw: tiles in shared memory, whose columns lie in one or two banks */
    HBM_MATMUL_PADDED, /* the same with rows one word longer: columns lie in all banks */
    HBM_MATMUL_FAST,   /* vectors, register tiles, two buffers; tensor cores for F16 and BF16 */
    HBM_MATMUL_ROWS,   /* up to 8 rows of x: rows of w are read once, at the speed of memory;
                        * tensor cores for F16 and BF16 */
};

struct hbm_matmul {
    unsigned kernel; /* enum hbm_matmul_kernel */
    unsigned dtype;  /* of x and y, and of raw weights: HBM_F32, HBM_F16 or HBM_BF16 */
    uint32_t m, n, k;
    const void *x, *w;
    void *y;
    struct hbm_encoding encoding; /* of w: raw, or int8, fp8 or int4 in any granularity that it takes */
    const float *scale;           /* of w, as hbmd lays scales out; NULL: raw */
    /* TILED, PADDED: 16, 32, 64 or 128 a side; FAST of F16 and BF16: 128 or 256 columns, of which the latter takes a
     * device of compute capability 9.0, and rows that are aligned to 16 bytes, without which it is 128. 0: the largest
     * that the device lets a block have. */
    unsigned tile;
};

/* Queued on `stream` (a cudaStream_t) of the current device; the memory is that device's, or reachable from there.
 * Returns a cudaError_t as int; cudaErrorInvalidValue comes with the reason in `why` (of `size` bytes, may be
 * NULL), nothing queued. */
int hbm_matmul(const struct hbm_matmul *job, void *stream, char *why, size_t size);
/* Bytes of shared memory that a tile takes, of TILED (padded = 0) or PADDED. */
size_t hbm_matmul_tile_bytes(unsigned tile, int padded);

#ifdef __cplusplus
}
#endif
