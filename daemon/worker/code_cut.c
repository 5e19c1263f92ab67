#include "daemon/worker/code_cut.h"

#include <string.h>

#define ALIGNED 64u /* rows: pieces of many begin where vectors may */

static uint64_t product(const uint64_t *dims, unsigned from, unsigned to)
{
    uint64_t n = 1;

    for (unsigned i = from; i < to; i++)
        n *= dims[i];
    return n;
}

/* The same elements and units as `outer, rows, inner`, which is what a piece is a part of. */
static void reshape(struct codec_job *job, uint64_t outer, uint64_t rows, uint64_t inner)
{
    job->rank = 3;
    job->dims[0] = outer;
    job->dims[1] = rows;
    job->dims[2] = inner;
}

/* As many elements a row have units of their own. */
static void cut_rows(struct code_cut *cut, unsigned axis, uint64_t elements, uint64_t scales)
{
    cut->axis = axis;
    cut->n = cut->whole.dims[axis];
    cut->raw = elements * (hbm_dtype_bits(cut->whole.dtype) / 8);
    cut->bits = elements * hbm_dtype_bits(cut->whole.encoding.stored);
    cut->scales = scales;
}

static void cut_channels(struct code_cut *cut, bool encode)
{
    const struct codec_job job = cut->whole;
    unsigned axis = job.encoding.axis;
    uint64_t outer = product(job.dims, 0, axis), channels = job.dims[axis], inner = product(job.dims, axis + 1, job.rank);

    reshape(&cut->whole, outer, channels, inner);
    cut->whole.encoding.axis = 1;
    if (outer == 1)
        cut_rows(cut, 1, inner, 1);
    else if (!encode)
        cut_rows(cut, 0, channels * inner, 0);
}

static void cut_groups(struct code_cut *cut)
{
    const struct codec_job job = cut->whole;
    uint64_t last = job.dims[job.rank - 1], group = job.encoding.group, elements = product(job.dims, 0, job.rank);

    if (last % group == 0) /* no group ends with its row */
        last = group;
    reshape(&cut->whole, 1, elements / last, last);
    cut_rows(cut, 1, last, last / group + (last % group != 0));
}

static void cut_elements(struct code_cut *cut)
{
    uint64_t elements = product(cut->whole.dims, 0, cut->whole.rank);

    reshape(&cut->whole, 1, 1, elements);
    cut_rows(cut, 2, 1, 0);
}

static void choose(struct code_cut *cut, bool encode)
{
    const struct hbm_encoding *e = &cut->whole.encoding;
    uint64_t elements = product(cut->whole.dims, 0, cut->whole.rank);

    if (!elements || hbm_codec_splits(e->codec)) /* which channels lie apart is known when all have been seen */
        return;
    if (!hbm_codec_scale_bytes(e->codec) || (e->granularity == HBM_PER_TENSOR && !encode))
        cut_elements(cut);
    else if (e->granularity == HBM_PER_CHANNEL)
        cut_channels(cut, encode);
    else if (e->granularity == HBM_PER_GROUP)
        cut_groups(cut);
}

struct code_cut code_cut(const struct codec_job *job, bool encode, uint64_t at_once)
{
    struct code_cut cut = {.whole = *job, .n = 1, .step = 1, .pieces = 1};

    choose(&cut, encode);
    if (!cut.raw) { /* in one */
        cut.whole = *job;
        hbm_shape_bytes(job->dims, job->rank, job->dtype, &cut.raw);
        return cut;
    }
    cut.step = at_once / cut.raw;
    if (cut.step > ALIGNED)
        cut.step -= cut.step % ALIGNED;
    if (cut.bits % 8) /* codes of two rows share a byte */
        cut.step -= cut.step % 2;
    if (!cut.step)
        cut.step = cut.bits % 8 ? 2 : 1;
    cut.pieces = cut.n / cut.step + (cut.n % cut.step != 0);
    if (cut.pieces == 1) { /* as it was asked for */
        cut.whole = *job;
        cut.raw *= cut.n;
        cut.n = cut.step = 1;
    }
    return cut;
}

static uint64_t rows_of(const struct code_cut *cut, uint64_t index)
{
    uint64_t left = cut->n - index * cut->step;

    return left < cut->step ? left : cut->step;
}

struct codec_job code_cut_piece(const struct code_cut *cut, uint64_t index)
{
    struct codec_job piece = cut->whole;
    uint64_t before = index * cut->step;

    if (cut->pieces == 1)
        return piece;
    piece.dims[cut->axis] = rows_of(cut, index);
    if (piece.raw_in)
        piece.raw_in = (const unsigned char *)piece.raw_in + before * cut->raw;
    if (piece.raw_out)
        piece.raw_out = (unsigned char *)piece.raw_out + before * cut->raw;
    piece.data = (unsigned char *)piece.data + before * cut->bits / 8;
    if (piece.scale)
        piece.scale += before * cut->scales;
    if (piece.zero)
        piece.zero += before * cut->scales;
    return piece;
}

uint64_t code_cut_bytes(const struct code_cut *cut, uint64_t index)
{
    return rows_of(cut, index) * cut->raw;
}
