/* Weights as hbmd stores them, read tile by tile into shared memory: for kernels that take a quantised buffer as it
 * lies.
 *
 *     __shared__ __half tile[64 * 40];
 *     hbm_tile<int8_t, __half, 64, 32, 40, 256> next;      // 64 x 32 elements, 40 a row in shared memory, 256
 * threads next.fetch(weights, row, column);                    // from device memory into registers; the work on
 * the last tile here
 *     __syncthreads();
 *     next.put(tile, weights, row, column);                // as __half, times their scales; zeros beyond the edges
 *     __syncthreads();
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

/* A matrix, row-major, without gaps. Its element (r, c) is data[r * columns + c] * scale[r * scales_a_row + c /
 * group]. */
struct hbm_weights {
    const void *data;
    const float *scale; /* NULL: there is none */
    uint32_t rows, columns;
    uint32_t scales_a_row; /* 0: the rows share theirs */
    uint32_t group;        /* columns that share one */
};

#define HBM_TILE_CHUNK 8u /* elements that a thread takes at once */

__device__ __forceinline__ float hbm_to_float(float x)
{
    return x;
}
__device__ __forceinline__ float hbm_to_float(__half x)
{
    return __half2float(x);
}
__device__ __forceinline__ float hbm_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
/* By a binary32 of which the low byte is x + 128: conversions of integers run at an eighth of the speed. */
__device__ __forceinline__ float hbm_to_float(int8_t x)
{
    return __uint_as_float(0x4b000000u | (uint32_t)(uint8_t)(x ^ (int8_t)0x80)) - 8388736.0f;
}

__device__ __forceinline__ float hbm_to_float(__nv_fp8_e4m3 x)
{
    return float(x);
}
__device__ __forceinline__ float hbm_to_float(__nv_fp8_e5m2 x)
{
    return float(x);
}

/* An element of codec int4, by itself; in memory there are two a byte, the first in the low bits. */
struct hbm_int4 {
    int8_t value;

    hbm_int4() = default;
    explicit __device__ __forceinline__ hbm_int4(uint32_t bits) : value((int8_t)((int)((bits & 15u) ^ 8u) - 8))
    {
    }
    explicit __device__ __forceinline__ hbm_int4(float x) : value((int8_t)x)
    {
    }
};
__device__ __forceinline__ float hbm_to_float(hbm_int4 x)
{
    return hbm_to_float(x.value);
}

/* Element i of a buffer. */
template <class Store> __device__ __forceinline__ Store hbm_stored(const void *data, size_t i)
{
    return ((const Store *)data)[i];
}
template <> __device__ __forceinline__ hbm_int4 hbm_stored<hbm_int4>(const void *data, size_t i)
{
    return hbm_int4((uint32_t)((const uint8_t *)data)[i / 2] >> i % 2 * 4);
}

template <class To> __device__ __forceinline__ To hbm_from_float(float x);
template <> __device__ __forceinline__ float hbm_from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __half hbm_from_float<__half>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 hbm_from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Where an element's scale is. */
__device__ __forceinline__ const float *hbm_scale_at(const hbm_weights &w, uint32_t row, uint32_t column)
{
    return w.scale + (size_t)row * w.scales_a_row + (column < w.group ? 0 : column / w.group);
}

template <class Store>
__device__ __forceinline__ float hbm_element(const hbm_weights &w, uint32_t row, uint32_t column)
{
    float x = hbm_to_float(hbm_stored<Store>(w.data, (size_t)row * w.columns + column));

    return w.scale ? x * *hbm_scale_at(w, row, column) : x;
}

/* HBM_TILE_CHUNK elements as they are stored, in as few loads as their size takes. */
template <class Store>
struct alignas(sizeof(Store) * HBM_TILE_CHUNK > 16 ? 16 : sizeof(Store) * HBM_TILE_CHUNK) hbm_chunk {
    Store element[HBM_TILE_CHUNK];

    __device__ __forceinline__ void set(unsigned j, Store to)
    {
        element[j] = to;
    }
    __device__ __forceinline__ float at(unsigned j) const
    {
        return hbm_to_float(element[j]);
    }
};
template <> struct hbm_chunk<hbm_int4> {
    uint32_t eight;

    __device__ __forceinline__ void set(unsigned j, hbm_int4 to)
    {
        eight |= ((uint32_t)to.value & 15u) << 4 * j; /* it was 0 */
    }
    __device__ __forceinline__ float at(unsigned j) const
    {
        return __uint_as_float(0x4b000000u | ((eight >> 4 * j & 15u) ^ 8u)) - 8388616.0f;
    }
};

/* Where the chunk is that starts with element i, aligned, of a buffer. */
template <class Store> __device__ __forceinline__ const hbm_chunk<Store> *hbm_chunk_at(const void *data, size_t i)
{
    return (const hbm_chunk<Store> *)data + i / HBM_TILE_CHUNK;
}

/* ROWS x COLUMNS elements of stored type Store as type To, PITCH a row in shared memory, by THREADS threads. */
template <class Store, class To, unsigned ROWS, unsigned COLUMNS, unsigned PITCH, unsigned THREADS> class hbm_tile
{
    static constexpr unsigned ROW_CHUNKS = COLUMNS / HBM_TILE_CHUNK;
    static constexpr unsigned CHUNKS = ROWS * ROW_CHUNKS / THREADS;
    static_assert(COLUMNS % HBM_TILE_CHUNK == 0 && CHUNKS * THREADS == ROWS * ROW_CHUNKS,
                  "each thread has whole chunks");

    hbm_chunk<Store> chunk[CHUNKS];
    float scale[CHUNKS];

    static __device__ __forceinline__ unsigned index(unsigned i)
    {
        return i * THREADS + threadIdx.x;
    }
    static __device__ __forceinline__ void load(hbm_chunk<Store> &to, const hbm_weights &w, uint32_t row,
                                                uint32_t column, bool whole)
    {
        size_t from = (size_t)row * w.columns + column;

        if (whole && row < w.rows && column + HBM_TILE_CHUNK <= w.columns) {
            to = *hbm_chunk_at<Store>(w.data, from);
            return;
        }
        to = {};
        for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
            if (row < w.rows && column + j < w.columns)
                to.set(j, hbm_stored<Store>(w.data, from + j));
    }

  public:
    __device__ __forceinline__ void fetch(const hbm_weights &w, uint32_t row, uint32_t column)
    {
        bool whole = w.columns % HBM_TILE_CHUNK == 0 && (uintptr_t)w.data % alignof(hbm_chunk<Store>) == 0;
        bool one_scale = w.group % HBM_TILE_CHUNK == 0;

#pragma unroll
        for (unsigned i = 0; i < CHUNKS; i++) {
            uint32_t r = row + index(i) / ROW_CHUNKS, c = column + index(i) % ROW_CHUNKS * HBM_TILE_CHUNK;

            load(chunk[i], w, r, c, whole);
            scale[i] = w.scale && one_scale && r < w.rows && c < w.columns ? *hbm_scale_at(w, r, c) : 1.0f;
        }
    }

    /* `put` for each chunk: (its row in the tile, its first column, its values). */
    template <class Put>
    __device__ __forceinline__ void each(const hbm_weights &w, uint32_t row, uint32_t column, Put put) const
    {
        bool own_scales = w.scale && w.group % HBM_TILE_CHUNK;

#pragma unroll
        for (unsigned i = 0; i < CHUNKS; i++) {
            unsigned r = index(i) / ROW_CHUNKS, c = index(i) % ROW_CHUNKS * HBM_TILE_CHUNK;
            float x[HBM_TILE_CHUNK];
            hbm_chunk<To> values;

#pragma unroll
            for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
                x[j] = chunk[i].at(j) * scale[i];
            if (own_scales)
                for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
                    if (row + r < w.rows && column + c + j < w.columns)
                        x[j] *= *hbm_scale_at(w, row + r, column + c + j);
#pragma unroll
            for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
                values.set(j, hbm_from_float<To>(x[j]));
            put(r, c, values);
        }
    }

    __device__ __forceinline__ void put(To *tile, const hbm_weights &w, uint32_t row, uint32_t column) const
    {
        each(w, row, column, [tile](unsigned r, unsigned c, const hbm_chunk<To> &values) {
#pragma unroll
            for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
                tile[r * PITCH + c + j] = values.element[j];
        });
    }
    /* PITCH is then of a column. */
    __device__ __forceinline__ void put_transposed(To *tile, const hbm_weights &w, uint32_t row,
                                                   uint32_t column) const
    {
        each(w, row, column, [tile](unsigned r, unsigned c, const hbm_chunk<To> &values) {
#pragma unroll
            for (unsigned j = 0; j < HBM_TILE_CHUNK; j++)
                tile[(c + j) * PITCH + r] = values.element[j];
        });
    }
};
