#include "daemon/worker/check.h"

#include <string.h>

#include "daemon/worker/disk.h"
#include "daemon/worker/file_plan.h"
#include "daemon/worker/pack_plan.h"
#include "proto/jobs.h"

#define BAD(...) fail(failure, HBM_E_BAD_REQUEST, __VA_ARGS__)

static int check_extent(const struct job_extent *extent, unsigned *fds, struct failure *failure)
{
    if (extent->kind > JOB_EXTENT_DISK)
        return BAD("no extent is of kind %u", extent->kind);
    if (extent->size == 0 || extent->size > INT64_MAX)
        return BAD("no extent has %llu bytes", (unsigned long long)extent->size);
    if (extent->encrypted > (extent->kind == JOB_EXTENT_DISK))
        return BAD("an extent of kind %u is not encrypted by %u", extent->kind, extent->encrypted);
    if (extent->kind != JOB_EXTENT_CUDA_IPC)
        ++*fds;
    return 0;
}

static int check_range(const struct job_extent *extent, uint64_t offset, uint64_t bytes, struct failure *failure)
{
    if (offset > extent->size || bytes > extent->size - offset)
        return BAD("%llu bytes at %llu reach beyond an extent of %llu", (unsigned long long)bytes,
                   (unsigned long long)offset, (unsigned long long)extent->size);
    return 0;
}

static int check_text(const char *text, size_t size, const char *what, struct failure *failure)
{
    return memchr(text, 0, size) ? 0 : BAD("%s has no end", what);
}

static int check_copy(const struct job_copy_request *r, unsigned *fds, struct failure *failure)
{
    if (r->flags & ~(JOB_CHECKSUM | JOB_VERIFY | JOB_MAKE_TARGET | JOB_FROM_PEER | JOB_TO_PEER | JOB_HASHES))
        return BAD("unknown flags %#x", r->flags);
    if (r->flags & JOB_HASHES && r->flags & (JOB_VERIFY | JOB_MAKE_TARGET))
        return BAD("flags %#x: hashes are of a part", r->flags);
    if ((r->flags & JOB_FROM_PEER && (r->flags & JOB_TO_PEER || r->source.kind != JOB_EXTENT_DEVICE)) ||
        (r->flags & JOB_TO_PEER && (r->flags & JOB_MAKE_TARGET || r->target.kind != JOB_EXTENT_DEVICE)))
        return BAD("flags %#x with extents of kind %u and %u", r->flags, r->source.kind, r->target.kind);
    if (check_extent(&r->source, fds, failure) || check_extent(&r->target, fds, failure) ||
        check_range(&r->source, r->source_offset, r->bytes, failure) ||
        check_range(&r->target, r->target_offset, r->bytes, failure))
        return failure->error;
    if (r->target.kind == JOB_EXTENT_DISK && (r->target_offset % DISK_ALIGN || r->bytes % DISK_ALIGN))
        return BAD("%llu bytes at %llu of a disk extent are no whole blocks", (unsigned long long)r->bytes,
                   (unsigned long long)r->target_offset);
    if (!(r->flags & JOB_MAKE_TARGET))
        return 0;
    --*fds;
    return r->target.kind == JOB_EXTENT_DEVICE ? 0 : BAD("a copy makes no target of kind %u", r->target.kind);
}

/* Between memory of the device and a host or disk extent; the pieces are looked at when they are mapped. */
static int check_packing(const struct job_extent *raw, const struct job_extent *packed, uint64_t bytes, uint32_t n_pieces,
                         uint32_t n_receipts, unsigned *fds, struct failure *failure)
{
    if (check_extent(raw, fds, failure) || check_extent(packed, fds, failure) || check_range(packed, 0, bytes, failure))
        return failure->error;
    ++*fds;
    if (raw->kind != JOB_EXTENT_DEVICE && raw->kind != JOB_EXTENT_CUDA_IPC)
        return BAD("an extent of kind %u is not packed", raw->kind);
    if (packed->kind != JOB_EXTENT_HOST && packed->kind != JOB_EXTENT_DISK)
        return BAD("nothing is packed into an extent of kind %u", packed->kind);
    if (packed->kind == JOB_EXTENT_DISK && bytes % DISK_ALIGN)
        return BAD("%llu bytes of a disk extent are no whole blocks", (unsigned long long)bytes);
    if (!bytes || !n_pieces || n_pieces > PACK_PIECES_MAX || n_receipts > n_pieces)
        return BAD("%llu bytes, %u pieces and %u receipts", (unsigned long long)bytes, n_pieces, n_receipts);
    return 0;
}

static int check_pack(const struct job_pack_request *r, unsigned *fds, struct failure *failure)
{
    if (r->flags & ~JOB_CHECKSUM)
        return BAD("unknown flags %#x", r->flags);
    return check_packing(&r->raw, &r->packed, r->bytes, r->n_pieces, r->n_receipts, fds, failure);
}

static int check_unpack(const struct job_unpack_request *r, unsigned *fds, struct failure *failure)
{
    if (r->flags & ~(JOB_CHECKSUM | JOB_VERIFY | JOB_MAKE_TARGET))
        return BAD("unknown flags %#x", r->flags);
    if (check_packing(&r->raw, &r->packed, r->bytes, r->n_pieces, r->n_receipts, fds, failure) ||
        !(r->flags & JOB_MAKE_TARGET))
        return failure->error;
    --*fds;
    return r->raw.kind == JOB_EXTENT_DEVICE ? 0 : BAD("unpacking makes no memory of kind %u", r->raw.kind);
}

static int check_measure(const struct job_measure_request *r, unsigned *fds, struct failure *failure)
{
    if (check_extent(&r->raw, fds, failure))
        return failure->error;
    ++*fds;
    if (r->raw.kind != JOB_EXTENT_DEVICE && r->raw.kind != JOB_EXTENT_CUDA_IPC)
        return BAD("an extent of kind %u is not measured", r->raw.kind);
    return r->n_pieces && r->n_pieces <= PACK_PIECES_MAX ? 0 : BAD("%u pieces", r->n_pieces);
}

static int check_encode(const struct job_encode_request *r, unsigned *fds, struct failure *failure)
{
    if (check_extent(&r->source, fds, failure) || check_extent(&r->target, fds, failure))
        return failure->error;
    if (!job_takes_bins(&r->calibration))
        return 0;
    ++*fds;
    return hbm_dtype_codable(r->calibration.dtype) ? 0 : BAD("elements of type %u are not observed", r->calibration.dtype);
}

static int check_observe(const struct job_observe_request *r, unsigned *fds, struct failure *failure)
{
    uint64_t bytes;

    if (check_extent(&r->extent, fds, failure))
        return failure->error;
    if (r->extent.kind == JOB_EXTENT_DISK || !hbm_dtype_codable(r->dtype) || r->offset % HBM_ALIGN)
        return BAD("elements of type %u at %llu of an extent of kind %u are not observed", r->dtype, (unsigned long long)r->offset,
                   r->extent.kind);
    if (!hbm_shape_bytes(&r->elements, 1, r->dtype, &bytes))
        return BAD("%llu elements overflow", (unsigned long long)r->elements);
    return check_range(&r->extent, r->offset, bytes, failure);
}

static int check_hash(const struct job_hash_request *r, unsigned *fds, struct failure *failure)
{
    if (check_extent(&r->extent, fds, failure) || check_range(&r->extent, r->offset, r->bytes, failure))
        return failure->error;
    ++*fds;
    return r->n_spans && r->n_spans <= JOB_SPANS_MAX ? 0 : BAD("%u spans", r->n_spans);
}

static int check_file(const struct job_file_request *r, unsigned *fds, struct failure *failure)
{
    *fds = 2;
    if (r->n_ranges == 0 || r->n_ranges > FILE_RANGES_MAX)
        return BAD("%u ranges", r->n_ranges);
    if (r->extent.kind == JOB_EXTENT_DISK)
        return BAD("a file and a disk extent: one of them has to be memory");
    return check_extent(&r->extent, fds, failure);
}

static int check_request(unsigned opcode, const union job_request *r, unsigned *fds, struct failure *failure)
{
    switch (opcode) {
    case JOB_START:
        *fds = r->start.spill_key;
        if (r->start.spill_key > 1)
            return BAD("%u spill keys", r->start.spill_key);
        return check_text(r->start.uuid, sizeof(r->start.uuid), "the uuid", failure) ||
                       check_text(r->start.state_dir, sizeof(r->start.state_dir), "the state directory", failure) ||
                       check_text(r->start.peers, sizeof(r->start.peers), "the list of peers", failure)
                   ? failure->error
                   : 0;
    case JOB_CREATE:
        if (r->create.kind > JOB_EXTENT_DISK)
            return BAD("no extent is of kind %u", r->create.kind);
        if (r->create.flags & ~(JOB_AHEAD | JOB_IN_PIECES) || (r->create.flags && r->create.kind != JOB_EXTENT_HOST))
            return BAD("flags %#x with an extent of kind %u", r->create.flags, r->create.kind);
        return r->create.size ? 0 : BAD("an extent of 0 bytes");
    case JOB_DESTROY:
        return r->destroy.kind > JOB_EXTENT_DISK ? BAD("no extent is of kind %u", r->destroy.kind) : 0;
    case JOB_COPY:
        return check_copy(&r->copy, fds, failure);
    case JOB_PACK:
        return check_pack(&r->pack, fds, failure);
    case JOB_UNPACK:
        return check_unpack(&r->unpack, fds, failure);
    case JOB_MEASURE:
        return check_measure(&r->measure, fds, failure);
    case JOB_ENCODE:
        return check_encode(&r->encode, fds, failure);
    case JOB_OBSERVE:
        return check_observe(&r->observe, fds, failure);
    case JOB_DECODE:
        return check_extent(&r->decode.source, fds, failure) ? failure->error
                                                             : check_extent(&r->decode.target, fds, failure);
    case JOB_HASH:
        return check_hash(&r->hash, fds, failure);
    case JOB_FILE:
        return check_file(&r->file, fds, failure);
    case JOB_CLIENTS:
        return r->clients.n > sizeof(r->clients.pids) / sizeof(r->clients.pids[0]) ? BAD("%u pids", r->clients.n)
                                                                                   : 0;
    }
    return 0;
}

int check_packet(const struct packet *packet, struct failure *failure)
{
    const struct packet_header *header = &packet->header;
    const struct job_row *row = job_row(header->opcode);
    union job_request request = {0};
    unsigned fds = 0;

    if (!row || header->opcode == JOB_PROGRESS)
        return BAD("opcode %u is no job", header->opcode);
    if (header->status || header->more || (header->serial == 0) != (header->opcode == JOB_CANCEL))
        return BAD("the header of a %s has serial %u, status %d, more %u", row->name, header->serial,
                   header->status, header->more);
    if (packet->body_size != row->request_size)
        return BAD("a %s of %zu bytes, not %zu", row->name, packet->body_size, row->request_size);
    memcpy(&request, packet->body, packet->body_size);
    if (check_request(header->opcode, &request, &fds, failure))
        return failure->error;
    if (packet->n_fds != fds)
        return BAD("a %s with %u fds, not %u", row->name, packet->n_fds, fds);
    return 0;
}
