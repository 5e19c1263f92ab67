/* Codes in registers, as they lie in memory: the first of them in the lowest bits. */
#pragma once

#include "kernels/chunk.cuh"

template <unsigned BITS, unsigned N> struct packed {
    static constexpr unsigned a_word = 32 / BITS, words = N / a_word;
    uint32_t w[words];

    __device__ __forceinline__ uint32_t get(unsigned i) const
    {
        return w[i / a_word] >> i % a_word * BITS & ((1u << BITS) - 1);
    }
    /* One after the other, from the first on: that which a word starts with clears the rest of it. */
    __device__ __forceinline__ void put(unsigned i, uint32_t code)
    {
        w[i / a_word] = (i % a_word ? w[i / a_word] : 0) | (code & ((1u << BITS) - 1)) << i % a_word * BITS;
    }
};

template <unsigned BITS> struct code_word;
template <> struct code_word<4> {
    typedef uint8_t type; /* two of them */
};
template <> struct code_word<8> {
    typedef uint8_t type;
};
template <> struct code_word<16> {
    typedef uint16_t type;
};

/* Codes of less than a byte come in whole bytes: a span of them starts at its chunk's first element, and ends at
 * its chunk's end or at the tensor's. */
template <unsigned BITS, unsigned N>
static __device__ __forceinline__ void packed_store(const span<N> &s, void *base, const packed<BITS, N> &codes)
{
    typedef typename code_word<BITS>::type word;
    constexpr unsigned each = BITS < 8 ? 8 / BITS : 1;
    word *to = static_cast<word *>(base) + s.at / each;

    if (s.vector) {
        chunk_store(reinterpret_cast<uint32_t *>(to),
                    *reinterpret_cast<const chunk<uint32_t, packed<BITS, N>::words> *>(&codes));
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < N; i += each)
        if (s.has(i))
            to[i / each] = (word)(codes.w[i / codes.a_word] >> i % codes.a_word * BITS);
}

template <unsigned BITS, unsigned N>
static __device__ __forceinline__ packed<BITS, N> packed_load(const span<N> &s, const void *base)
{
    typedef typename code_word<BITS>::type word;
    constexpr unsigned each = BITS < 8 ? 8 / BITS : 1;
    const word *from = static_cast<const word *>(base) + s.at / each;
    packed<BITS, N> codes = {};

    if (s.vector) {
        chunk<uint32_t, packed<BITS, N>::words> c;
        chunk_load(c, reinterpret_cast<const uint32_t *>(from));
        codes = *reinterpret_cast<packed<BITS, N> *>(&c);
        return codes;
    }
#pragma unroll
    for (unsigned i = 0; i < N; i += each)
        if (s.has(i))
            codes.w[i / codes.a_word] |= (uint32_t)from[i / each] << i % codes.a_word * BITS;
    return codes;
}
