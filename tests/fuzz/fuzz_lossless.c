/* Any bytes as a stream of bf16-lossless: they decode to something, the same each time, and nothing behind their end is
 * read or written. The same bytes as elements: encoded by a code of their own, or by one made of noise, they come back. */
#include "kernels/lossless.h"
#include "kernels/tally.h"
#include "tests/fuzz/input.h"

#define ELEMENTS_MAX 9000u

static struct codec_job job_of(uint64_t elements, void *data, uint64_t bytes)
{
    return (struct codec_job){.data = data,
                              .data_bytes = bytes,
                              .dims = {elements},
                              .rank = 1,
                              .dtype = HBM_BF16,
                              .encoding = {.codec = HBM_CODEC_BF16_LOSSLESS, .stored = HBM_U8}};
}

/* Header and ends first, then what lies in the blocks: an input has room for both, and not for what lies between. */
static void decode_noise(struct input in)
{
    uint64_t n = take_number(&in) % ELEMENTS_MAX, at = lossless_blocks_at(n), bytes = at + in.left % (lossless_most(n) - at + 64);
    unsigned char *stream = calloc(1, bytes + 1);
    uint16_t *once = malloc(n * 2 + 1), *again = malloc(n * 2 + 1);

    CHECK(stream && once && again);
    if (take_byte(&in) & 1)
        bytes = bytes ? take_number(&in) % bytes : 0;
    unsigned char *exact = malloc(bytes ? bytes : 1);
    take(&in, stream, LOSSLESS_HEADER + 4 * lossless_blocks(n));
    for (uint64_t i = at; i < bytes; i++)
        stream[i] = take_byte(&in);
    memcpy(exact, stream, bytes);
    struct codec_job job = job_of(n, exact, bytes);
    job.raw_out = once;
    codec_decode_host(&job);
    memset(again, 0xff, n * 2);
    job.raw_out = again;
    codec_decode_host(&job);
    CHECK(!memcmp(once, again, n * 2));
    free(exact);
    free(stream);
    free(once);
    free(again);
}

static void there_and_back(const uint16_t *elements, uint64_t n, const struct lossless_code *code)
{
    uint32_t words[ELEMENTS_MAX / LOSSLESS_BLOCK + 1];
    uint64_t bytes = lossless_blocks_at(n);
    uint16_t *back = malloc(n * 2 + 1);
    struct codec_tally tally;

    lossless_words_host(elements, n, code, words);
    for (uint64_t b = 0; b < lossless_blocks(n); b++)
        bytes += 4ull * words[b];
    unsigned char *stream = malloc(bytes);
    CHECK(bytes <= lossless_most(n) && stream && back);
    struct codec_job job = job_of(n, stream, bytes);
    job.raw_in = elements;
    job.raw_out = back;
    job.code = code;
    codec_tally_host(&job, &tally);
    CHECK(!tally.overflow);
    codec_decode_host(&job);
    CHECK(!memcmp(back, elements, n * 2));
    free(stream);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static uint16_t elements[ELEMENTS_MAX];
    uint64_t counts[256] = {0}, n = size / 2;
    struct lossless_code code;
    unsigned repeat = size ? bytes[0] % 4 + 1u : 1;

    decode_noise((struct input){bytes, size});
    for (unsigned i = 0; i < repeat; i++)
        memcpy(elements + i * n, bytes, n * 2);
    n *= repeat;
    lossless_count_host(elements, n, counts);
    lossless_code_of(counts, &code);
    there_and_back(elements, n, &code);
    for (unsigned i = 0; i < 256; i++) /* as if the tensor had been another one when it was measured */
        counts[i] = i < size ? bytes[i] : 0;
    lossless_code_of(counts, &code);
    there_and_back(elements, n, &code);
    return 0;
}
