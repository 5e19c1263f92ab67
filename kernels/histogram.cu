/* The histogram: a block counts in shared memory, which holds a 32-bit counter for every bin, and adds to the total at its
 * end. Zeros, of which activations are full, a thread counts by itself: atomics on one address would queue up. */
#include "kernels/chunk.cuh"
#include "kernels/histogram.h"
#include "kernels/launch.cuh"
#include "kernels/tally.cuh"

#define THREADS 1024u
#define LANES 4u

static __device__ __forceinline__ void add(uint64_t *to, uint64_t n)
{
    atomicAdd(reinterpret_cast<unsigned long long *>(to), (unsigned long long)n);
}

/* The sign and the bin. */
template <class Raw> static __device__ __forceinline__ uint32_t upper_of(typename Raw::word word)
{
    if constexpr (sizeof(word) == 2)
        return word;
    else
        return word >> 16;
}

/* ONE_SIDE: of those alone whose signs are as wanted. */
template <class Raw, bool ONE_SIDE>
static __global__ void __launch_bounds__(THREADS)
    count_all(const void *in, uint64_t count, bool aligned, uint32_t mask, uint32_t wanted, uint64_t *counts)
{
    typedef typename Raw::word word;
    constexpr unsigned N = 16 / sizeof(word);
    extern __shared__ uint32_t bins[];
    chunk<word, N> raw[LANES];
    uint64_t zeros = 0;

    for (unsigned i = threadIdx.x; i < HISTOGRAM_BINS; i += THREADS)
        bins[i] = 0;
    __syncthreads();
    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N> s) {
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            uint32_t upper = upper_of<Raw>(raw[k].w[i]), bin = upper & 0x7fffu;

            if (!s.has(i) || (ONE_SIDE && (upper & mask) != wanted))
                continue;
            if (bin)
                atomicAdd(&bins[bin], 1u);
            else
                zeros++;
        }
    };
    for_chunks<N, LANES>(count, aligned, load, look);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < HISTOGRAM_BINS; i += THREADS)
        if (bins[i])
            add(&counts[i], bins[i]);
    for (unsigned o = 16; o; o >>= 1)
        zeros += __shfl_xor_sync(0xffffffffu, zeros, o);
    if (threadIdx.x % 32 == 0 && zeros)
        add(&counts[0], zeros);
}

/* Few elements lie in one bin: they go to the total at once. */
static __global__ void __launch_bounds__(256) count_within(const void *in, uint64_t count, bool aligned, uint32_t mask,
                                                           uint32_t wanted, uint64_t *counts)
{
    constexpr unsigned N = 4;
    chunk<uint32_t, N> raw[LANES];

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<uint32_t>(s, in); };
    auto look = [&](unsigned k, span<N> s) {
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (s.has(i) && (upper_of<f32>(raw[k].w[i]) & mask) == wanted)
                add(&counts[raw[k].w[i] & 0xffffu], 1);
        }
    };
    for_chunks<N, LANES>(count, aligned, load, look);
}

template <class Raw>
static __global__ void __launch_bounds__(256) find_ends(const void *in, uint64_t count, bool aligned, struct histogram_ends *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = 16 / sizeof(word);
    chunk<word, N> raw[LANES];
    uint32_t highest = 0, lowest = 0;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N> s) {
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float x = Raw::up(raw[k].w[i]);

            if (!s.has(i) || !element_finite(x))
                continue;
            highest = max(highest, tally_key(x));
            lowest = max(lowest, ~tally_key(x));
        }
    };
    for_chunks<N, LANES>(count, aligned, load, look);
    for (unsigned o = WARP / 2; o; o >>= 1) {
        highest = max(highest, __shfl_xor_sync(FULL_WARP, highest, o));
        lowest = max(lowest, __shfl_xor_sync(FULL_WARP, lowest, o));
    }
    if (threadIdx.x % WARP == 0) {
        atomicMax(&total->highest, highest);
        atomicMax(&total->lowest, lowest);
    }
}

template <class Raw> static cudaError_t launch_ends(const struct histogram_job *job, bool aligned, cudaStream_t stream)
{
    return launch_few(find_ends<Raw>, chunk_blocks(job->count, 256, LANES * (16 / sizeof(typename Raw::word))), 256, stream,
                      job->raw, job->count, aligned, job->ends);
}

static cudaError_t launch_ends_of(const struct histogram_job *job, bool aligned, cudaStream_t stream)
{
    if (job->dtype == HBM_F32)
        return launch_ends<f32>(job, aligned, stream);
    return job->dtype == HBM_F16 ? launch_ends<f16>(job, aligned, stream) : launch_ends<bf16>(job, aligned, stream);
}

/* A block a multiprocessor, as many as its shared memory has room for. */
template <class Raw> static cudaError_t launch_all_bins(const struct histogram_job *job, bool aligned, uint64_t *counts,
                                                        cudaStream_t stream)
{
    const int bytes = HISTOGRAM_BINS * sizeof(uint32_t);
    auto *kernel = job->side == HISTOGRAM_BOTH ? count_all<Raw, false> : count_all<Raw, true>;
    uint64_t blocks = chunk_blocks(job->count, THREADS, LANES * (16 / sizeof(typename Raw::word)));
    int device, processors;
    cudaError_t error;

    if ((error = cudaGetDevice(&device)) ||
        (error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)))
        return error;
    if (blocks > (uint64_t)processors)
        blocks = (uint64_t)processors;
    kernel<<<(unsigned)blocks, THREADS, bytes, stream>>>(job->raw, job->count, aligned, histogram_mask(job),
                                                         histogram_wanted(job), counts);
    return cudaGetLastError();
}

int histogram_cuda(const struct histogram_job *job, uint64_t *counts, void *stream)
{
    bool aligned = reinterpret_cast<uintptr_t>(job->raw) % 16 == 0;
    cudaStream_t on = static_cast<cudaStream_t>(stream);

    if (!job->count)
        return cudaSuccess;
    if (job->ends)
        if (cudaError_t error = launch_ends_of(job, aligned, on))
            return error;
    if (job->dtype != HBM_F32) /* of both 16-bit floats a bin is the pattern */
        return launch_all_bins<bf16>(job, aligned, counts, on);
    if (job->within == HISTOGRAM_ALL)
        return launch_all_bins<f32>(job, aligned, counts, on);
    return launch_few(count_within, chunk_blocks(job->count, 256, LANES * 4), 256, on, job->raw, job->count, aligned,
                      histogram_mask(job), histogram_wanted(job), counts);
}
