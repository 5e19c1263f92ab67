/* A buffer that is encoded or decoded, cut into pieces: between two of them the job tells how far it is, and may be cancelled. */
#pragma once

#include "daemon/worker/device.h"

struct code_cut {
    struct codec_job whole; /* of a shape that is cut along dims[axis], or not at all */
    unsigned axis;
    uint64_t n, step;      /* rows along it, and how many a piece has */
    uint64_t raw;          /* bytes of a row */
    uint64_t bits;         /* of its data; of a piece but the last they come to whole bytes */
    uint64_t scales;       /* of a row */
    uint64_t pieces;
};

/* So that no piece has many more raw bytes than at_once, where it can be: encoded to int8, what shares a scale stays together. */
struct code_cut code_cut(const struct codec_job *job, bool encode, uint64_t at_once);
struct codec_job code_cut_piece(const struct code_cut *cut, uint64_t index);
uint64_t code_cut_bytes(const struct code_cut *cut, uint64_t index); /* raw ones */
