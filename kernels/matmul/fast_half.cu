/* F16 and BF16 on tensor cores: a block has 128 x 128 sums, each of its eight warps 64 x 32 as 4 x 2 fragments. The
 * next tiles come into registers while these are worked on, and become x's type as they are put into shared memory.
 * A row there is eight elements longer than it has to be, so that the rows of a fragment start in different banks.
 */
#include <mma.h>

#include "kernels/matmul/kernels.h"

#define BLOCK 128u
#define DEPTH 32u
#define THREADS 256u
#define PITCH (DEPTH + 8)
#define SIDE 16u /* of a fragment */
#define DOWN 4u  /* fragments a warp */
#define ACROSS 2u

using namespace nvcuda;

template <class X, class Store> using tile_of = hbm_tile<Store, X, BLOCK, DEPTH, PITCH, THREADS>;
typedef wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sums;

template <class X>
static __device__ __forceinline__ void multiply(sums (&sum)[DOWN][ACROSS], const X *x, const X *w)
{
#pragma unroll
    for (unsigned at = 0; at < DEPTH; at += SIDE) {
        wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, X, wmma::row_major> a[DOWN];
        wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, X, wmma::col_major> b[ACROSS];

        for (unsigned i = 0; i < DOWN; i++)
            wmma::load_matrix_sync(a[i], x + i * SIDE * PITCH + at, PITCH);
        for (unsigned j = 0; j < ACROSS; j++)
            wmma::load_matrix_sync(b[j], w + j * SIDE * PITCH + at, PITCH);
        for (unsigned i = 0; i < DOWN; i++)
            for (unsigned j = 0; j < ACROSS; j++)
                wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
    }
}

/* By a patch of shared memory that is the warp's own: fragments do not say which lane has what. */
template <class X>
static __device__ __forceinline__ void store(const matmul &job, const sums &sum, float *patch, uint32_t row,
                                             uint32_t column)
{
    unsigned lane = threadIdx.x % 32;

    wmma::store_matrix_sync(patch, sum, SIDE, wmma::mem_row_major);
    __syncwarp();
    for (unsigned i = lane; i < SIDE * SIDE; i += 32) {
        uint32_t r = row + i / SIDE, c = column + i % SIDE;

        if (r < job.x.rows && c < job.w.rows)
            ((X *)job.y)[(size_t)r * job.w.rows + c] = hbm_from_float<X>(patch[i]);
    }
    __syncwarp();
}

template <class X, class Store> static __global__ __launch_bounds__(THREADS) void fast(matmul job)
{
    __shared__ alignas(32) X x[2][BLOCK * PITCH], w[2][BLOCK * PITCH];
    uint32_t row = blockIdx.y * BLOCK, column = blockIdx.x * BLOCK, depth = job.x.columns;
    unsigned warp = threadIdx.x / 32, down = warp / 4 * DOWN * SIDE, across = warp % 4 * ACROSS * SIDE;
    sums sum[DOWN][ACROSS];
    tile_of<X, X> next_x;
    tile_of<X, Store> next_w;

    for (unsigned i = 0; i < DOWN; i++)
        for (unsigned j = 0; j < ACROSS; j++)
            wmma::fill_fragment(sum[i][j], 0.0f);
    next_x.fetch(job.x, row, 0), next_w.fetch(job.w, column, 0);
    next_x.put(x[0], job.x, row, 0), next_w.put(w[0], job.w, column, 0);
    __syncthreads();
    for (uint32_t k = 0, turn = 0; k < depth; k += DEPTH, turn ^= 1) {
        bool more = k + DEPTH < depth;

        if (more)
            next_x.fetch(job.x, row, k + DEPTH), next_w.fetch(job.w, column, k + DEPTH);
        multiply(sum, &x[turn][down * PITCH], &w[turn][across * PITCH]);
        if (more) {
            next_x.put(x[turn ^ 1], job.x, row, k + DEPTH);
            next_w.put(w[turn ^ 1], job.w, column, k + DEPTH);
        }
        __syncthreads();
    }
    float *patch = (float *)&x[0][0] + warp * SIDE * SIDE;
    for (unsigned i = 0; i < DOWN; i++)
        for (unsigned j = 0; j < ACROSS; j++)
            store<X>(job, sum[i][j], patch, row + down + i * SIDE, column + across + j * SIDE);
}

template <class X, class Store> cudaError_t matmul_fast(const matmul &job, cudaStream_t stream)
{
    fast<X, Store>
        <<<dim3((job.w.rows + BLOCK - 1) / BLOCK, (job.x.rows + BLOCK - 1) / BLOCK), THREADS, 0, stream>>>(job);
    return cudaGetLastError();
}

#define MAKE(X, STORE) template cudaError_t matmul_fast<X, STORE>(const matmul &, cudaStream_t);
#define MAKE_ALL(X)                                                                                                \
    MAKE(X, X) MAKE(X, int8_t) MAKE(X, __nv_fp8_e4m3) MAKE(X, __nv_fp8_e5m2) MAKE(X, hbm_int4)
MAKE_ALL(__half) MAKE_ALL(__nv_bfloat16)
