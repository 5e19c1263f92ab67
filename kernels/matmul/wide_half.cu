/* F16 and BF16 on 9.0, whose warp groups multiply from shared memory without registers in between: a block has 128
 * x 256 sums, each of its two groups half of the rows. While a product is under way the tiles after next are
 * brought. */
#include "kernels/matmul/half_tiles.cuh"
#include "kernels/matmul/wgmma.cuh"

#define COLUMNS 256u
#define THREADS 256u
#define DEPTH 64u
#define STAGES 4u

template <class X, class Store> static __global__ __launch_bounds__(THREADS, 1) void wide(matmul job)
{
#if WARP_GROUPS
    constexpr bool raw = std::is_same<X, Store>::value;
    extern __shared__ __align__(1024) uint4 wide_stages[];
    X *x = (X *)wide_stages, *w = x + STAGES * ROWS * DEPTH;
    uint32_t row, column, depth = job.x.columns;
    float sum[128] = {};

    choose<COLUMNS>(job, &row, &column);
    direct<X, ROWS, DEPTH, THREADS> from_x(job.x, row);
    std::conditional_t<raw, direct<X, COLUMNS, DEPTH, THREADS>, converted<X, Store, COLUMNS, DEPTH, THREADS>>
        from_w(job.w, column);
    unsigned group = threadIdx.x / 128;

    for (unsigned s = 0; s < STAGES - 2; s++) {
        from_x.begin(x + s * ROWS * DEPTH, s * DEPTH), from_w.begin(w + s * COLUMNS * DEPTH, s * DEPTH);
        end_stage();
        from_w.hold(s * DEPTH), from_w.end(w + s * COLUMNS * DEPTH, s * DEPTH);
    }
    from_w.hold((STAGES - 2) * DEPTH);
    for (uint32_t k = 0, turn = 0; k < depth; k += DEPTH, turn = (turn + 1) % STAGES) {
        unsigned next = (turn + STAGES - 2) % STAGES; /* the product of what is there has ended, in all warps */
        uint32_t ahead = k + (STAGES - 2) * DEPTH;
        X *next_w = w + next * COLUMNS * DEPTH;

        wait_stages<STAGES - 3>();
        show_to_tensor_cores();
        __syncthreads();
        begin_group();
#pragma unroll
        for (unsigned at = 0; at < DEPTH; at += 16)
            group_multiply_add<X>(sum, tile_at(x + (turn * ROWS + group * 64) * DEPTH) + at / CHUNK,
                                  tile_at(w + turn * COLUMNS * DEPTH) + at / CHUNK);
        end_group();
        from_x.begin(x + next * ROWS * DEPTH, ahead), from_w.begin(next_w, ahead);
        end_stage();
        from_w.end(next_w, ahead), from_w.hold(ahead + DEPTH);
        wait_groups<1>();
    }
    wait_groups<0>();
    settle(sum);
#pragma unroll
    for (unsigned j = 0; j < 32; j++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            store_two<X>(job, row + threadIdx.x / 32 * 16 + i * 8 + threadIdx.x % 32 / 4,
                         column + j * 8 + threadIdx.x % 4 * 2, sum[j * 4 + i * 2], sum[j * 4 + i * 2 + 1]);
#else
    (void)job;
    __trap(); /* matmul_wide_here() says that this is not to be launched */
#endif
}

size_t matmul_wide_bytes(void)
{
    return STAGES * (ROWS + COLUMNS) * DEPTH * sizeof(__half);
}

/* Whether what runs here was made for 9.0 and what only that has; code that the driver made of PTX was not. */
cudaError_t matmul_wide_here(bool *here)
{
    cudaFuncAttributes kernel;
    cudaError_t error = cudaFuncGetAttributes(&kernel, wide<__half, __half>);

    *here = !error && kernel.ptxVersion == 90 && kernel.binaryVersion == 90;
    return error;
}

template <class X, class Store> cudaError_t matmul_wide(const matmul &job, cudaStream_t stream)
{
    size_t bytes = matmul_wide_bytes();
    cudaError_t error =
        cudaFuncSetAttribute(wide<X, Store>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (error)
        return error;
    wide<X, Store><<<blocks<COLUMNS>(job), THREADS, bytes, stream>>>(job);
    return cudaGetLastError();
}

#define MAKE(X, STORE) template cudaError_t matmul_wide<X, STORE>(const matmul &, cudaStream_t);
#define MAKE_ALL(X) MAKE(X, X) MAKE(X, int8_t) MAKE(X, __nv_fp8_e4m3) MAKE(X, __nv_fp8_e5m2) MAKE(X, hbm_int4)
MAKE_ALL(__half) MAKE_ALL(__nv_bfloat16)
