/* Few rows of x, F16 or BF16, on tensor cores, at the speed at which memory delivers w: a block has 16 rows of w,
 * its warps take turns along k, and sum up at the end. Tensor cores sum over k in any order, so a lane takes 16
 * bytes of w as they lie, and the same elements of x; they keep the sums in binary32 and leave the other units to
 * turning codes into halves.
 *
 * Where scales stand still for a row, they multiply its sum; where they do for what the four lanes of a row read at
 * once, that part of the sum; else each element, in binary32. */
#include <type_traits>

#include "kernels/matmul/expand.cuh"
#include "kernels/matmul/kernels.h"
#include "kernels/matmul/mma.cuh"

#define WARPS 8u
#define AHEAD 4u /* reads of 16 bytes that a lane has under way, of each of its two rows */
#define SIDE 16u

enum scales { BY_ROW, BY_STEP, BY_LANE };

/* Elements of w in 16 bytes, and what the four lanes of a row take at once. */
template <class Store>
static constexpr unsigned run_of = std::is_same<Store, hbm_int4>::value ? 32 : 16 / sizeof(Store);
template <class Store> static constexpr unsigned step_of = 4 * run_of<Store>;

/* Weights pass through once, in order: the first cache keeps x instead, and the second may fetch what follows. */
static __device__ __forceinline__ uint4 read_once(const uint4 *from)
{
    uint4 got;

    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w)
                 : "l"(from));
    return got;
}

/* What a lane reads of one row of w: 16 bytes, and the scale of these, or of the step that they are in. */
struct portion {
    uint4 bits;
    float scale;
};

template <class Store, scales SCALES> class row_reader
{
    static constexpr unsigned RUN = run_of<Store>;
    const char *from;
    const float *scale;
    uint32_t by_group, mine; /* 2^32 divided by the group, rounded up */
    uint32_t columns;        /* 0: there is no such row */

  public:
    __device__ __forceinline__ row_reader(const hbm_weights &w, uint32_t row)
        : from((const char *)w.data + (size_t)row * w.columns / RUN * 16),
          scale(w.scale + (size_t)row * w.scales_a_row), by_group(0xffffffffu / w.group + 1),
          mine(threadIdx.x % 4 * RUN), columns(row < w.rows ? w.columns : 0)
    {
    }
    __device__ __forceinline__ portion read(uint32_t k) const
    {
        uint32_t scaled = SCALES == BY_STEP ? k : k + mine;
        portion got = {};

        if (k + mine < columns)
            got.bits = read_once((const uint4 *)(from + (size_t)(k + mine) / RUN * 16));
        if (SCALES != BY_ROW && scaled < columns)
            got.scale = scale[__umulhi(scaled, by_group)];
        return got;
    }
};

/* N pairs of x, put together as those of w are. */
template <class Store, unsigned N>
static __device__ __forceinline__ void read_x(uint32_t (&to)[N], const uint4 *from)
{
#pragma unroll
    for (unsigned i = 0; i < N; i += 4) {
        uint4 four = from[i / 4];

        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
        if (pairs_of<Store>::APART) {
            to[i] = __byte_perm(four.x, four.z, 0x5410), to[i + 1] = __byte_perm(four.x, four.z, 0x7632);
            to[i + 2] = __byte_perm(four.y, four.w, 0x5410), to[i + 3] = __byte_perm(four.y, four.w, 0x7632);
        }
    }
}

template <class X, class Store, unsigned N>
static __device__ __forceinline__ void expand_all(uint32_t (&to)[N], uint4 from)
{
    uint32_t bits[4] = {from.x, from.y, from.z, from.w};

#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        uint32_t(&part)[N / 4] = *(uint32_t(*)[N / 4]) & to[i * (N / 4)];

        if constexpr (std::is_same<X, Store>::value)
            expand(part, bits[i], X());
        else
            expand(part, bits[i], X(), Store());
    }
}

template <class X, unsigned N> static __device__ __forceinline__ void scale_all(uint32_t (&pair)[N], float by)
{
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        float2 two = as_floats(X(), pair[i]);
        pair[i] = as_pair(X(), two.x * by, two.y * by);
    }
}

/* The warps' sums of a block, and of them the block's. */
template <class X, bool SCALED>
static __device__ __forceinline__ void finish(const matmul &job, const float (&sum)[4], uint32_t row)
{
    __shared__ float part[WARPS][8][SIDE + 1]; /* by row of x, then of w */
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        part[warp][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sum[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 8 * SIDE; i += WARPS * 32) {
        unsigned of_x = i / SIDE, of_w = i % SIDE;
        float all = 0;

        if (of_x >= job.x.rows || row + of_w >= job.w.rows)
            continue;
        for (unsigned j = 0; j < WARPS; j++)
            all += part[j][of_x][of_w];
        if (SCALED)
            all *= *hbm_scale_at(job.w, row + of_w, 0);
        ((X *)job.y)[(size_t)of_x * job.w.rows + row + of_w] = hbm_from_float<X>(all);
    }
}

template <class X, class Store, scales SCALES> static __global__ __launch_bounds__(WARPS * 32) void few(matmul job)
{
    constexpr bool raw = std::is_same<X, Store>::value;
    constexpr unsigned RUN = run_of<Store>, STEP = step_of<Store>, PAIRS = RUN / 2, STRIDE = WARPS * STEP;
    unsigned lane = threadIdx.x % 32, mine = lane % 4 * RUN;
    uint32_t row = blockIdx.x * SIDE, columns = job.w.columns;
    row_reader<Store, SCALES> upper(job.w, row + lane / 4), lower(job.w, row + lane / 4 + 8);
    const X *x = (const X *)job.x.data + (size_t)(lane / 4) * columns + mine;
    bool has_x = lane / 4 < job.x.rows;
    portion up[AHEAD], down[AHEAD];
    float sum[4] = {};
    uint32_t k = threadIdx.x / 32 * STEP;

#pragma unroll
    for (unsigned i = 0; i < AHEAD; i++)
        up[i] = upper.read(k + i * STRIDE), down[i] = lower.read(k + i * STRIDE);
    while (k < columns)
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++, k += STRIDE) {
            uint32_t of_up[PAIRS], of_down[PAIRS], of_x[PAIRS] = {};
            float part[4] = {}, by_up = up[i].scale, by_down = down[i].scale;

            if (k >= columns)
                break;
            if (has_x && k + mine < columns)
                read_x<Store>(of_x, (const uint4 *)(x + k));
            expand_all<X, Store>(of_up, up[i].bits), expand_all<X, Store>(of_down, down[i].bits);
            up[i] = upper.read(k + AHEAD * STRIDE), down[i] = lower.read(k + AHEAD * STRIDE);
            if (SCALES == BY_LANE)
                scale_all<X>(of_up, by_up), scale_all<X>(of_down, by_down);
#pragma unroll
            for (unsigned p = 0; p < PAIRS; p += 2) {
                const uint32_t a[4] = {of_up[p], of_down[p], of_up[p + 1], of_down[p + 1]};

                multiply_add<X>(SCALES == BY_STEP ? part : sum, a, of_x[p], of_x[p + 1]);
            }
            if (SCALES == BY_STEP) {
                sum[0] = fmaf(part[0], by_up, sum[0]), sum[1] = fmaf(part[1], by_up, sum[1]);
                sum[2] = fmaf(part[2], by_down, sum[2]), sum[3] = fmaf(part[3], by_down, sum[3]);
            }
        }
    finish<X, !raw && SCALES == BY_ROW>(job, sum, row);
}

template <class X, class Store, scales SCALES> static cudaError_t launch(const matmul &job, cudaStream_t stream)
{
    few<X, Store, SCALES><<<(job.w.rows + SIDE - 1) / SIDE, WARPS * 32, 0, stream>>>(job);
    return cudaGetLastError();
}

template <class X, class Store> bool matmul_few_takes(const matmul &job)
{
    return job.x.columns % (run_of<Store> < 8 ? 8 : run_of<Store>) == 0 && (uintptr_t)job.x.data % 16 == 0 &&
           (uintptr_t)job.w.data % 16 == 0 &&
           (!job.w.scale || job.w.group >= job.w.columns ||
            (job.w.group % run_of<Store> == 0 && (uint64_t)job.w.group * job.w.columns < 0x100000000u));
}

template <class X, class Store> cudaError_t matmul_few(const matmul &job, cudaStream_t stream)
{
    if constexpr (!std::is_same<X, Store>::value) {
        if (job.w.group < job.w.columns && job.w.group % step_of<Store> == 0)
            return launch<X, Store, BY_STEP>(job, stream);
        if (job.w.group < job.w.columns)
            return launch<X, Store, BY_LANE>(job, stream);
    }
    return launch<X, Store, BY_ROW>(job, stream);
}

#define MAKE(X, STORE)                                                                                             \
    template bool matmul_few_takes<X, STORE>(const matmul &);                                                      \
    template cudaError_t matmul_few<X, STORE>(const matmul &, cudaStream_t);
#define MAKE_ALL(X) MAKE(X, X) MAKE(X, int8_t) MAKE(X, __nv_fp8_e4m3) MAKE(X, __nv_fp8_e5m2) MAKE(X, hbm_int4)
MAKE_ALL(__half) MAKE_ALL(__nv_bfloat16)
