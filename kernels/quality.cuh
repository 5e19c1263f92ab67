/* The second half of a tally inside a kernel: what is summed when the original and what is stored are read once more. */
#pragma once

#include "kernels/chunk.cuh"
#include "kernels/tally.cuh"

/* The bits of the largest and of the least of what is finite, each in two: as signed and as unsigned integers floats of
 * one sign order as they do. Of 16-bit floats, two of either side by side. */
template <class Raw> struct bit_ends {
    static constexpr bool halves = sizeof(typename Raw::word) == 2;
    uint32_t most = halves ? 0x80008000u : 0x80000000u, least = UINT32_MAX;   /* above 0, or all below it */
    uint32_t deepest = 0, lowest = halves ? 0x7fff7fffu : 0x7fffffffu; /* below 0, or all above it */

    template <unsigned N> __device__ __forceinline__ void look(const chunk<typename Raw::word, N> &raw)
    {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(&raw);

#pragma unroll
        for (unsigned i = 0; i < sizeof(raw) / 4; i++) {
            uint32_t w = words[i];

            most = halves ? __vmaxs2(most, w) : (uint32_t)max((int)most, (int)w);
            least = halves ? __vminu2(least, w) : min(least, w);
            deepest = halves ? __vmaxu2(deepest, w) : max(deepest, w);
            lowest = halves ? __vmins2(lowest, w) : (uint32_t)min((int)lowest, (int)w);
        }
    }
    __device__ __forceinline__ bool seen() const
    {
        return least != UINT32_MAX; /* the bits of a NaN */
    }
    static __device__ __forceinline__ uint32_t top(uint32_t of, unsigned part)
    {
        return halves ? of << (part ? 0 : 16) & 0xffff0000u : of;
    }
    static __device__ __forceinline__ float up(uint32_t bits)
    {
        return Raw::up((typename Raw::word)(halves ? bits >> 16 : bits));
    }
    __device__ __forceinline__ float high() const
    {
        float x = -INFINITY;

        for (unsigned part = 0; part < (halves ? 2 : 1); part++)
            x = fmaxf(x, up(top(most, part) >> 31 ? top(least, part) : top(most, part)));
        return x;
    }
    __device__ __forceinline__ float low() const
    {
        float x = INFINITY;

        for (unsigned part = 0; part < (halves ? 2 : 1); part++)
            x = fminf(x, up(top(deepest, part) >> 31 ? top(deepest, part) : top(lowest, part)));
        return x;
    }
};

template <class Raw> struct thread_quality {
    double signal = 0, noise = 0; /* of inliers */
    unsigned zeroed = 0, nans = 0; /* a thread sees far fewer than 2^32 elements */
    float most = -INFINITY, least = INFINITY;
    bit_ends<Raw> ends; /* of chunks */
    uint32_t worst; /* of |error|/|x|, as bits */

    /* What others have found spares this thread quotients. */
    __device__ __forceinline__ explicit thread_quality(const struct codec_tally *total)
        : worst(__ldcg(&total->max_relative))
    {
    }
    /* All of a warp at a time, now and then. */
    __device__ __forceinline__ void share()
    {
        worst = __reduce_max_sync(FULL_WARP, worst);
    }

    __device__ __forceinline__ void relative(float x, float error)
    {
        worst = max(worst, __float_as_uint(fabsf(element_div(error, x))));
    }

    __device__ __forceinline__ void add(float x, float stored, bool clipped)
    {
        if (!element_finite(x)) {
            nans += x != x;
            return;
        }
        float error = element_sub(x, stored);

        if (!clipped) {
            signal = __fma_rn((double)x, (double)x, signal);
            noise = __fma_rn((double)error, (double)error, noise);
        }
        zeroed += x != 0 && stored == 0;
        most = fmaxf(most, x);
        least = fminf(least, x);
        /* A quotient that underflows is none. */
        if (x != 0)
            relative(x, error);
    }

    /* Of N that are finite and not clipped; false, with nothing added, where their squares are near binary32's ends. */
    template <bool TINY, unsigned N>
    __device__ __forceinline__ bool add_chunk(const chunk<typename Raw::word, N> &raw, const float stored[N])
    {
        const float known = __uint_as_float(worst), squares = 0x1p-120f;
        float x[N], signals = 0, noises = 0, zeros = 0;
        bool any = false;

        chunk_up<Raw, N>(raw, x);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float error = element_sub(x[i], stored[i]);

            signals = __fmaf_rn(x[i], x[i], signals);
            noises = __fmaf_rn(error, error, noises);
            zeros += stored[i] == 0 ? 1.0f : 0.0f;
        }
        if (noises < squares) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                any |= x[i] != stored[i];
        }
        if (any || !(signals + noises < INFINITY) || (signals < squares && signals != 0))
            return false;
        if (chunk_least<Raw, N>(raw) == 0) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                zeros -= x[i] == 0 ? 1.0f : 0.0f;
        }
        signal += (double)signals;
        noise += (double)noises;
        zeroed += (unsigned)zeros;
        ends.template look<N>(raw);
        if (zeros > 0 && known < 1)
            worst = __float_as_uint(1.0f);
        relatives<TINY, N>(x, stored, known);
        return true;
    }

    /* By how much |error|/|x| passes what rounds to the bound, times |x|: the sign is right, whatever is rounded here. */
    static __device__ __forceinline__ float beyond(float x, float stored, float bound, float half)
    {
        float left = __fmaf_rn(-fabsf(x), bound, fabsf(element_sub(x, stored)));

        return __fmaf_rn(-fabsf(x), half, left);
    }

    /* The quotients of what may be worse than all before. 1 is that of all that is stored as 0. half: of the last place of
     * what is known. Only of the tiniest, where TINY says that there are some which are not stored as 0, products underflow. */
    template <bool TINY, unsigned N>
    __device__ __forceinline__ void relatives(const float x[N], const float stored[N], float known)
    {
        const uint32_t exponent = __float_as_uint(known) & ELEMENT_INF, step = 24u << 23;
        const float half = __uint_as_float(exponent > step ? exponent - step : 0), tiny = TINY ? 0x1p-100f : 0;
        bool worse = false;

        if (known == 1) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                worse |= fabsf(element_sub(x[i], stored[i])) > fabsf(x[i]);
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                worse |= beyond(x[i], stored[i], known, half) > 0;
        }
        if (TINY && known != 1) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                worse |= fabsf(x[i]) < tiny;
        }
        if (worse) {
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                if (x[i] != stored[i] && (beyond(x[i], stored[i], known, half) > 0 || fabsf(x[i]) < tiny))
                    relative(x[i], element_sub(x[i], stored[i]));
        }
    }

    /* Every thread of the block calls this once, at its end. blockDim.x is a multiple of 32. */
    __device__ __forceinline__ void publish_block(struct codec_tally *total)
    {
        if (ends.seen()) {
            most = fmaxf(most, ends.high());
            least = fminf(least, ends.low());
        }
        uint32_t highest = most >= least ? tally_key(most) : 0, lowest = most >= least ? ~tally_key(least) : 0;

        for (unsigned o = WARP / 2; o; o >>= 1) {
            signal += __shfl_xor_sync(FULL_WARP, signal, o);
            noise += __shfl_xor_sync(FULL_WARP, noise, o);
            zeroed += __shfl_xor_sync(FULL_WARP, zeroed, o);
            nans += __shfl_xor_sync(FULL_WARP, nans, o);
        }
        highest = __reduce_max_sync(FULL_WARP, highest);
        lowest = __reduce_max_sync(FULL_WARP, lowest);
        share();
        if (threadIdx.x % WARP)
            return;
        atomicMax(&total->max_relative, worst);
        atomicAdd(&total->inlier_signal, signal);
        atomicAdd(&total->inlier_noise, noise);
        if (zeroed)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->zeroed), (unsigned long long)zeroed);
        if (nans)
            atomicAdd(reinterpret_cast<unsigned long long *>(&total->nans), (unsigned long long)nans);
        atomicMax(&total->highest, highest);
        atomicMax(&total->lowest, lowest);
    }
};
