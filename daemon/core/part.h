/* What an encoded buffer is coded with, in buffers of their own that go with it wherever it goes: its scales (NAME.scale, F32) and,
 * where the codec has them, its zero points (NAME.zero, I32), the numbers of the channels that lie apart (NAME.channels, I32) and
 * their elements (NAME.outliers, F16), each at the next aligned place behind the one before. One dimension each. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/vocab.h"

struct buffer;
struct placement;

enum { PART_SCALE, PART_ZERO, PART_CHANNELS, PART_OUTLIERS, PARTS };

/* Those that the buffer has; the body may free its part. */
#define FOR_EACH_PART(part, buffer)                                                                                     \
    for (unsigned part##_number = 0; part##_number < PARTS; part##_number++)                                         \
        for (struct buffer *part = (buffer)->parts[part##_number]; part; part = NULL)

const char *part_suffix(unsigned part);                  /* ".scale" */
const char *part_what(unsigned part);                    /* "scales" */
bool part_has(unsigned part, unsigned codec);            /* the codec has such */
/* Of a shape that the encoding takes. 0: the codec has none. */
uint64_t part_bytes(unsigned part, const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank);
/* What a part of that dtype is to a buffer in that codec. */
unsigned part_of_dtype(unsigned dtype, unsigned codec);
/* NAME with the suffix; false if that is longer than a name may be. */
bool part_name(unsigned part, const char *name, char *full, unsigned long size);
/* Linked to its parent. NULL with error and detail. */
struct buffer *part_new(struct buffer *parent, unsigned part, const struct placement *placement, int *error, char *detail);
/* All that the buffer has, where they lie now; writes their rows. */
void parts_place(struct buffer *parent, const struct placement *placement);
