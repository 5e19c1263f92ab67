/* The pieces of a packed extent, checked, and cut into batches: what is encoded into one stretch of scratch memory and
 * crosses the link in one go. A batch is a checksum chunk, or several where a piece is longer than one. */
#pragma once

#include "daemon/worker/device.h"
#include "daemon/worker/job.h"
#include "kernels/lossless.h"

#define PACK_PIECES_MAX (1u << 22)

struct pack_batch {
    uint32_t first, n;      /* pieces */
    uint64_t offset, bytes; /* in the packed extent */
};

struct pack_plan {
    struct job_piece *pieces; /* our own copy */
    struct lossless_code *codes; /* behind them, one a receipt; NULL: none came */
    uint32_t n_pieces;
    struct pack_batch *batches;
    uint64_t n_batches;
};

/* `bytes` of a packed extent, of a raw one of raw_size. */
int pack_plan_make(struct pack_plan *plan, int pieces_fd, uint32_t n_pieces, uint32_t n_receipts, uint64_t raw_size,
                   uint64_t bytes, struct failure *failure);
/* Our own copy of n pieces, and of the `behind` bytes that may follow them. */
struct job_piece *pieces_load(int fd, uint32_t n, uint64_t behind, bool *has_more, struct failure *failure);
void pack_plan_free(struct pack_plan *plan);

static inline bool piece_is_encoded(const struct job_piece *piece)
{
    return piece->encoding.codec != HBM_CODEC_RAW;
}
static inline uint64_t piece_elements(const struct job_piece *piece)
{
    return piece->dims[0] * piece->dims[1] * piece->dims[2];
}
uint64_t piece_raw_bytes(const struct job_piece *piece);
/* Where the zero points begin, counted from the scales. */
uint64_t piece_zero(const struct job_piece *piece);
/* Data, scales and zero points, without what aligns them. */
uint64_t piece_packed_bytes(const struct job_piece *piece);
/* All but where its bytes lie. */
struct codec_job piece_codec(const struct job_piece *piece);
