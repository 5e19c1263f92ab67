/* Few rows of x, as in decoding: what counts is that w is read once, at the speed of memory. A warp has WIDE rows
 * of w, and its lanes 16 bytes of each at a time; x comes from the cache. What tensor cores can take is theirs:
 * rows_half.cu. */
#include <type_traits>

#include "kernels/matmul/kernels.h"

#define WARPS 8u
#define WIDE 2u

/* 16 bytes of stored elements. */
template <class Store> struct alignas(16) run {
    static constexpr unsigned N = 16 / sizeof(Store);
    Store element[N];
};

template <class Store>
static __device__ __forceinline__ void read_run(run<Store> &to, const void *data, size_t i)
{
    to = *(const run<Store> *)((const Store *)data + i);
}
template <> __device__ __forceinline__ void read_run<hbm_int4>(run<hbm_int4> &to, const void *data, size_t i)
{
    uint2 both = ((const uint2 *)data)[i / 16];

#pragma unroll
    for (unsigned j = 0; j < 16; j++)
        to.element[j] = hbm_int4((j < 8 ? both.x : both.y) >> j % 8 * 4);
}

template <class X, unsigned N>
static __device__ __forceinline__ void read_x(float (&to)[N], const X *from, bool whole, uint32_t left)
{
    if (whole) {
        run<X> part[N * sizeof(X) / 16];
#pragma unroll
        for (unsigned i = 0; i < N * sizeof(X) / 16; i++)
            part[i] = ((const run<X> *)from)[i];
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            to[i] = hbm_to_float(part[i / run<X>::N].element[i % run<X>::N]);
        return;
    }
    for (unsigned i = 0; i < N; i++)
        to[i] = i < left ? hbm_to_float(from[i]) : 0.0f;
}

template <class Store, unsigned N>
static __device__ __forceinline__ void read_w(float (&to)[N], const hbm_weights &w, uint32_t row, uint32_t k,
                                              bool whole, bool one_scale)
{
    size_t from = (size_t)row * w.columns + k;
    float scale = w.scale && one_scale ? *hbm_scale_at(w, row, k) : 1.0f;

    if (whole) {
        run<Store> part;
        read_run<Store>(part, w.data, from);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            to[i] = hbm_to_float(part.element[i]) * scale;
    } else {
        for (unsigned i = 0; i < N; i++)
            to[i] = k + i < w.columns ? hbm_to_float(hbm_stored<Store>(w.data, from + i)) * scale : 0.0f;
    }
    if (w.scale && !one_scale)
        for (unsigned i = 0; i < N; i++)
            to[i] *= k + i < w.columns ? *hbm_scale_at(w, row, k + i) : 0.0f;
}

static __device__ __forceinline__ float sum_of_warp(float x)
{
    for (unsigned by = 16; by; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

/* M: rows of x, rounded up; what is beyond is read from the last one, and not stored. */
template <class X, class Store, unsigned M> static __global__ __launch_bounds__(WARPS * 32) void rows(matmul job)
{
    constexpr unsigned N = run<Store>::N;
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * WIDE, columns = job.w.columns;
    unsigned lane = threadIdx.x % 32;
    bool aligned = columns % N == 0 && columns * sizeof(X) % 16 == 0 && (uintptr_t)job.w.data % 16 == 0 &&
                   (uintptr_t)job.x.data % 16 == 0;
    bool one_scale = job.w.group % N == 0;
    float sum[M][WIDE] = {};

    if (first >= job.w.rows)
        return;
    for (uint32_t k = lane * N; k < columns; k += 32 * N) {
        bool whole = aligned && k + N <= columns;
        float w[WIDE][N];
#pragma unroll
        for (unsigned j = 0; j < WIDE; j++)
            read_w<Store, N>(w[j], job.w, min(first + j, job.w.rows - 1), k, whole, one_scale);
#pragma unroll
        for (unsigned i = 0; i < M; i++) {
            float x[N];

            read_x<X, N>(x, (const X *)job.x.data + (size_t)min(i, job.x.rows - 1) * columns + k, whole,
                         columns - k);
#pragma unroll
            for (unsigned j = 0; j < WIDE; j++)
#pragma unroll
                for (unsigned e = 0; e < N; e++)
                    sum[i][j] = fmaf(x[e], w[j][e], sum[i][j]);
        }
    }
    for (unsigned i = 0; i < M; i++)
        for (unsigned j = 0; j < WIDE; j++) {
            float all = sum_of_warp(sum[i][j]);

            if (lane == 0 && i < job.x.rows && first + j < job.w.rows)
                ((X *)job.y)[(size_t)i * job.w.rows + first + j] = hbm_from_float<X>(all);
        }
}

template <class X, class Store, unsigned M> static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    rows<X, Store, M><<<(job.w.rows + WARPS * WIDE - 1) / (WARPS * WIDE), WARPS * 32, 0, stream>>>(job);
    return cudaGetLastError();
}

template <class X, class Store> cudaError_t matmul_rows(const matmul &job, cudaStream_t stream)
{
    if constexpr (!std::is_same<X, float>::value)
        if (matmul_few_takes<X, Store>(job))
            return matmul_few<X, Store>(job, stream);
    if (job.x.rows == 1)
        return launch<X, Store, 1>(job, stream);
    return launch<X, Store, MATMUL_ROWS_MOST>(job, stream);
}

#define MAKE(X, STORE) template cudaError_t matmul_rows<X, STORE>(const matmul &, cudaStream_t);
#define MAKE_ALL(X)                                                                                                \
    MAKE(X, X) MAKE(X, int8_t) MAKE(X, __nv_fp8_e4m3) MAKE(X, __nv_fp8_e5m2) MAKE(X, hbm_int4)
MAKE_ALL(float) MAKE_ALL(__half) MAKE_ALL(__nv_bfloat16)
