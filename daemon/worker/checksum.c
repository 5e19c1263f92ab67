#include "daemon/worker/checksum.h"

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

void checksum_init(void)
{
    static const unsigned char sample[512];

    /* libxxhash chooses its vector unit in the first long hash, without a lock. */
    (void)checksum_of(sample, sizeof(sample));
}

uint64_t checksum_chunks(uint64_t bytes)
{
    return bytes / CHECKSUM_CHUNK + (bytes % CHECKSUM_CHUNK != 0);
}

size_t checksum_chunk_bytes(uint64_t bytes, uint64_t index)
{
    uint64_t left = bytes - index * CHECKSUM_CHUNK;

    return left < CHECKSUM_CHUNK ? left : CHECKSUM_CHUNK;
}

uint64_t checksum_grains(uint64_t bytes)
{
    return bytes / CHECKSUM_GRAIN + (bytes % CHECKSUM_GRAIN != 0);
}

uint64_t checksum_of(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}

void checksum_of_chunk(const void *bytes, size_t size, uint64_t *hashes)
{
    const unsigned char *grain = bytes;

    for (; size > CHECKSUM_GRAIN; size -= CHECKSUM_GRAIN, grain += CHECKSUM_GRAIN)
        *hashes++ = checksum_of(grain, CHECKSUM_GRAIN);
    if (size)
        *hashes = checksum_of(grain, size);
}

uint64_t checksum_combine(const uint64_t *hashes, uint64_t count)
{
    return XXH3_64bits(hashes, count * sizeof(*hashes));
}

struct checksum_stream *checksum_stream_new(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (state)
        XXH3_64bits_reset(state);
    return (struct checksum_stream *)state;
}

struct checksum_stream *checksum_stream_free(struct checksum_stream *stream)
{
    XXH3_freeState((XXH3_state_t *)stream);
    return NULL;
}

void checksum_stream_reset(struct checksum_stream *stream)
{
    XXH3_64bits_reset((XXH3_state_t *)stream);
}

void checksum_stream_add(struct checksum_stream *stream, const void *bytes, size_t size)
{
    XXH3_64bits_update((XXH3_state_t *)stream, bytes, size);
}

uint64_t checksum_stream_result(const struct checksum_stream *stream)
{
    return XXH3_64bits_digest((const XXH3_state_t *)stream);
}
