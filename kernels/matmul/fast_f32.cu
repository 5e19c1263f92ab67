/* binary32: a block has 128 x 128 sums, a thread 8 x 8 of them in registers. Both tiles lie in shared memory by
 * columns, so that what a thread needs of one k are four loads of 16 bytes; the next tiles come from device memory
 * into registers while these are worked on. */
#include "kernels/matmul/kernels.h"

#define BLOCK 128u /* sums along a side */
#define DEPTH 16u
#define THREADS 256u
#define PITCH (BLOCK + 4)
#define HALF (BLOCK / 2)

template <class Store> using tile_of = hbm_tile<Store, float, BLOCK, DEPTH, PITCH, THREADS>;

/* Four in each half of the block: the 16 threads beside each other read 16 x 16 bytes in a row. */
static __device__ __forceinline__ void read_eight(float (&to)[8], const float *column, unsigned thread)
{
    *(float4 *)&to[0] = *(const float4 *)&column[thread * 4];
    *(float4 *)&to[4] = *(const float4 *)&column[HALF + thread * 4];
}

static __device__ __forceinline__ unsigned place(unsigned thread, unsigned i)
{
    return (i / 4) * HALF + thread * 4 + i % 4;
}

template <class Store> static __global__ __launch_bounds__(THREADS, 2) void fast(matmul job)
{
    __shared__ alignas(16) float x[2][DEPTH * PITCH], w[2][DEPTH * PITCH];
    uint32_t row = blockIdx.y * BLOCK, column = blockIdx.x * BLOCK, depth = job.x.columns;
    unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
    float sum[8][8] = {};
    tile_of<float> next_x;
    tile_of<Store> next_w;

    next_x.fetch(job.x, row, 0), next_w.fetch(job.w, column, 0);
    next_x.put_transposed(x[0], job.x, row, 0), next_w.put_transposed(w[0], job.w, column, 0);
    __syncthreads();
    for (uint32_t k = 0, turn = 0; k < depth; k += DEPTH, turn ^= 1) {
        bool more = k + DEPTH < depth;

        if (more)
            next_x.fetch(job.x, row, k + DEPTH), next_w.fetch(job.w, column, k + DEPTH);
#pragma unroll
        for (unsigned at = 0; at < DEPTH; at++) {
            float a[8], b[8];

            read_eight(a, &x[turn][at * PITCH], down);
            read_eight(b, &w[turn][at * PITCH], across);
#pragma unroll
            for (unsigned i = 0; i < 8; i++)
#pragma unroll
                for (unsigned j = 0; j < 8; j++)
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        if (more) {
            next_x.put_transposed(x[turn ^ 1], job.x, row, k + DEPTH);
            next_w.put_transposed(w[turn ^ 1], job.w, column, k + DEPTH);
        }
        __syncthreads();
    }
    for (unsigned i = 0; i < 8; i++)
        for (unsigned j = 0; j < 8; j++) {
            uint32_t r = row + place(down, i), c = column + place(across, j);

            if (r < job.x.rows && c < job.w.rows)
                ((float *)job.y)[(size_t)r * job.w.rows + c] = sum[i][j];
        }
}

template <class Store> static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    fast<Store>
        <<<dim3((job.w.rows + BLOCK - 1) / BLOCK, (job.x.rows + BLOCK - 1) / BLOCK), THREADS, 0, stream>>>(job);
    return cudaGetLastError();
}

#define MAKE(STORE)                                                                                                \
    template <> cudaError_t matmul_fast<float, STORE>(const matmul &job, cudaStream_t stream)                      \
    {                                                                                                              \
        return launch<STORE>(job, stream);                                                                         \
    }
MAKE(float) MAKE(int8_t) MAKE(__nv_fp8_e4m3) MAKE(__nv_fp8_e5m2) MAKE(hbm_int4)
