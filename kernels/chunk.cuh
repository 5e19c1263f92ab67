/* Element moves: types, and chunks, the unit of every access: as many elements as make 16 bytes of the wider side.
 * A chunk starts at a multiple of its length of the tensor's own index, whatever rows or units it crosses, so that
 * aligned tensors of any shape are read and written in whole vectors except at the ends of a run. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/element.h"

struct f32 {
    typedef uint32_t word;
    static constexpr uint32_t most = ELEMENT_MAX;
    static __device__ __forceinline__ float up(word w)
    {
        return __uint_as_float(w);
    }
    static __device__ __forceinline__ word down(float x)
    {
        return __float_as_uint(x);
    }
    static __device__ __forceinline__ word down_finite(float x)
    {
        return __float_as_uint(x);
    }
};

/* The hardware rounds as element.h does but has one NaN; a NaN takes the portable way.
 * down_finite() takes what is known to lie within +-most. */
struct f16 {
    typedef uint16_t word;
    static constexpr uint32_t most = ELEMENT_F16_MAX;
    static __device__ __forceinline__ float up(word w)
    {
        if ((w & 0x7fffu) > 0x7c00u)
            return __uint_as_float((uint32_t)(w & 0x8000u) << 16 | ELEMENT_INF | (uint32_t)(w & 0x3ffu) << 13);
        return up_finite(w);
    }
    static __device__ __forceinline__ float up_finite(word w)
    {
        return __half2float(__ushort_as_half(w));
    }
    static __device__ __forceinline__ void up_two(uint32_t pair, float &low, float &high)
    {
        low = up((word)pair);
        high = up((word)(pair >> 16));
    }
    static __device__ __forceinline__ word down(float x)
    {
        uint32_t a = __float_as_uint(x) & ELEMENT_ABS;

        if (a > most)
            return element_f16_down(__float_as_uint(x));
        return down_finite(x);
    }
    static __device__ __forceinline__ word down_finite(float x)
    {
        return __half_as_ushort(__float2half_rn(x));
    }
};

struct bf16 {
    typedef uint16_t word;
    static constexpr uint32_t most = ELEMENT_BF16_MAX;
    static __device__ __forceinline__ float up(word w)
    {
        return __uint_as_float(element_bf16_up(w));
    }
    static __device__ __forceinline__ float up_finite(word w)
    {
        return up(w);
    }
    static __device__ __forceinline__ void up_two(uint32_t pair, float &low, float &high)
    {
        low = __uint_as_float(pair << 16);
        high = __uint_as_float(pair & 0xffff0000u);
    }
    static __device__ __forceinline__ word down(float x)
    {
        return element_bf16_down(__float_as_uint(x));
    }
    static __device__ __forceinline__ word down_finite(float x)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
};

/* Elements a chunk has where these words are read and written. */
template <class A, class B>
constexpr unsigned chunk_elements = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

template <class Word, unsigned N> struct alignas(sizeof(Word) * N) chunk {
    Word w[N];
};

template <class Word, unsigned N>
static __device__ __forceinline__ void chunk_load(chunk<Word, N> &c, const Word *from)
{
    if constexpr (sizeof(c) == 32) { /* aligned to half of it */
        reinterpret_cast<uint4 *>(&c)[0] = reinterpret_cast<const uint4 *>(from)[0];
        reinterpret_cast<uint4 *>(&c)[1] = reinterpret_cast<const uint4 *>(from)[1];
    } else if constexpr (sizeof(c) == 16)
        *reinterpret_cast<uint4 *>(&c) = *reinterpret_cast<const uint4 *>(from);
    else if constexpr (sizeof(c) == 8)
        *reinterpret_cast<uint2 *>(&c) = *reinterpret_cast<const uint2 *>(from);
    else
        *reinterpret_cast<uint32_t *>(&c) = *reinterpret_cast<const uint32_t *>(from);
}

/* What is written is not read again soon: L2 keeps what is read. */
template <class Word, unsigned N>
static __device__ __forceinline__ void chunk_store(Word *to, const chunk<Word, N> &c)
{
    if constexpr (sizeof(c) == 32) {
        __stcs(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 *>(&c)[0]);
        __stcs(reinterpret_cast<uint4 *>(to) + 1, reinterpret_cast<const uint4 *>(&c)[1]);
    } else if constexpr (sizeof(c) == 16)
        __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&c));
    else if constexpr (sizeof(c) == 8)
        __stcs(reinterpret_cast<uint2 *>(to), *reinterpret_cast<const uint2 *>(&c));
    else
        __stcs(reinterpret_cast<uint32_t *>(to), *reinterpret_cast<const uint32_t *>(&c));
}

/* The elements of a chunk as binary32. */
template <class Raw, unsigned N>
static __device__ __forceinline__ void chunk_up(const chunk<typename Raw::word, N> &raw, float x[N])
{
    if constexpr (sizeof(raw.w[0]) == 2) {
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(&raw);
#pragma unroll
        for (unsigned i = 0; i < N; i += 2)
            Raw::up_two(pairs[i / 2], x[i], x[i + 1]);
    } else {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            x[i] = Raw::up(raw.w[i]);
    }
}

/* The elements of the chunk at index `at` that lie in [begin, end). */
template <unsigned N> struct span {
    uint64_t at;
    unsigned first, past;
    bool vector;
    __device__ __forceinline__ span(uint64_t at_, uint64_t begin, uint64_t end, bool aligned)
        : at(at_), first(at_ < begin ? (unsigned)(begin - at_) : 0), past(end - at_ < N ? (unsigned)(end - at_) : N)
    {
        vector = aligned && first == 0 && past == N;
    }
    /* A whole chunk that can be moved as vectors. */
    __device__ __forceinline__ explicit span(uint64_t at_) : at(at_), first(0), past(N), vector(true)
    {
    }
    __device__ __forceinline__ bool has(unsigned i) const
    {
        return i >= first && i < past;
    }
};

/* What lies outside the span reads as zero, which changes no amax and no sum. */
template <class Word, unsigned N>
static __device__ __forceinline__ chunk<Word, N> span_load(const span<N> &s, const void *base)
{
    const Word *from = static_cast<const Word *>(base) + s.at;
    chunk<Word, N> c;

    if (s.vector) {
        chunk_load(c, from);
    } else {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            c.w[i] = s.has(i) ? from[i] : (Word)0;
    }
    return c;
}

template <class Word, unsigned N>
static __device__ __forceinline__ void span_store(const span<N> &s, void *base, const chunk<Word, N> &c)
{
    Word *to = static_cast<Word *>(base) + s.at;

    if (s.vector) {
        chunk_store(to, c);
    } else {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            if (s.has(i))
                to[i] = c.w[i];
    }
}

/* The bits of a chunk's largest magnitude, as a binary32; those of an infinity or above if it holds one or a NaN.
 */
template <class Raw, unsigned N>
static __device__ __forceinline__ uint32_t chunk_most(const chunk<typename Raw::word, N> &raw)
{
    uint32_t most = 0;

    if constexpr (sizeof(raw.w[0]) == 2) {
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(&raw);
#pragma unroll
        for (unsigned i = 0; i < N / 2; i++)
            most = __vmaxu2(most, pairs[i] & 0x7fff7fffu);
        return __float_as_uint(Raw::up((uint16_t)max(most & 0xffffu, most >> 16)));
    } else {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            most = max(most, raw.w[i] & ELEMENT_ABS);
        return most;
    }
}

/* The same of what is finite in it. */
template <class Raw, unsigned N>
static __device__ __forceinline__ uint32_t chunk_magnitude(const chunk<typename Raw::word, N> &raw)
{
    uint32_t most = chunk_most<Raw, N>(raw);

    if (most < ELEMENT_INF)
        return most;
    float x[N];

    chunk_up<Raw, N>(raw, x); /* by words, or each half takes a register even where this is not gone through */
    most = 0;
#pragma unroll
    for (unsigned i = 0; i < N; i++)
        most = max(most, element_magnitude(x[i]));
    return most;
}

/* The bits of a chunk's least magnitude, but for their place: 0 if it holds a 0. */
template <class Raw, unsigned N>
static __device__ __forceinline__ uint32_t chunk_least(const chunk<typename Raw::word, N> &raw)
{
    const uint32_t *words = reinterpret_cast<const uint32_t *>(&raw);
    uint32_t least = UINT32_MAX;

#pragma unroll
    for (unsigned i = 0; i < sizeof(raw) / 4; i++)
        least = sizeof(raw.w[0]) == 2 ? __vminu2(least, words[i] & 0x7fff7fffu) : min(least, words[i] & ELEMENT_ABS);
    return sizeof(raw.w[0]) == 2 ? min(least & 0xffffu, least >> 16) : least;
}

/* ---- Going over a tensor, LANES chunks of a thread at a time ---- */

/* For every chunk of [0, count) that is this thread's: first(k, span) for LANES of them, then second(k, span), so
 * that what first loads is all under way before second waits for any of it. after(): every time, by all of a block. */
template <unsigned N, unsigned LANES, class First, class Second, class After>
static __device__ __forceinline__ void for_chunks(uint64_t count, bool aligned, First first, Second second, After after)
{
    const uint64_t step = (uint64_t)blockDim.x * N;

    for (uint64_t tile = blockIdx.x * LANES * step; tile < count; tile += gridDim.x * LANES * step) {
        uint64_t at = tile + threadIdx.x * N;

        if (aligned && count - tile >= LANES * step) {
#pragma unroll
            for (unsigned k = 0; k < LANES; k++)
                first(k, span<N>(at + k * step));
#pragma unroll
            for (unsigned k = 0; k < LANES; k++)
                second(k, span<N>(at + k * step));
            after();
            continue;
        }
        for (unsigned k = 0; k < LANES; k++)
            if (at + k * step < count) {
                first(0, span<N>(at + k * step, 0, count, aligned));
                second(0, span<N>(at + k * step, 0, count, aligned));
            }
        after();
    }
}

template <unsigned N, unsigned LANES, class First, class Second>
static __device__ __forceinline__ void for_chunks(uint64_t count, bool aligned, First first, Second second)
{
    for_chunks<N, LANES>(count, aligned, first, second, [] {});
}

/* Blocks that cover n elements so, `each` of them a thread. */
static inline uint64_t chunk_blocks(uint64_t n, unsigned threads, unsigned each)
{
    uint64_t tile = (uint64_t)threads * each;

    return n / tile + (n % tile != 0);
}

static __device__ __forceinline__ uint64_t global_thread()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ uint64_t global_threads()
{
    return (uint64_t)gridDim.x * blockDim.x;
}
