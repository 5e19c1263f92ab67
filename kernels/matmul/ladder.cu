/* The steps that teach: without shared memory, with it, and without bank conflicts. */
#include "kernels/matmul/hbm_matmul.h"
#include "kernels/matmul/kernels.h"

#define SIDE 16u /* threads along a side of a block */

static __global__ void naive(matmul job)
{
    uint32_t row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0;

    if (row >= job.x.rows || column >= job.w.rows)
        return;
    for (uint32_t k = 0; k < job.x.columns; k++)
        sum = fmaf(hbm_element<float>(job.x, row, k), hbm_element<float>(job.w, column, k), sum);
    ((float *)job.y)[(size_t)row * job.w.rows + column] = sum;
}

template <unsigned TILE, unsigned PITCH>
static __device__ __forceinline__ void load(float *tile, const hbm_weights &m, uint32_t row, uint32_t column)
{
    for (unsigned i = threadIdx.y * SIDE + threadIdx.x; i < TILE * TILE; i += SIDE * SIDE) {
        uint32_t r = i / TILE, c = i % TILE;

        tile[r * PITCH + c] =
            row + r < m.rows && column + c < m.columns ? hbm_element<float>(m, row + r, column + c) : 0.0f;
    }
}

/* A thread has every 16th row and column of the tile. In the inner loop the threads of a warp read 16 rows of w's
 * tile at the same column: with a row of 16, 32, 64 or 128 words these are in one or two banks; with one word more,
 * in 16. */
template <unsigned TILE, unsigned PITCH> static __global__ void tiled(matmul job)
{
    constexpr unsigned EACH = TILE / SIDE;
    extern __shared__ float tiles[];
    float *x = tiles, *w = tiles + TILE * PITCH;
    uint32_t row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sum[EACH][EACH] = {};

    for (uint32_t k = 0; k < job.x.columns; k += TILE) {
        load<TILE, PITCH>(x, job.x, row, k);
        load<TILE, PITCH>(w, job.w, column, k);
        __syncthreads();
        for (unsigned at = 0; at < TILE; at++)
#pragma unroll
            for (unsigned i = 0; i < EACH; i++)
#pragma unroll
                for (unsigned j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(x[(threadIdx.y + i * SIDE) * PITCH + at],
                                     w[(threadIdx.x + j * SIDE) * PITCH + at], sum[i][j]);
        __syncthreads();
    }
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned j = 0; j < EACH; j++) {
            uint32_t r = row + threadIdx.y + i * SIDE, c = column + threadIdx.x + j * SIDE;

            if (r < job.x.rows && c < job.w.rows)
                ((float *)job.y)[(size_t)r * job.w.rows + c] = sum[i][j];
        }
}

size_t hbm_matmul_tile_bytes(unsigned tile, int padded)
{
    return 2 * sizeof(float) * tile * (tile + (padded != 0));
}

static dim3 blocks_of(const matmul &job, unsigned tile)
{
    return dim3((job.w.rows + tile - 1) / tile, (job.x.rows + tile - 1) / tile);
}

cudaError_t matmul_naive(const matmul &job, cudaStream_t stream)
{
    naive<<<blocks_of(job, SIDE), dim3(SIDE, SIDE), 0, stream>>>(job);
    return cudaGetLastError();
}

template <unsigned TILE, unsigned PITCH> static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    size_t bytes = hbm_matmul_tile_bytes(TILE, PITCH > TILE);
    cudaError_t error =
        cudaFuncSetAttribute(tiled<TILE, PITCH>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (error)
        return error;
    tiled<TILE, PITCH><<<blocks_of(job, TILE), dim3(SIDE, SIDE), bytes, stream>>>(job);
    return cudaGetLastError();
}

template <unsigned TILE> static cudaError_t either(const matmul &job, bool padded, cudaStream_t stream)
{
    return padded ? launch<TILE, TILE + 1>(job, stream) : launch<TILE, TILE>(job, stream);
}

cudaError_t matmul_tiled(const matmul &job, bool padded, cudaStream_t stream)
{
    switch (job.tile) {
    case 16:
        return either<16>(job, padded, stream);
    case 32:
        return either<32>(job, padded, stream);
    case 64:
        return either<64>(job, padded, stream);
    default:
        return either<128>(job, padded, stream);
    }
}
