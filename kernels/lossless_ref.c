/* bf16-lossless on the host. */
#include "kernels/lossless.h"

#include <string.h>

#include "kernels/reference.h"

/* ---- Measuring ---- */

void lossless_count_host(const uint16_t *elements, uint64_t n, uint64_t counts[256])
{
    uint64_t ways[4][256] = {0}; /* so that equal neighbours do not wait for each other */

    for (uint64_t i = 0; i < n; i++)
        ways[i % 4][lossless_symbol(elements[i])]++;
    for (unsigned i = 0; i < 256; i++)
        counts[i] += ways[0][i] + ways[1][i] + ways[2][i] + ways[3][i];
}

/* Of a block: how many bits each lane takes. The words of all; those of plain bytes if that is no less. */
static uint32_t measure(const uint16_t *elements, uint32_t n, const uint8_t length[256],
                        uint32_t bits[LOSSLESS_LANES])
{
    uint32_t all = 0, plain = lossless_plain_words(n);
    bool coded = true;

    memset(bits, 0, LOSSLESS_LANES * sizeof(*bits));
    for (uint32_t at = 0; at < n; at += LOSSLESS_RUN) {
        uint32_t run = 0;
        for (uint32_t i = at; i < n && i < at + LOSSLESS_RUN; i++) {
            uint32_t one = length[lossless_symbol(elements[i])];
            run += one;
            coded &= one != 0;
        }
        bits[at / LOSSLESS_RUN % LOSSLESS_LANES] += run;
    }
    for (unsigned t = 0; t < LOSSLESS_LANES; t++)
        all += bits[t];
    return coded && lossless_coded_words(all) < plain ? lossless_coded_words(all) : plain;
}

static uint32_t elements_of(uint64_t n, uint64_t block)
{
    uint64_t left = n - block * LOSSLESS_BLOCK;

    return left < LOSSLESS_BLOCK ? (uint32_t)left : LOSSLESS_BLOCK;
}

void lossless_words_host(const uint16_t *elements, uint64_t n, const struct lossless_code *code, uint32_t *words)
{
    uint32_t bits[LOSSLESS_LANES];

    for (uint64_t b = 0; b < lossless_blocks(n); b++)
        words[b] = measure(elements + b * LOSSLESS_BLOCK, elements_of(n, b), code->length, bits);
}

/* ---- Encoding ---- */

struct bit_writer {
    uint32_t *to;
    uint64_t bits;
    unsigned n;
};

static void write_bits(struct bit_writer *writer, uint32_t bits, unsigned n)
{
    writer->bits |= (uint64_t)bits << writer->n;
    writer->n += n;
    if (writer->n < 32)
        return;
    *writer->to++ = (uint32_t)writer->bits;
    writer->bits >>= 32;
    writer->n -= 32;
}

static void encode_block(const uint16_t *elements, uint32_t n, const struct lossless_encoder *encoder, uint32_t words,
                         const uint32_t bits[LOSSLESS_LANES], uint32_t *to)
{
    struct bit_writer writer = {.to = to + LOSSLESS_STARTS};
    uint16_t starts[LOSSLESS_LANES];
    uint32_t start = 0;

    to[words - 1] = 0;
    if (words == lossless_plain_words(n)) {
        for (uint32_t i = 0; i < n; i++)
            ((uint8_t *)to)[i] = (uint8_t)lossless_symbol(elements[i]);
        return;
    }
    for (unsigned t = 0; t < LOSSLESS_LANES; start += bits[t++])
        starts[t] = (uint16_t)start;
    memcpy(to, starts, sizeof(starts));
    for (unsigned t = 0; t < LOSSLESS_LANES; t++)
        for (uint32_t at = t * LOSSLESS_RUN; at < n; at += LOSSLESS_STEP)
            for (uint32_t i = at; i < n && i < at + LOSSLESS_RUN; i++) {
                unsigned symbol = lossless_symbol(elements[i]);
                write_bits(&writer, encoder->codeword[symbol], encoder->length[symbol]);
            }
    if (writer.n)
        *writer.to = (uint32_t)writer.bits;
}

static void count_nonfinite(const uint16_t *elements, uint64_t n, unsigned dtype, struct codec_tally *tally)
{
    uint16_t exponent = dtype == HBM_BF16 ? 0x7f80 : 0x7c00;

    for (uint64_t i = 0; i < n; i++) {
        tally->nonfinite += (elements[i] & exponent) == exponent;
        tally->nans += (elements[i] & 0x7fff) > exponent;
    }
}

static void encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally)
{
    const uint16_t *elements = job->raw_in;
    unsigned char *stream = job->data;
    uint64_t n = view->count, low_at = lossless_low_at(n), blocks_at = lossless_blocks_at(n), at = 0;
    uint64_t room = job->data_bytes < blocks_at ? 0 : (job->data_bytes - blocks_at) / 4;
    uint32_t *end = (uint32_t *)(void *)(stream + LOSSLESS_HEADER), *words = (uint32_t *)(void *)(stream + blocks_at);
    uint32_t bits[LOSSLESS_LANES];
    struct lossless_encoder encoder;

    count_nonfinite(elements, n, job->dtype, tally);
    tally->overflow = job->data_bytes < blocks_at;
    if (tally->overflow)
        return;
    lossless_encoder_of(job->code, &encoder);
    memcpy(stream, encoder.codewords, sizeof(encoder.codewords));
    memcpy(stream + sizeof(encoder.codewords), encoder.symbol, sizeof(encoder.symbol));
    for (uint64_t b = 0; b < lossless_blocks(n); b++) {
        const uint16_t *block = elements + b * LOSSLESS_BLOCK;
        uint32_t in_block = elements_of(n, b), more = measure(block, in_block, encoder.length, bits);

        if (at + more <= room)
            encode_block(block, in_block, &encoder, more, bits, words + at);
        else
            tally->overflow = 1;
        end[b] = (uint32_t)(at += more);
    }
    memset(end + lossless_blocks(n), 0, low_at - LOSSLESS_HEADER - 4 * lossless_blocks(n));
    for (uint64_t i = 0; i < n; i++)
        stream[low_at + i] = (unsigned char)lossless_low(elements[i]);
    memset(stream + low_at + n, 0, blocks_at - low_at - n);
}

/* ---- Decoding: of a stream that may be anything ---- */

struct decoder {
    uint16_t entry[LOSSLESS_TABLE];
    unsigned char bits[4 * LOSSLESS_BLOCK / 4 + 8]; /* of a block, zeros behind them */
    uint64_t bytes;
    uint8_t symbol[LOSSLESS_BLOCK];
};

/* The next 57 bits or more; behind the end there are zeros. */
static uint64_t peek(const struct decoder *d, uint32_t at)
{
    uint64_t bits, byte = at / 8 < d->bytes ? at / 8 : d->bytes;

    memcpy(&bits, d->bits + byte, sizeof(bits));
    return bits >> at % 8;
}

static uint32_t decode_run(const struct decoder *d, uint32_t at, uint32_t n, uint8_t *symbol)
{
    for (uint32_t i = 0; i < n;) {
        uint64_t bits = peek(d, at);
        for (uint32_t until = n - i < 4 ? n : i + 4; i < until; i++) {
            unsigned entry = d->entry[bits & (LOSSLESS_TABLE - 1)], length = entry >> 8;
            symbol[i] = (uint8_t)entry;
            bits >>= length;
            at += length;
        }
    }
    return at;
}

static void decode_lanes(struct decoder *d, const uint32_t *words, uint32_t n_words, uint32_t n)
{
    uint16_t starts[LOSSLESS_LANES];
    uint32_t at[LOSSLESS_LANES];

    memcpy(starts, words, sizeof(starts));
    d->bytes = (uint64_t)(n_words - LOSSLESS_STARTS) * sizeof(*words);
    memcpy(d->bits, words + LOSSLESS_STARTS, d->bytes);
    memset(d->bits + d->bytes, 0, 8);
    for (unsigned t = 0; t < LOSSLESS_LANES; t++)
        at[t] = starts[t];
    for (uint32_t step = 0; step < n; step += LOSSLESS_STEP)
        for (uint32_t t = 0, i = step; t < LOSSLESS_LANES && i < n; t++, i += LOSSLESS_RUN)
            at[t] = decode_run(d, at[t], n - i < LOSSLESS_RUN ? n - i : LOSSLESS_RUN, d->symbol + i);
}

static void decode_block(struct decoder *d, const uint32_t *words, uint32_t n_words, uint32_t n,
                         const unsigned char *low, uint16_t *elements)
{
    const uint8_t *symbol = d->symbol;

    if (n_words == lossless_plain_words(n))
        symbol = (const uint8_t *)words;
    else if (n_words < LOSSLESS_STARTS || n_words > lossless_plain_words(n))
        memset(d->symbol, 0, n);
    else
        decode_lanes(d, words, n_words, n);
    for (uint32_t i = 0; i < n; i++)
        elements[i] = (uint16_t)lossless_element(symbol[i], low[i]);
}

static void decode(const struct codec_job *job, const struct codec_view *view)
{
    const unsigned char *stream = job->data;
    uint16_t *elements = job->raw_out, codewords[LOSSLESS_LENGTHS];
    uint64_t n = view->count, low_at = lossless_low_at(n), blocks_at = lossless_blocks_at(n), start = 0;
    const uint32_t *words = (const uint32_t *)(const void *)(stream + blocks_at);
    struct lossless_lengths lengths;
    struct decoder d;

    if (job->data_bytes < blocks_at) {
        memset(elements, 0, n * sizeof(*elements));
        return;
    }
    memcpy(codewords, stream, sizeof(codewords));
    lossless_lengths_of(codewords, &lengths);
    for (unsigned i = 0; i < LOSSLESS_TABLE; i++)
        d.entry[i] = lossless_entry(&lengths, stream + sizeof(codewords), i);
    for (uint64_t b = 0; b < lossless_blocks(n); b++) {
        uint64_t end = ((const uint32_t *)(const void *)(stream + LOSSLESS_HEADER))[b];
        bool lies_in = start <= end && end <= (job->data_bytes - blocks_at) / 4 && end - start <= LOSSLESS_BLOCK / 4;

        decode_block(&d, words + (lies_in ? start : 0), lies_in ? (uint32_t)(end - start) : 0, elements_of(n, b),
                     stream + low_at + b * LOSSLESS_BLOCK, elements + b * LOSSLESS_BLOCK);
        start = end;
    }
}

const struct codec_reference codec_reference_bf16_lossless = {encode, decode};
