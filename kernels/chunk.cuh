/* Element moves: types and chunks of 8 elements, the unit of every access.
 * A chunk starts at a multiple of 8 of the tensor's own index, whatever rows or units it crosses, so that aligned
 * tensors of any shape are read and written in whole vectors except at the ends of a run. */
#pragma once

#include <cuda_fp16.h>

#include "kernels/element.h"

#define CHUNK 8

struct f32 {
    typedef uint32_t word;
    static __device__ __forceinline__ float up(word w)
    {
        return __uint_as_float(w);
    }
    static __device__ __forceinline__ word down(float x)
    {
        return __float_as_uint(x);
    }
};

/* The hardware rounds as element.h does but has one NaN; a NaN takes the portable way. */
struct f16 {
    typedef uint16_t word;
    static constexpr uint32_t most = ELEMENT_F16_MAX;
    static __device__ __forceinline__ float up(word w)
    {
        if ((w & 0x7fffu) > 0x7c00u)
            return __uint_as_float((uint32_t)(w & 0x8000u) << 16 | ELEMENT_INF | (uint32_t)(w & 0x3ffu) << 13);
        return __half2float(__ushort_as_half(w));
    }
    static __device__ __forceinline__ word down(float x)
    {
        uint32_t a = __float_as_uint(x) & ELEMENT_ABS;

        if (a > most)
            return element_f16_down(__float_as_uint(x));
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
    static __device__ __forceinline__ word down(float x)
    {
        return element_bf16_down(__float_as_uint(x));
    }
};

/* CHUNK words moved as vectors of 16 bytes, or of 8 where that is all there is. */
template <class Word> struct chunk {
    Word w[CHUNK];
};

template <class Vector, class Word> static __device__ __forceinline__ void move_in(chunk<Word> &c, const Word *from)
{
#pragma unroll
    for (unsigned i = 0; i < sizeof(c) / sizeof(Vector); i++) {
        Vector v = reinterpret_cast<const Vector *>(from)[i];
        memcpy(reinterpret_cast<char *>(&c) + i * sizeof(Vector), &v, sizeof(Vector));
    }
}

template <class Vector, class Word> static __device__ __forceinline__ void move_out(Word *to, const chunk<Word> &c)
{
#pragma unroll
    for (unsigned i = 0; i < sizeof(c) / sizeof(Vector); i++) {
        Vector v;
        memcpy(&v, reinterpret_cast<const char *>(&c) + i * sizeof(Vector), sizeof(Vector));
        reinterpret_cast<Vector *>(to)[i] = v;
    }
}

static __device__ __forceinline__ void chunk_load(chunk<uint32_t> &c, const uint32_t *from)
{
    move_in<uint4>(c, from);
}

static __device__ __forceinline__ void chunk_load(chunk<uint16_t> &c, const uint16_t *from)
{
    move_in<uint4>(c, from);
}

static __device__ __forceinline__ void chunk_load(chunk<int8_t> &c, const int8_t *from)
{
    move_in<uint2>(c, from);
}

static __device__ __forceinline__ void chunk_store(uint32_t *to, const chunk<uint32_t> &c)
{
    move_out<uint4>(to, c);
}

static __device__ __forceinline__ void chunk_store(uint16_t *to, const chunk<uint16_t> &c)
{
    move_out<uint4>(to, c);
}

static __device__ __forceinline__ void chunk_store(int8_t *to, const chunk<int8_t> &c)
{
    move_out<uint2>(to, c);
}

/* The elements of the chunk at index `at` that lie in [begin, end). */
struct span {
    uint64_t at;
    unsigned first, past;
    bool vector;
    __device__ __forceinline__ span(uint64_t at_, uint64_t begin, uint64_t end, bool aligned)
        : at(at_), first(at_ < begin ? (unsigned)(begin - at_) : 0),
          past(end - at_ < CHUNK ? (unsigned)(end - at_) : CHUNK)
    {
        vector = aligned && first == 0 && past == CHUNK;
    }
    __device__ __forceinline__ bool has(unsigned i) const
    {
        return i >= first && i < past;
    }
};

/* What lies outside the span reads as zero, which changes no amax and no sum. */
template <class Word> static __device__ __forceinline__ chunk<Word> span_load(const span &s, const void *base)
{
    const Word *from = static_cast<const Word *>(base) + s.at;
    chunk<Word> c;

    if (s.vector) {
        chunk_load(c, from);
    } else {
#pragma unroll
        for (unsigned i = 0; i < CHUNK; i++)
            c.w[i] = s.has(i) ? from[i] : (Word)0;
    }
    return c;
}

template <class Word>
static __device__ __forceinline__ void span_store(const span &s, void *base, const chunk<Word> &c)
{
    Word *to = static_cast<Word *>(base) + s.at;

    if (s.vector) {
        chunk_store(to, c);
    } else {
#pragma unroll
        for (unsigned i = 0; i < CHUNK; i++)
            if (s.has(i))
                to[i] = c.w[i];
    }
}

static __device__ __forceinline__ uint64_t global_thread()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ uint64_t global_threads()
{
    return (uint64_t)gridDim.x * blockDim.x;
}

/* Blocks that cover the chunks of n elements, one chunk a thread. */
static inline uint64_t chunk_blocks(uint64_t n, unsigned threads)
{
    uint64_t chunks = n / CHUNK + (n % CHUNK != 0);

    return chunks / threads + (chunks % threads != 0);
}
