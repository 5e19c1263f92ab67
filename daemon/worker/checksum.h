/* The checksum of a copy: the bytes in grains of 1 MiB counted from the first one copied, XXH3-64 of each grain, and
 * XXH3-64 of the array of these. So grains can be hashed by a device or several threads, in any order, and the same
 * bytes have the same checksum on every path between device, host and disk. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_GRAIN ((uint64_t)1 << 20)
/* What is staged, sent or hashed in one step: so many grains. */
#define CHECKSUM_GRAINS 16
#define CHECKSUM_CHUNK (CHECKSUM_GRAINS * CHECKSUM_GRAIN)

/* Picks the fastest code for this CPU; once, before any thread hashes. */
void checksum_init(void);
uint64_t checksum_chunks(uint64_t bytes);
/* Bytes of chunk `index`. */
size_t checksum_chunk_bytes(uint64_t bytes, uint64_t index);
uint64_t checksum_grains(uint64_t bytes);
/* Of one grain. */
uint64_t checksum_of(const void *bytes, size_t size);
/* Of the grains of one chunk, each to its place from hashes[0] on. */
void checksum_of_chunk(const void *bytes, size_t size, uint64_t *hashes);
/* Of the hashes of all grains. */
uint64_t checksum_combine(const uint64_t *hashes, uint64_t count);

/* XXH3-64 over pieces that come one after the other. */
struct checksum_stream;
struct checksum_stream *checksum_stream_new(void); /* NULL: out of memory */
struct checksum_stream *checksum_stream_free(struct checksum_stream *stream);
void checksum_stream_reset(struct checksum_stream *stream);
void checksum_stream_add(struct checksum_stream *stream, const void *bytes, size_t size);
uint64_t checksum_stream_result(const struct checksum_stream *stream);
