/* The bytes of a buffer: a pattern of floats that tells key and version apart, and that bf16 holds exactly, so that
 * what a codec made of it is known too. On the host device they are the process's own memory, on a GPU copied. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUFFER_MAX ((size_t)32 << 20)

/* cuda: this process's memory is a GPU's, and it gets the first GPU's primary context. False: a sentence is on
 * stderr. */
bool memory_open(bool cuda);
extern unsigned
    memory_scale; /* how much larger buffers are: a GPU copies so fast that small ones never move for long */

/* Elements of 4 bytes, or of 2 where they are bf16. size: bytes, at most BUFFER_MAX. */
struct pattern {
    uint32_t key, version;
    bool bf16;
};
void pattern_make(struct pattern pattern, void *into, size_t size);

/* In so many pieces, with time between them to be killed in. */
bool memory_write(void *at, struct pattern pattern, size_t size, unsigned pieces);
/* Each element is that of one of the n versions. NULL if so; else a sentence about the first that is not, valid
 * until the next call. mixed: not all are of the same version. */
const char *memory_check(const void *at, struct pattern pattern, const uint32_t *versions, unsigned n, size_t size,
                         bool *mixed);
/* The bytes themselves, valid until the next call. NULL: they cannot be read. */
const void *memory_read(const void *at, size_t size);
