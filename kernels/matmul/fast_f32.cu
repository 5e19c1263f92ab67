/* binary32: a block has 256 x 128 sums, a warp 64 x 64 of them, a thread 16 x 8 in registers. Both tiles lie in
 * shared memory by columns, so that what a thread needs of one k are six loads of 16 bytes. Raw elements are copied
 * there four bytes at a time without waiting (cp.async): this transposes, and takes any size and alignment. Encoded
 * weights go through registers, and leave half of the sums. */
#include <type_traits>

#include "kernels/matmul/async.cuh"
#include "kernels/matmul/kernels.h"

#define COLUMNS 128u /* of sums, a block */
#define THREADS 256u
#define PITCH(side) ((side) + 4) /* four lanes of eight k each write to banks of their own */
#define STEP 32u                 /* rows that the block copies at once */

/* This thread's share in copying a tile: every 32nd row, and every 8th element of it. */
template <unsigned SIDE, unsigned DEPTH> class copier
{
    const float *from;
    size_t step;
    uint32_t rows, columns;

  public:
    __device__ __forceinline__ copier(const hbm_weights &m, uint32_t row) : step((size_t)STEP * m.columns)
    {
        uint32_t first = row + threadIdx.x / 8;

        from = (const float *)m.data + (size_t)first * m.columns + threadIdx.x % 8;
        rows = first < m.rows ? (m.rows - first + STEP - 1) / STEP : 0;
        columns = m.columns;
    }
    __device__ __forceinline__ void copy(float *tile, uint32_t k) const
    {
        float *to = tile + threadIdx.x % 8 * PITCH(SIDE) + threadIdx.x / 8;

#pragma unroll
        for (unsigned at = 0; at < DEPTH; at += 8)
#pragma unroll
            for (unsigned i = 0; i < SIDE / STEP; i++)
                copy_async<4>(to + at * PITCH(SIDE) + i * STEP, from + i * step + k + at,
                              i < rows && k + at + threadIdx.x % 8 < columns);
    }
};

/* Four from each part of the warp's span. */
template <unsigned PART, unsigned N> static __device__ __forceinline__ void read(float (&to)[N], const float *from)
{
#pragma unroll
    for (unsigned i = 0; i < N / 4; i++)
        *(float4 *)&to[i * 4] = *(const float4 *)(from + i * PART);
}

/* A thread has EACH x 8 sums: with 16 there is one block a multiprocessor, with 8 there are two. */
template <class Store, unsigned EACH, unsigned DEPTH, unsigned STAGES>
static __global__ __launch_bounds__(THREADS, 16 / EACH) void fast(matmul job)
{
    constexpr bool raw = std::is_same<Store, float>::value;
    constexpr unsigned ROWS = 16 * EACH;
    __shared__ alignas(16) float x[STAGES][DEPTH * PITCH(ROWS)], w[STAGES][DEPTH * PITCH(COLUMNS)];
    uint32_t row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS, depth = job.x.columns;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Neighbours in a warp share a column, and every other lane a row: 16 bytes for each of 32 lanes are then two
     * passes over the banks instead of four. */
    unsigned down = warp / 2 * 4 * EACH + (lane / 16 * 2 + lane % 2) * 4, across = warp % 2 * 64 + lane / 2 % 8 * 4;
    copier<ROWS, DEPTH> from_x(job.x, row);
    copier<COLUMNS, DEPTH> from_w(job.w, column);
    std::conditional_t<raw, char, hbm_tile<Store, float, COLUMNS, DEPTH, PITCH(COLUMNS), THREADS>> held;
    float sum[EACH][8] = {};

    for (unsigned s = 0; s < STAGES - 1; s++) {
        from_x.copy(x[s], s * DEPTH);
        if constexpr (raw)
            from_w.copy(w[s], s * DEPTH);
        else
            held.fetch(job.w, column, s * DEPTH), held.put_transposed(w[s], job.w, column, s * DEPTH);
        end_stage();
    }
    for (uint32_t k = 0, turn = 0; k < depth; k += DEPTH, turn = turn + 1 == STAGES ? 0 : turn + 1) {
        unsigned next = turn ? turn - 1 : STAGES - 1;
        uint32_t ahead = k + (STAGES - 1) * DEPTH;

        wait_stages<STAGES - 2>();
        __syncthreads();
        from_x.copy(x[next], ahead);
        if constexpr (raw)
            from_w.copy(w[next], ahead);
        else
            held.fetch(job.w, column, ahead);
        end_stage();
#pragma unroll
        for (unsigned at = 0; at < DEPTH; at++) {
            float a[EACH], b[8];

            read<16>(a, &x[turn][at * PITCH(ROWS) + down]);
            read<32>(b, &w[turn][at * PITCH(COLUMNS) + across]);
#pragma unroll
            for (unsigned i = 0; i < EACH; i++)
#pragma unroll
                for (unsigned j = 0; j < 8; j++)
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        if constexpr (!raw)
            held.put_transposed(w[next], job.w, column, ahead);
    }
    bool fours = job.w.rows % 4 == 0 && (uintptr_t)job.y % 16 == 0;
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < 8; j += 4) {
            uint32_t r = row + down + i / 4 * 16 + i % 4, c = column + across + j * 8;
            float *to = (float *)job.y + (size_t)r * job.w.rows + c;

            if (r >= job.x.rows)
                continue;
            if (fours && c < job.w.rows)
                *(float4 *)to = *(const float4 *)&sum[i][j];
            else
#pragma unroll
                for (unsigned e = 0; e < 4; e++)
                    if (c + e < job.w.rows)
                        to[e] = sum[i][j + e];
        }
}

template <class Store, unsigned EACH, unsigned DEPTH, unsigned STAGES>
static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    dim3 blocks((job.w.rows + COLUMNS - 1) / COLUMNS, (job.x.rows + 16 * EACH - 1) / (16 * EACH));

    fast<Store, EACH, DEPTH, STAGES><<<blocks, THREADS, 0, stream>>>(job);
    return cudaGetLastError();
}

template <> cudaError_t matmul_fast<float, float>(const matmul &job, cudaStream_t stream)
{
    return launch<float, 16, 8, 3>(job, stream);
}

#define MAKE(STORE)                                                                                                \
    template <> cudaError_t matmul_fast<float, STORE>(const matmul &job, cudaStream_t stream)                      \
    {                                                                                                              \
        return launch<STORE, 8, 16, 2>(job, stream);                                                               \
    }
MAKE(int8_t) MAKE(__nv_fp8_e4m3) MAKE(__nv_fp8_e5m2) MAKE(hbm_int4)
