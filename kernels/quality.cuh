/* The second half of a tally inside a kernel: what is summed when the original and what is stored are read once more. */
#pragma once

#include "kernels/tally.cuh"

struct thread_quality {
    double signal = 0, noise = 0; /* of inliers */
    unsigned zeroed = 0, nans = 0; /* a thread sees far fewer than 2^32 elements */
    float worst = 0;               /* of |error|/|x| */
    uint32_t highest = 0, lowest = 0;

    __device__ __forceinline__ void add(float x, float stored, bool clipped)
    {
        if (!element_finite(x)) {
            nans += x != x;
            return;
        }
        float error = element_sub(x, stored);
        uint32_t key = tally_key(x);

        if (!clipped) {
            signal = __fma_rn((double)x, (double)x, signal);
            noise = __fma_rn((double)error, (double)error, noise);
        }
        zeroed += x != 0 && stored == 0;
        highest = max(highest, key);
        lowest = max(lowest, ~key);
        /* The division is for those that may be the worst; a quotient that underflows is none. */
        if (x != 0 && fabsf(error) >= element_mul(fabsf(x), element_mul(worst, 1 - 0x1p-20f)))
            worst = fmaxf(worst, fabsf(element_div(error, x)));
    }

    /* Every thread of the block calls this once, at its end. blockDim.x is a multiple of 32. */
    __device__ __forceinline__ void publish_block(struct codec_tally *total)
    {
        uint32_t relative = __float_as_uint(worst);

        for (unsigned o = WARP / 2; o; o >>= 1) {
            signal += __shfl_xor_sync(FULL_WARP, signal, o);
            noise += __shfl_xor_sync(FULL_WARP, noise, o);
            zeroed += __shfl_xor_sync(FULL_WARP, zeroed, o);
            nans += __shfl_xor_sync(FULL_WARP, nans, o);
        }
        relative = __reduce_max_sync(FULL_WARP, relative);
        highest = __reduce_max_sync(FULL_WARP, highest);
        lowest = __reduce_max_sync(FULL_WARP, lowest);
        if (threadIdx.x % WARP)
            return;
        atomicAdd(&total->inlier_signal, signal);
        atomicAdd(&total->inlier_noise, noise);
        if (zeroed)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->zeroed), (unsigned long long)zeroed);
        if (nans)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->nans), (unsigned long long)nans);
        atomicMax(&total->max_relative, relative);
        atomicMax(&total->highest, highest);
        atomicMax(&total->lowest, lowest);
    }
};
