/* F16 and BF16 on tensor cores: a block has 128 rows of sums, a warp 64 x 64 of them in registers. Tiles come into
 * a ring of stages in shared memory, raw ones by cp.async, encoded or badly aligned ones through registers, where
 * they become x's type. A row of a tile is four chunks of 16 bytes, which change places by the row, so that eight
 * rows of a matrix are read from all banks (ldmatrix). */
#include "kernels/matmul/half_tiles.cuh"
#include "kernels/matmul/mma.cuh"

#define COLUMNS 128u
#define SIDE 64u /* of a warp's sums */
#define THREADS 128u
#define DEPTH 32u
#define STAGES 3u

/* One stage's part of a warp's sums. */
template <class X> static __device__ __forceinline__ void multiply(float (&sum)[4][8][4], const X *x, const X *w)
{
    unsigned lane = threadIdx.x % 32;

#pragma unroll
    for (unsigned at = 0; at < DEPTH / CHUNK; at += 2) {
        uint32_t a[4][4], b[4][4];

#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            load_matrices(a[i], x + place<DEPTH>(i * 16 + lane % 16, at + lane / 16));
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            load_matrices(b[j], w + place<DEPTH>(j * 16 + lane / 16 * 8 + lane % 8, at + lane / 8 % 2));
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
#pragma unroll
            for (unsigned j = 0; j < 8; j++)
                multiply_add<X>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

/* COPY_X, COPY_W: these are raw and aligned. */
template <class X, class Store, bool COPY_X, bool COPY_W>
static __global__ __launch_bounds__(THREADS, 2) void fast(matmul job)
{
    extern __shared__ uint4 stages[];
    X *x = (X *)stages, *w = x + STAGES * ROWS * DEPTH;
    uint32_t row, column, depth = job.x.columns;
    float sum[4][8][4] = {};

    choose<COLUMNS>(job, &row, &column);
    std::conditional_t<COPY_X, direct<X, ROWS, DEPTH, THREADS>, converted<X, X, ROWS, DEPTH, THREADS>> from_x(job.x,
                                                                                                              row);
    std::conditional_t<COPY_W, direct<X, COLUMNS, DEPTH, THREADS>, converted<X, Store, COLUMNS, DEPTH, THREADS>>
        from_w(job.w, column);
    unsigned warp = threadIdx.x / 32;
    unsigned down = warp / (COLUMNS / SIDE) * SIDE, across = warp % (COLUMNS / SIDE) * SIDE;

    for (unsigned s = 0; s < STAGES - 1; s++) {
        from_x.begin(x + s * ROWS * DEPTH, s * DEPTH), from_w.begin(w + s * COLUMNS * DEPTH, s * DEPTH);
        end_stage();
        from_x.hold(s * DEPTH), from_w.hold(s * DEPTH);
        from_x.end(x + s * ROWS * DEPTH, s * DEPTH), from_w.end(w + s * COLUMNS * DEPTH, s * DEPTH);
    }
    from_x.hold((STAGES - 1) * DEPTH), from_w.hold((STAGES - 1) * DEPTH);
    for (uint32_t k = 0, turn = 0; k < depth; k += DEPTH, turn = turn + 1 == STAGES ? 0 : turn + 1) {
        unsigned next = turn ? turn - 1 : STAGES - 1;
        uint32_t ahead = k + (STAGES - 1) * DEPTH;
        X *next_x = x + next * ROWS * DEPTH, *next_w = w + next * COLUMNS * DEPTH;

        wait_stages<STAGES - 2>();
        __syncthreads();
        from_x.begin(next_x, ahead), from_w.begin(next_w, ahead);
        end_stage();
        from_x.end(next_x, ahead), from_w.end(next_w, ahead);
        from_x.hold(ahead + DEPTH), from_w.hold(ahead + DEPTH);
        multiply<X>(sum, x + (turn * ROWS + down) * DEPTH, w + (turn * COLUMNS + across) * DEPTH);
    }
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
#pragma unroll
        for (unsigned j = 0; j < 8; j++)
            store_two<X>(job, row + down + i * 8 + threadIdx.x % 32 / 4,
                         column + across + j * 8 + threadIdx.x % 4 * 2, sum[i / 2][j][i % 2 * 2],
                         sum[i / 2][j][i % 2 * 2 + 1]);
}

template <class X, class Store, bool COPY_X, bool COPY_W>
static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    auto kernel = fast<X, Store, COPY_X, COPY_W>;
    constexpr unsigned bytes = STAGES * (ROWS + COLUMNS) * DEPTH * sizeof(X);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

    if (error)
        return error;
    kernel<<<blocks<COLUMNS>(job), THREADS, bytes, stream>>>(job);
    return cudaGetLastError();
}

template <class X, class Store> cudaError_t matmul_fast(const matmul &job, cudaStream_t stream)
{
    constexpr bool raw = std::is_same<X, Store>::value;

    if (!copied<X, Store>(job))
        return launch<X, Store, false, false>(job, stream);
    return job.tile == MATMUL_WIDE ? matmul_wide<X, Store>(job, stream) : launch<X, Store, true, raw>(job, stream);
}

#define MAKE(X, STORE) template cudaError_t matmul_fast<X, STORE>(const matmul &, cudaStream_t);
#define MAKE_ALL(X) MAKE(X, X) MAKE(X, int8_t) MAKE(X, __nv_fp8_e4m3) MAKE(X, __nv_fp8_e5m2) MAKE(X, hbm_int4)
MAKE_ALL(__half) MAKE_ALL(__nv_bfloat16)
