/* The kernels behind hbm_matmul. X is the type of x, y and raw weights: float, __half, __nv_bfloat16; Store is X,
 * int8_t, an fp8 or hbm_int4. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/matmul/hbm_tile.cuh"

struct matmul {
    struct hbm_weights x, w; /* [m][k], [n][k] */
    void *y;                 /* [m][n] */
    unsigned tile;           /* TILED, PADDED; FAST of halves: columns of sums, a block */
};

#define MATMUL_ROWS_MOST 8u
#define MATMUL_WIDE 256u

/* binary32 only, raw: they are there to be read and measured. */
cudaError_t matmul_naive(const struct matmul &job, cudaStream_t stream);
cudaError_t matmul_tiled(const struct matmul &job, bool padded, cudaStream_t stream);

template <class X, class Store> cudaError_t matmul_fast(const struct matmul &job, cudaStream_t stream);
template <class X, class Store> cudaError_t matmul_rows(const struct matmul &job, cudaStream_t stream);
/* F16 and BF16, where rows are aligned to 16 bytes and scales to what 16 bytes of weights hold. */
template <class X, class Store> bool matmul_few_takes(const struct matmul &job);
template <class X, class Store> cudaError_t matmul_few(const struct matmul &job, cudaStream_t stream);
/* F16 and BF16, what matmul_fast() takes for rows aligned to 16 bytes and tile MATMUL_WIDE, where it is `here`. */
size_t matmul_wide_bytes(void);
cudaError_t matmul_wide_here(bool *here);
template <class X, class Store> cudaError_t matmul_wide(const struct matmul &job, cudaStream_t stream);
