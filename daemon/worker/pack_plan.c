#include "daemon/worker/pack_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/checksum.h"
#include "proto/memfd.h"

#define RANK 3

uint64_t piece_raw_bytes(const struct job_piece *piece)
{
    return piece_elements(piece) * (piece_is_encoded(piece) ? hbm_dtype_bits(piece->dtype) / 8 : 1);
}

struct codec_job piece_codec(const struct job_piece *piece)
{
    struct codec_job job = {.rank = RANK, .dtype = piece->dtype, .encoding = piece->encoding};

    memcpy(job.dims, piece->dims, sizeof(piece->dims));
    return job;
}

static bool lies_in(uint64_t offset, uint64_t bytes, uint64_t from, uint64_t to)
{
    return offset >= from && offset <= to && bytes <= to - offset;
}

struct sizes {
    uint64_t raw, data;
    uint64_t units, zero, end; /* zero points and the end of all units, counted from the scales */
};

/* Of a piece that codec_supported takes, or that is copied: sizes that do not overflow. False else. */
static bool measure(const struct job_piece *piece, struct sizes *sizes)
{
    const struct hbm_encoding *e = &piece->encoding;

    *sizes = (struct sizes){0};
    if (!piece_is_encoded(piece)) {
        bool counts = hbm_shape_elements(piece->dims, RANK, &sizes->raw);
        sizes->data = sizes->raw;
        return counts;
    }
    if (hbm_codec_varies(e->codec)) {
        sizes->data = piece->scale_offset - piece->data_offset;
        return piece->scale_offset >= piece->data_offset && codec_supported(piece->dtype, e, piece->dims, RANK) &&
               hbm_shape_bytes(piece->dims, RANK, piece->dtype, &sizes->raw);
    }
    return codec_supported(piece->dtype, e, piece->dims, RANK) &&
           (e->granularity != HBM_PER_CHANNEL || e->axis == 1) &&
           hbm_shape_bytes(piece->dims, RANK, piece->dtype, &sizes->raw) &&
           hbm_shape_bytes(piece->dims, RANK, e->stored, &sizes->data) &&
           (!hbm_codec_scale_bytes(e->codec) || (hbm_encoding_units(e, piece->dims, RANK, &sizes->units) &&
                                                 job_units_layout(e->codec, sizes->units, &sizes->zero, &sizes->end)));
}

uint64_t piece_zero(const struct job_piece *piece)
{
    struct sizes sizes;

    measure(piece, &sizes);
    return sizes.zero;
}

uint64_t piece_packed_bytes(const struct job_piece *piece)
{
    unsigned codec = piece->encoding.codec;
    struct sizes sizes;

    measure(piece, &sizes);
    return sizes.data + sizes.units * (hbm_codec_scale_bytes(codec) + hbm_codec_zero_bytes(codec));
}

/* *end: of what is packed so far. */
static bool fits(const struct job_piece *piece, uint32_t n_receipts, uint64_t raw_size, uint64_t bytes, uint64_t *end)
{
    struct sizes sizes;

    if (!measure(piece, &sizes) || !sizes.raw || !lies_in(piece->raw_offset, sizes.raw, 0, raw_size) ||
        !lies_in(piece->data_offset, sizes.data, *end, bytes))
        return false;
    *end = piece->data_offset + sizes.data;
    if (!piece_is_encoded(piece))
        return true;
    if (piece->receipt >= n_receipts || piece->data_offset % HBM_ALIGN || piece->raw_offset % (hbm_dtype_bits(piece->dtype) / 8))
        return false;
    if (!sizes.end)
        return true;
    if (piece->scale_offset % HBM_ALIGN || !lies_in(piece->scale_offset, sizes.end, *end, bytes))
        return false;
    *end = piece->scale_offset + sizes.end;
    return true;
}

static uint64_t piece_end(const struct job_piece *piece)
{
    struct sizes sizes;

    measure(piece, &sizes);
    return sizes.end ? piece->scale_offset + sizes.end : piece->data_offset + sizes.data;
}

/* Takes pieces until none crosses the end of the batch. */
static uint32_t cut_batch(const struct pack_plan *plan, uint32_t first, uint64_t bytes, struct pack_batch *batch)
{
    uint64_t end = batch->offset + CHECKSUM_CHUNK;
    uint32_t at = first;

    batch->first = first;
    for (; at < plan->n_pieces && plan->pieces[at].data_offset < end; at++) {
        uint64_t reach = (piece_end(&plan->pieces[at]) + CHECKSUM_CHUNK - 1) / CHECKSUM_CHUNK * CHECKSUM_CHUNK;
        if (reach > end)
            end = reach;
    }
    batch->n = at - first;
    batch->bytes = (end < bytes ? end : bytes) - batch->offset;
    return at;
}

static void cut(struct pack_plan *plan, uint64_t bytes)
{
    uint32_t at = 0;

    for (uint64_t offset = 0; offset < bytes; plan->n_batches++) {
        struct pack_batch *batch = &plan->batches[plan->n_batches];
        *batch = (struct pack_batch){.offset = offset};
        at = cut_batch(plan, at, bytes, batch);
        offset += batch->bytes;
    }
}

struct job_piece *pieces_load(int fd, uint32_t n, uint64_t behind, bool *has_more, struct failure *failure)
{
    size_t size, wanted = n * sizeof(struct job_piece);
    void *bytes = memfd_map_sealed(fd, wanted + behind, &size);

    *has_more = false;
    if (!bytes) {
        fail(failure, HBM_E_BAD_REQUEST, "the pieces are no sealed memfd of %u pieces: %s", n, strerror(errno));
        return NULL;
    }
    *has_more = behind && size == wanted + behind;
    struct job_piece *pieces = size == wanted || *has_more ? malloc(size) : NULL;
    if (pieces)
        memcpy(pieces, bytes, size);
    munmap(bytes, size);
    if (size != wanted && !*has_more)
        fail(failure, HBM_E_BAD_REQUEST, "the memfd of pieces has %zu bytes, not %zu", size, wanted);
    else if (!pieces)
        fail(failure, HBM_E_SYSTEM, "out of memory for %u pieces", n);
    return pieces;
}

int pack_plan_make(struct pack_plan *plan, int pieces_fd, uint32_t n_pieces, uint32_t n_receipts, uint64_t raw_size,
                   uint64_t bytes, struct failure *failure)
{
    uint64_t end = 0;
    bool has_codes;

    *plan = (struct pack_plan){0};
    plan->pieces = pieces_load(pieces_fd, n_pieces, (uint64_t)n_receipts * sizeof(*plan->codes), &has_codes, failure);
    if (!plan->pieces)
        return failure->error;
    plan->n_pieces = n_pieces;
    if (has_codes)
        plan->codes = (struct lossless_code *)(plan->pieces + n_pieces);
    for (uint32_t i = 0; i < n_pieces; i++)
        if (!fits(&plan->pieces[i], n_receipts, raw_size, bytes, &end))
            return fail(failure, HBM_E_BAD_REQUEST, "piece %u is none that a codec takes, or reaches beyond its place", i);
    plan->batches = calloc(checksum_chunks(bytes), sizeof(*plan->batches));
    if (!plan->batches)
        return fail(failure, HBM_E_SYSTEM, "out of memory for %llu batches", (unsigned long long)checksum_chunks(bytes));
    cut(plan, bytes);
    return 0;
}

void pack_plan_free(struct pack_plan *plan)
{
    free(plan->pieces);
    free(plan->batches);
    *plan = (struct pack_plan){0};
}
