/* The sums of a receipt inside a kernel: kept by a thread, joined by the block, a few atomics a block. */
#pragma once

#include "kernels/tally.h"

#define WARP 32u
#define FULL_WARP 0xffffffffu

/* Of some dozen elements that are finite and not clipped. */
struct few_tally {
    float signal = 0, noise = 0, error = 0;

    __device__ __forceinline__ void add(float x, float missed)
    {
        signal = __fmaf_rn(x, x, signal);
        noise = __fmaf_rn(missed, missed, noise);
        error = fmaxf(error, fabsf(missed));
    }

    /* What all of them missed, where some of it was wrong. */
    template <unsigned N> __device__ __forceinline__ void missed_again(const float missed[N])
    {
        noise = error = 0;
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            noise = __fmaf_rn(missed[i], missed[i], noise);
            error = fmaxf(error, fabsf(missed[i]));
        }
    }

    __device__ __forceinline__ void join(const few_tally &other)
    {
        signal += other.signal;
        noise += other.noise;
        error = fmaxf(error, other.error);
    }

    /* Whether they are the sums of a chunk whose scale is 2^-50 or more. An infinity or a NaN shows in them; squares that
     * underflow are missing, which is nothing beside 2^-120. What is stored without an error is 0, or its square does not. */
    __device__ __forceinline__ bool holds() const
    {
        const float least = 0x1p-120f;

        return signal + noise < __uint_as_float(ELEMENT_INF) && (signal >= least || signal == 0) &&
               (noise >= least || error == 0);
    }
};

struct thread_tally {
    double signal = 0, noise = 0;
    unsigned clipped = 0, nonfinite = 0; /* a thread sees far fewer than 2^32 elements */
    uint32_t max_error = 0;

    /* x is finite. The squares are exact in binary64, so fusing them into the sum changes nothing but its order. */
    __device__ __forceinline__ void finite(float x, float stored)
    {
        float error = element_sub(x, stored);
        uint32_t magnitude = element_bits(error) & ELEMENT_ABS;

        signal = __fma_rn((double)x, (double)x, signal);
        noise = __fma_rn((double)error, (double)error, noise);
        max_error = max(max_error, magnitude);
    }

    __device__ __forceinline__ void few(const struct few_tally &some)
    {
        signal += (double)some.signal;
        noise += (double)some.noise;
        max_error = max(max_error, element_bits(some.error));
    }

    __device__ __forceinline__ void add(float x, float stored, bool is_clipped)
    {
        if (element_finite(x)) {
            finite(x, stored);
            clipped += is_clipped;
        } else {
            nonfinite++;
        }
    }

    __device__ __forceinline__ void join(const thread_tally &other)
    {
        signal += other.signal;
        noise += other.noise;
        clipped += other.clipped;
        nonfinite += other.nonfinite;
        max_error = max(max_error, other.max_error);
    }

    __device__ __forceinline__ void join_warp()
    {
        for (unsigned o = WARP / 2; o; o >>= 1) {
            signal += __shfl_xor_sync(FULL_WARP, signal, o);
            noise += __shfl_xor_sync(FULL_WARP, noise, o);
            clipped += __shfl_xor_sync(FULL_WARP, clipped, o);
            nonfinite += __shfl_xor_sync(FULL_WARP, nonfinite, o);
            max_error = max(max_error, __shfl_xor_sync(FULL_WARP, max_error, o));
        }
    }

    __device__ __forceinline__ void publish(struct codec_tally *total) const
    {
        atomicAdd(&total->signal, signal);
        atomicAdd(&total->noise, noise);
        if (clipped)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->clipped), (unsigned long long)clipped);
        if (nonfinite)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->nonfinite), (unsigned long long)nonfinite);
        atomicMax(&total->max_error, max_error);
    }
};

/* Every thread of the block calls this once, at its end. blockDim.x is a multiple of 32. */
static __device__ __forceinline__ void block_publish(thread_tally mine, struct codec_tally *total)
{
    __shared__ double signal, noise;
    __shared__ unsigned clipped, nonfinite, max_error;

    if (threadIdx.x == 0) {
        signal = noise = 0;
        clipped = nonfinite = max_error = 0;
    }
    __syncthreads();
    mine.join_warp();
    if (threadIdx.x % WARP == 0) {
        atomicAdd(&signal, mine.signal);
        atomicAdd(&noise, mine.noise);
        atomicAdd(&clipped, mine.clipped);
        atomicAdd(&nonfinite, mine.nonfinite);
        atomicMax(&max_error, mine.max_error);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mine.signal = signal;
        mine.noise = noise;
        mine.clipped = clipped;
        mine.nonfinite = nonfinite;
        mine.max_error = max_error;
        mine.publish(total);
    }
}

/* The largest of the block's values, in every thread. The block has 32 warps at most. */
static __device__ __forceinline__ uint32_t block_max(uint32_t value)
{
    __shared__ uint32_t parts[WARP];

    value = __reduce_max_sync(FULL_WARP, value);
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = threadIdx.x % WARP < blockDim.x / WARP ? parts[threadIdx.x % WARP] : 0;
    value = __reduce_max_sync(FULL_WARP, value);
    __syncthreads(); /* before the next call writes parts */
    return value;
}

/* The same again and again: turn is 0 at first. What a warp is yet to read is not written before all have come to the
 * next call. */
static __device__ __forceinline__ uint32_t block_most(uint32_t value, unsigned &turn)
{
    __shared__ uint32_t parts[2][WARP];

    value = __reduce_max_sync(FULL_WARP, value);
    if (threadIdx.x % WARP == 0)
        parts[turn][threadIdx.x / WARP] = value;
    __syncthreads();
    value = threadIdx.x % WARP < blockDim.x / WARP ? parts[turn][threadIdx.x % WARP] : 0;
    turn ^= 1;
    return __reduce_max_sync(FULL_WARP, value);
}
