/* PACK and UNPACK: an arena between its raw form on the device and a packed one in host memory or on disk. Each lane
 * takes a batch through scratch memory of its own: while one is encoded or decoded, others are on the link. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/control.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/pack_plan.h"
#include "daemon/worker/side.h"
#include "daemon/worker/staging.h"
#include "proto/memfd.h"

/* One is encoded, one on the link, and one wakes up. */
#define LANES_TO_MEMORY 3

struct packing {
    struct job *job;
    struct pack_plan plan;
    struct side raw, packed;
    uint64_t bytes;
    uint64_t *hashes;  /* one a grain; NULL: not asked for */
    uint64_t *results; /* the device hashes whole grains, to here; NULL: it does not */
    struct codec_tally *tallies; /* PACK: one a piece */
    struct kit kits[LANES_MAX];
    struct scratch {
        unsigned char *bytes;
        uint64_t room;
    } scratch[LANES_MAX];
};

static int reserve(struct scratch *scratch, uint64_t bytes, struct failure *failure)
{
    if (scratch->room >= bytes)
        return 0;
    device_scratch_free(scratch->bytes, scratch->room);
    *scratch = (struct scratch){0};
    if (device_scratch_new(bytes, &scratch->bytes, failure))
        return failure->error;
    scratch->room = bytes;
    return 0;
}

/* ---- Checksums ---- */

static void hash_here(struct packing *p, const unsigned char *bytes, uint64_t offset, size_t size)
{
    size_t rest = size % CHECKSUM_GRAIN;

    if (!p->hashes)
        return;
    if (!p->results)
        checksum_of_chunk(bytes, size, p->hashes + offset / CHECKSUM_GRAIN);
    else if (rest)
        p->hashes[(offset + size) / CHECKSUM_GRAIN] = checksum_of(bytes + size - rest, rest);
}

static int hash_there(struct packing *p, const struct pack_batch *batch, const unsigned char *scratch,
                      struct failure *failure)
{
    uint64_t grains = batch->bytes / CHECKSUM_GRAIN;

    if (!p->results || !grains)
        return 0;
    return device_hash(DEVICE_COMPUTE, NULL, scratch, grains, p->results + batch->offset / CHECKSUM_GRAIN, failure);
}

static int collect(struct packing *p, uint32_t flags, uint64_t expected, uint64_t *checksum, struct failure *failure)
{
    if (!p->hashes)
        return 0;
    if (p->results)
        memcpy(p->hashes, p->results, p->bytes / CHECKSUM_GRAIN * sizeof(*p->hashes));
    *checksum = checksum_combine(p->hashes, checksum_grains(p->bytes));
    if (!(flags & JOB_VERIFY) || *checksum == expected)
        return 0;
    return fail(failure, HBM_E_CHECKSUM, "%llu bytes have checksum %016llx, stored were %016llx",
                (unsigned long long)p->bytes, (unsigned long long)*checksum, (unsigned long long)expected);
}

/* ---- Down ---- */

static struct codec_job codec_of(struct packing *p, const struct pack_batch *batch, const struct job_piece *piece,
                                 unsigned char *scratch)
{
    struct codec_job codec = piece_codec(piece);

    codec.raw_in = codec.raw_out = p->raw.view.bytes + piece->raw_offset;
    codec.data = scratch + (piece->data_offset - batch->offset);
    if (hbm_codec_scale_bytes(piece->encoding.codec))
        codec.scale = (float *)(scratch + (piece->scale_offset - batch->offset));
    if (hbm_codec_zero_bytes(piece->encoding.codec))
        codec.zero = (int32_t *)(scratch + (piece->scale_offset - batch->offset) + piece_zero(piece));
    if (hbm_codec_varies(piece->encoding.codec)) {
        codec.data_bytes = piece->scale_offset - piece->data_offset;
        codec.code = p->plan.codes ? &p->plan.codes[piece->receipt] : NULL;
    }
    return codec;
}

static int encode_batch(struct packing *p, const struct pack_batch *batch, unsigned char *scratch,
                        struct codec_tally *tallies, struct failure *failure)
{
    if (device_clear(DEVICE_COMPUTE, scratch, batch->bytes, failure))
        return failure->error;
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct job_piece *piece = &p->plan.pieces[batch->first + i];
        struct codec_job codec = codec_of(p, batch, piece, scratch);

        if (piece_is_encoded(piece) ? device_encode_queued(DEVICE_COMPUTE, &codec, &tallies[i], failure)
                                    : device_copy(DEVICE_COMPUTE, codec.data, codec.raw_in, piece_raw_bytes(piece), failure))
            return failure->error;
    }
    return hash_there(p, batch, scratch, failure);
}

static int copy_down(struct kit *kit, void *target, const void *source, size_t bytes, struct failure *failure)
{
    if (device_copy(DEVICE_DOWN, target, source, bytes, failure) || device_mark(DEVICE_DOWN, &kit->mark, failure))
        return failure->error;
    return device_wait(&kit->mark, failure);
}

static int put_batch(struct packing *p, struct kit *kit, const struct pack_batch *batch, const unsigned char *scratch,
                     struct failure *failure)
{
    if (!p->packed.is_disk) {
        unsigned char *there = p->packed.view.bytes + batch->offset;
        if (copy_down(kit, there, scratch, batch->bytes, failure))
            return failure->error;
        hash_here(p, there, batch->offset, batch->bytes);
        return 0;
    }
    for (uint64_t at = 0; at < batch->bytes; at += CHECKSUM_CHUNK) {
        size_t bytes = batch->bytes - at < CHECKSUM_CHUNK ? batch->bytes - at : CHECKSUM_CHUNK;
        if (job_poll(p->job, failure) || kit_slot(kit, failure) ||
            copy_down(kit, kit->slot, scratch + at, bytes, failure))
            return failure->error;
        hash_here(p, kit->slot, batch->offset + at, bytes);
        if (side_put(&p->packed, kit, batch->offset + at, bytes, kit->slot, failure))
            return failure->error;
    }
    return 0;
}

/* The tallies lie behind the batch. */
static uint64_t tallies_at(const struct pack_batch *batch)
{
    return (batch->bytes + HBM_ALIGN - 1) / HBM_ALIGN * HBM_ALIGN;
}

static int pack_batch(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct packing *p = context;
    struct kit *kit = &p->kits[lane];
    struct scratch *scratch = &p->scratch[lane];
    const struct pack_batch *batch = &p->plan.batches[index];
    uint64_t after = tallies_at(batch), tallies = batch->n * sizeof(struct codec_tally);

    if (pace_wait(p->job, batch->bytes, failure) || (!kit->mark.event && device_mark_new(&kit->mark, failure)) ||
        reserve(scratch, after + tallies, failure))
        return failure->error;
    unsigned char *sums = scratch->bytes + after;
    if (device_clear(DEVICE_COMPUTE, sums, tallies, failure) ||
        encode_batch(p, batch, scratch->bytes, (struct codec_tally *)sums, failure) ||
        device_mark(DEVICE_COMPUTE, &kit->mark, failure) || device_after(DEVICE_DOWN, &kit->mark, failure) ||
        (tallies && device_copy(DEVICE_DOWN, p->tallies + batch->first, sums, tallies, failure)) ||
        put_batch(p, kit, batch, scratch->bytes, failure))
        return failure->error;
    job_advance(p->job, batch->bytes);
    return 0;
}

/* ---- Up ---- */

static int get_batch(struct packing *p, struct kit *kit, const struct pack_batch *batch, unsigned char *scratch,
                     struct failure *failure)
{
    const unsigned char *from;

    if (!p->packed.is_disk) {
        from = p->packed.view.bytes + batch->offset;
        if (device_copy(DEVICE_UP, scratch, from, batch->bytes, failure))
            return failure->error;
        hash_here(p, from, batch->offset, batch->bytes);
        return device_mark(DEVICE_UP, &kit->mark, failure);
    }
    for (uint64_t at = 0; at < batch->bytes; at += CHECKSUM_CHUNK) {
        size_t bytes = batch->bytes - at < CHECKSUM_CHUNK ? batch->bytes - at : CHECKSUM_CHUNK;
        if (job_poll(p->job, failure) || side_get(&p->packed, kit, batch->offset + at, bytes, true, &from, failure))
            return failure->error;
        hash_here(p, from, batch->offset + at, bytes);
        if (device_copy(DEVICE_UP, scratch + at, from, bytes, failure) || device_mark(DEVICE_UP, &kit->mark, failure) ||
            device_wait(&kit->mark, failure))
            return failure->error;
    }
    return 0;
}

static int decode_batch(struct packing *p, const struct pack_batch *batch, unsigned char *scratch,
                        struct failure *failure)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct job_piece *piece = &p->plan.pieces[batch->first + i];
        struct codec_job codec = codec_of(p, batch, piece, scratch);

        if (piece_is_encoded(piece) ? device_decode_queued(DEVICE_COMPUTE, &codec, failure)
                                    : device_copy(DEVICE_COMPUTE, codec.raw_out, codec.data, piece_raw_bytes(piece), failure))
            return failure->error;
    }
    return 0;
}

static int unpack_batch(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct packing *p = context;
    struct kit *kit = &p->kits[lane];
    struct scratch *scratch = &p->scratch[lane];
    const struct pack_batch *batch = &p->plan.batches[index];

    if (pace_wait(p->job, batch->bytes, failure) || (!kit->mark.event && device_mark_new(&kit->mark, failure)) ||
        reserve(scratch, batch->bytes, failure) || get_batch(p, kit, batch, scratch->bytes, failure) ||
        device_after(DEVICE_COMPUTE, &kit->mark, failure) || hash_there(p, batch, scratch->bytes, failure) ||
        decode_batch(p, batch, scratch->bytes, failure) || device_mark(DEVICE_COMPUTE, &kit->mark, failure) ||
        device_wait(&kit->mark, failure))
        return failure->error;
    job_advance(p->job, batch->bytes);
    return 0;
}

/* ---- The job ---- */

static void drain(void)
{
    device_drain(DEVICE_UP);
    device_drain(DEVICE_COMPUTE);
    device_drain(DEVICE_DOWN);
}

static int run(struct packing *p, lanes_step step, uint32_t flags, struct failure *failure)
{
    if (flags & (JOB_CHECKSUM | JOB_VERIFY)) {
        p->hashes = calloc(checksum_grains(p->bytes) + 1, sizeof(*p->hashes));
        if (!p->hashes)
            return fail(failure, HBM_E_SYSTEM, "out of memory for hashes");
        p->results = device_hashes_new(checksum_grains(p->bytes));
    }
    unsigned lanes = p->packed.is_disk ? staging_lanes() : LANES_TO_MEMORY;
    if (lanes_run(lanes, p->plan.n_batches, step, p, failure))
        drain(); /* nothing is on its way to or from the scratch memory any more */
    return failure->error;
}

static void end(struct packing *p)
{
    kits_close(p->kits);
    for (unsigned i = 0; i < LANES_MAX; i++)
        device_scratch_free(p->scratch[i].bytes, p->scratch[i].room);
    device_hashes_free(p->results);
    free(p->hashes);
    free(p->tallies);
    pack_plan_free(&p->plan);
}

static bool has_codes(const struct pack_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_pieces && !plan->codes; i++)
        if (hbm_codec_varies(plan->pieces[i].encoding.codec))
            return false;
    return true;
}

static int tell_receipts(struct packing *p, uint32_t n, uint64_t nanoseconds, int *fd, struct failure *failure)
{
    _cleanup_free_ struct codec_tally *sums = calloc(n + 1u, sizeof(*sums));
    _cleanup_free_ struct job_receipt *receipts = calloc(n + 1u, sizeof(*receipts));
    uint64_t raw_bytes = 0;

    if (!sums || !receipts)
        return fail(failure, HBM_E_SYSTEM, "out of memory for %u receipts", n);
    for (uint32_t i = 0; i < p->plan.n_pieces; i++) {
        const struct job_piece *piece = &p->plan.pieces[i];
        raw_bytes += piece_raw_bytes(piece);
        if (!piece_is_encoded(piece))
            continue;
        struct job_receipt *of = &receipts[piece->receipt];
        codec_tally_join(&sums[piece->receipt], &p->tallies[i]);
        of->receipt.elements += piece_elements(piece);
        of->receipt.bytes_before += piece_raw_bytes(piece);
        of->receipt.bytes_after += piece_packed_bytes(piece);
        codec_quality_of(&sums[piece->receipt], &piece->encoding, &of->quality); /* so far: the last stays */
    }
    for (uint32_t i = 0; i < n; i++) {
        struct hbm_receipt *receipt = &receipts[i].receipt;
        if (sums[i].overflow)
            return fail(failure, HBM_E_BUSY, "it was written after it had been measured");
        codec_receipt_of(&sums[i], receipt->elements, receipt);
        /* Its share of the whole: the coders run beside the link. */
        receipt->seconds = (double)nanoseconds / 1e9 * (double)receipt->bytes_before / (double)raw_bytes;
    }
    *fd = memfd_sealed("hbm-receipts", receipts, n * sizeof(*receipts));
    return *fd < 0 ? fail_errno(failure, HBM_E_SYSTEM, "memfd_create", -*fd) : 0;
}

void job_pack(struct job *job)
{
    const struct job_pack_request *r = &job->request.pack;
    struct packing p = {.job = job, .bytes = r->bytes};
    uint64_t start = monotonic_ns();
    unsigned fd = 0;
    int raw_fd = r->raw.kind == JOB_EXTENT_CUDA_IPC ? -1 : job->fds[fd++];

    if (side_open(&p.raw, &r->raw, raw_fd, false, &job->failure))
        return;
    if (!side_open(&p.packed, &r->packed, job->fds[fd], true, &job->failure)) {
        p.tallies = calloc(r->n_pieces, sizeof(*p.tallies));
        if (!p.tallies)
            fail(&job->failure, HBM_E_SYSTEM, "out of memory for %u pieces", r->n_pieces);
        else if (!pack_plan_make(&p.plan, job->fds[fd + 1], r->n_pieces, r->n_receipts, r->raw.size, r->bytes,
                                 &job->failure) &&
                 (has_codes(&p.plan) ||
                  !fail(&job->failure, HBM_E_BAD_REQUEST, "a piece's codec needs a code, and none came")) &&
                 !run(&p, pack_batch, r->flags, &job->failure) &&
                 !collect(&p, r->flags, 0, &job->reply.pack.checksum, &job->failure)) {
            job->reply.pack.nanoseconds = monotonic_ns() - start;
            if (r->n_receipts)
                tell_receipts(&p, r->n_receipts, job->reply.pack.nanoseconds, &job->reply_fd, &job->failure);
        }
        end(&p);
        if (!job->failure.error)
            control_answer(job);
        side_close(&p.packed);
    }
    side_close(&p.raw);
}

static int open_raw(struct packing *p, const struct job_unpack_request *r, int fd, struct failure *failure)
{
    if (r->flags & JOB_MAKE_TARGET)
        return side_make(&p->raw, &r->raw, failure);
    return side_open(&p->raw, &r->raw, fd, true, failure);
}

void job_unpack(struct job *job)
{
    const struct job_unpack_request *r = &job->request.unpack;
    struct packing p = {.job = job, .bytes = r->bytes};
    bool has_raw_fd = r->raw.kind != JOB_EXTENT_CUDA_IPC && !(r->flags & JOB_MAKE_TARGET);
    uint64_t start = monotonic_ns();

    if (side_open(&p.packed, &r->packed, job->fds[has_raw_fd], false, &job->failure))
        return;
    if (!open_raw(&p, r, has_raw_fd ? job->fds[0] : -1, &job->failure)) {
        if (!pack_plan_make(&p.plan, job->fds[has_raw_fd + 1], r->n_pieces, r->n_receipts, r->raw.size, r->bytes,
                            &job->failure) &&
            !run(&p, unpack_batch, r->flags, &job->failure))
            collect(&p, r->flags, r->expected, &job->reply.unpack.checksum, &job->failure);
        if (r->flags & JOB_MAKE_TARGET && !job->failure.error)
            side_share(&p.raw, &job->reply_fd, &job->failure);
        end(&p);
        job->reply.unpack.nanoseconds = monotonic_ns() - start;
        if (!job->failure.error)
            control_answer(job);
        side_close(&p.raw);
    }
    side_close(&p.packed);
}
