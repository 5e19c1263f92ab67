/* bf16-lossless: any tensor of 16-bit floats, back bit for bit. The eight bits under the sign (of bf16 its exponent, of fp16
 * that and the top of the fraction) are a symbol of a Huffman code made for the tensor; the sign and the seven bits below
 * lie as they are. What that does not shorten lies in plain bytes: nothing grows by more than its header and 4 bytes a block.
 *
 * A stream, little-endian; low and the blocks begin at multiples of 16, zeros between:
 *   u16 codewords[16]   of each length, 1 to 12
 *   u8 symbol[256]      by codeword: canonical, the shorter before the longer, then by symbol
 *   u32 end[blocks]     of each block, in words of 4 bytes from where the first begins
 *   u8 low[elements]    sign << 7 | the lowest seven bits
 *   blocks              of 4096 elements each, the last of what is left
 * A block of as many words as its symbols take with a byte each has them so. Else it begins with 32 u16: at which bit behind
 * them each lane begins. Lane t has of each 256 elements those from 8 t to 8 t + 7: lanes are decoded independently of each
 * other, and what 32 threads decode in step are whole lines of memory. A codeword's first bit is the lowest; a stream of
 * bits fills words from the lowest bit up.
 *
 * A tensor may be encoded as several streams, cut at any multiple of a block: all by one code, and each decodes alone. */
#pragma once

#include "kernels/codec.h"
#include "kernels/element.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LOSSLESS_LENGTHS 16u
#define LOSSLESS_LONGEST 12u /* bits of a codeword */
#define LOSSLESS_TABLE (1u << LOSSLESS_LONGEST)
#define LOSSLESS_HEADER (2u * LOSSLESS_LENGTHS + 256u)
#define LOSSLESS_BLOCK 4096u /* elements */
#define LOSSLESS_LANES 32u
#define LOSSLESS_RUN 8u                                /* elements a lane has in a row */
#define LOSSLESS_STEP (LOSSLESS_LANES * LOSSLESS_RUN) /* elements that all lanes decode in step */
#define LOSSLESS_STARTS (LOSSLESS_LANES * 2u / 4u)     /* words in front of a block's bits */
#define LOSSLESS_MAX ((uint64_t)1 << 33)               /* elements: `end` holds their blocks */

/* Bits of each symbol's codeword; 0: it has none. */
struct lossless_code {
    uint8_t length[256];
};

/* What decoding goes by: codewords as numbers of 12 bits, their first bit on top, those of one length side by side. */
struct lossless_lengths {
    uint16_t limit[LOSSLESS_LONGEST + 1]; /* behind the last codeword of this length */
    uint16_t first[LOSSLESS_LONGEST + 1]; /* which of the symbols the first one is */
};

ELEMENT_FN uint64_t lossless_blocks(uint64_t elements)
{
    return elements / LOSSLESS_BLOCK + (elements % LOSSLESS_BLOCK != 0);
}

/* Where the parts of a stream begin. */
ELEMENT_FN uint64_t lossless_low_at(uint64_t elements)
{
    return (LOSSLESS_HEADER + 4 * lossless_blocks(elements) + 15) / 16 * 16;
}

ELEMENT_FN uint64_t lossless_blocks_at(uint64_t elements)
{
    return lossless_low_at(elements) + (elements + 15) / 16 * 16;
}

/* More than these bytes none has. */
ELEMENT_FN uint64_t lossless_most(uint64_t elements)
{
    return lossless_blocks_at(elements) + (elements + 3) / 4 * 4;
}

ELEMENT_FN unsigned lossless_symbol(unsigned element)
{
    return element >> 7 & 255u;
}

ELEMENT_FN unsigned lossless_low(unsigned element)
{
    return (element >> 8 & 128u) | (element & 127u);
}

ELEMENT_FN unsigned lossless_element(unsigned symbol, unsigned low)
{
    return (low & 128u) << 8 | symbol << 7 | (low & 127u);
}

/* Of a block of so many elements: words if its symbols lie in plain bytes, and if they are coded. */
ELEMENT_FN uint32_t lossless_plain_words(uint32_t elements)
{
    return (elements + 3) / 4;
}

ELEMENT_FN uint32_t lossless_coded_words(uint32_t bits)
{
    return LOSSLESS_STARTS + (bits + 31) / 32;
}

ELEMENT_FN unsigned lossless_reverse(unsigned codeword)
{
#ifdef __CUDA_ARCH__
    return __brev(codeword) >> (32 - LOSSLESS_LONGEST);
#else
    codeword = (codeword & 0x555u) << 1 | (codeword >> 1 & 0x555u); /* bits of pairs, then pairs, then fours */
    codeword = (codeword & 0x333u) << 2 | (codeword >> 2 & 0x333u);
    return (codeword & 0xfu) << 8 | (codeword & 0xf0u) | codeword >> 8;
#endif
}

/* Of any counts, those of no code at all too: what follows stays within its tables. */
ELEMENT_FN void lossless_lengths_of(const uint16_t codewords[LOSSLESS_LENGTHS], struct lossless_lengths *lengths)
{
    uint32_t limit = 0, first = 0;

    lengths->limit[0] = lengths->first[0] = 0;
    for (unsigned length = 1; length <= LOSSLESS_LONGEST; length++) {
        lengths->first[length] = (uint16_t)first;
        limit += (uint32_t)codewords[length] << (LOSSLESS_LONGEST - length);
        first += codewords[length];
        limit = limit < LOSSLESS_TABLE ? limit : LOSSLESS_TABLE;
        first = first < 256 ? first : 255;
        lengths->limit[length] = (uint16_t)limit;
    }
}

/* symbol | length << 8 of the codeword that the next 12 bits begin with. */
ELEMENT_FN uint16_t lossless_entry(const struct lossless_lengths *lengths, const uint8_t symbol[256], unsigned bits)
{
    unsigned codeword = lossless_reverse(bits);

    for (unsigned length = 1; length <= LOSSLESS_LONGEST; length++)
        if (codeword < lengths->limit[length]) {
            unsigned nth = (codeword - lengths->limit[length - 1]) >> (LOSSLESS_LONGEST - length);
            return (uint16_t)(symbol[(lengths->first[length] + nth) & 255u] | length << 8);
        }
    return 1u << 8; /* there is no such codeword */
}

/* What encoding goes by, of either side. codeword: its first bit the lowest. */
struct lossless_encoder {
    uint16_t codewords[LOSSLESS_LENGTHS];
    uint8_t symbol[256]; /* as in the stream */
    uint8_t length[256];
    uint16_t codeword[256];
};
void lossless_encoder_of(const struct lossless_code *code, struct lossless_encoder *encoder);

/* The code for what was counted. */
void lossless_code_of(const uint64_t counts[256], struct lossless_code *code);

/* Measuring, in two passes: counts are added to; blocks[] are the words that each block takes by the code. */
void lossless_count_host(const uint16_t *elements, uint64_t n, uint64_t counts[256]);
void lossless_words_host(const uint16_t *elements, uint64_t n, const struct lossless_code *code, uint32_t *words);
/* The same, all in device memory. Asynchronous; a cudaError_t. */
int lossless_count_cuda(const void *elements, uint64_t n, uint64_t *counts, void *stream);
int lossless_words_cuda(const void *elements, uint64_t n, const struct lossless_code *code, uint32_t *words,
                        void *stream);

#ifdef __cplusplus
}
#endif
