/* What the kernels for F16 and BF16 share: how tiles come into shared memory, which sums a block has, and where
 * they go. */
#pragma once

#include <type_traits>

#include "kernels/matmul/async.cuh"
#include "kernels/matmul/kernels.h"

#define ROWS 128u /* of sums, a block */
#define CHUNK 8u  /* elements in 16 bytes */
#define GROUP 8u  /* blocks below each other that run together, and share columns in the cache */

/* Where a chunk is in a tile. */
template <unsigned DEPTH> static __device__ __forceinline__ unsigned place(unsigned row, unsigned chunk)
{
    return row * DEPTH + (DEPTH == 32 ? chunk ^ row / 2 % 4 : chunk ^ row % 8) * CHUNK;
}

/* Copies HEIGHT rows of raw elements, aligned. */
template <class X, unsigned HEIGHT, unsigned DEPTH, unsigned THREADS> class direct
{
    static constexpr unsigned ROW = DEPTH / CHUNK, STEP = THREADS / ROW;
    const X *from;
    size_t step;
    uint32_t rows, columns;

  public:
    __device__ __forceinline__ direct(const hbm_weights &m, uint32_t row) : step((size_t)STEP * m.columns)
    {
        uint32_t first = row + threadIdx.x / ROW;

        from = (const X *)m.data + (size_t)first * m.columns + threadIdx.x % ROW * CHUNK;
        rows = first < m.rows ? (m.rows - first + STEP - 1) / STEP : 0;
        columns = m.columns;
    }
    __device__ __forceinline__ void begin(X *tile, uint32_t k)
    {
        X *to = tile + place<DEPTH>(threadIdx.x / ROW, threadIdx.x % ROW);

#pragma unroll
        for (unsigned i = 0; i < HEIGHT / STEP; i++)
            copy_async<16>(to + i * STEP * DEPTH, from + i * step + k,
                           i < rows && k + threadIdx.x % ROW * CHUNK < columns);
    }
    __device__ __forceinline__ void end(X *, uint32_t)
    {
    }
    __device__ __forceinline__ void hold(uint32_t)
    {
    }
};

/* The same through registers: what `hold` fetched, `end` puts. */
template <class X, class Store, unsigned HEIGHT, unsigned DEPTH, unsigned THREADS> class converted
{
    hbm_tile<Store, X, HEIGHT, DEPTH, DEPTH, THREADS> held;
    const hbm_weights &m;
    uint32_t row;

  public:
    __device__ __forceinline__ converted(const hbm_weights &matrix, uint32_t from) : m(matrix), row(from)
    {
    }
    __device__ __forceinline__ void begin(X *, uint32_t)
    {
    }
    __device__ __forceinline__ void hold(uint32_t k)
    {
        held.fetch(m, row, k);
    }
    __device__ __forceinline__ void end(X *tile, uint32_t k)
    {
        held.each(m, row, k, [tile](unsigned r, unsigned c, const hbm_chunk<X> &values) {
            *(hbm_chunk<X> *)(tile + place<DEPTH>(r, c / CHUNK)) = values;
        });
    }
};

/* Two sums beside each other; the first in an even column. */
template <class X>
static __device__ __forceinline__ void store_two(const matmul &job, uint32_t row, uint32_t column, float first,
                                                 float second)
{
    X *to = (X *)job.y + (size_t)row * job.w.rows + column;
    struct alignas(4) {
        X at[2];
    } two = {{hbm_from_float<X>(first), hbm_from_float<X>(second)}};

    if (row >= job.x.rows || column >= job.w.rows)
        return;
    if (job.w.rows % 2 == 0 && (uintptr_t)job.y % 4 == 0) {
        *(decltype(two) *)to = two;
        return;
    }
    to[0] = two.at[0];
    if (column + 1 < job.w.rows)
        to[1] = two.at[1];
}

/* What is raw lies so that it can be copied 16 bytes at a time. */
template <class X, class Store> static bool copied(const matmul &job)
{
    bool raw = std::is_same<X, Store>::value;

    return job.x.columns % CHUNK == 0 && (uintptr_t)job.x.data % 16 == 0 &&
           (!raw || (uintptr_t)job.w.data % 16 == 0);
}

/* Which sums a block has: blocks go down GROUP of them, then to the right. */
template <unsigned COLUMNS>
static __device__ __forceinline__ void choose(const matmul &job, uint32_t *row, uint32_t *column)
{
    uint32_t across = (job.w.rows + COLUMNS - 1) / COLUMNS, down = (job.x.rows + ROWS - 1) / ROWS;
    uint32_t first = blockIdx.x / (GROUP * across) * GROUP, in = blockIdx.x % (GROUP * across);
    uint32_t high = min(GROUP, down - first);

    *row = (first + in % high) * ROWS;
    *column = in / high * COLUMNS;
}

template <unsigned COLUMNS> static unsigned blocks(const matmul &job)
{
    return (job.w.rows + COLUMNS - 1) / COLUMNS * ((job.x.rows + ROWS - 1) / ROWS);
}
