#include "tests/fuzz/worker.h"

#include <sys/mman.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/worker/check.h"
#include "proto/memfd.h"
#include "tests/fuzz/world.h"

bool worker_is_lenient;

/* For functions that say whether the job may be done. */
#define MUST(what)                                                                                                 \
    do {                                                                                                           \
        if (!(what)) {                                                                                             \
            CHECK(worker_is_lenient || !#what);                                                                    \
            return false;                                                                                          \
        }                                                                                                          \
    } while (0)

static bool has_form(const struct job *job)
{
    static struct packet packet;
    struct failure failure = {0};

    packet.header = (struct packet_header){.opcode = job->opcode, .serial = 1};
    packet.body_size = job_row(job->opcode)->request_size;
    packet.n_fds = job->n_fds;
    memcpy(packet.body, &job->request, packet.body_size);
    if (check_packet(&packet, &failure) && !worker_is_lenient)
        fprintf(stderr, "the worker refuses: %s\n", failure.detail);
    MUST(!failure.error);
    return true;
}

/* An import maps at no size but the exact one. */
static bool has_size(const struct job *job, const struct job_extent *extent, unsigned *next)
{
    struct stat status;

    if (extent->kind == JOB_EXTENT_CUDA_IPC)
        return true;
    MUST(!fstat(job->fds[(*next)++], &status));
    MUST((uint64_t)status.st_size == extent->size);
    return true;
}

static bool spans(const struct job_extent *extent, uint64_t offset, uint64_t bytes)
{
    MUST(offset <= extent->size && bytes <= extent->size - offset);
    return true;
}

static bool can_code(const struct job_code *code, const struct job_extent *raw, const struct job_extent *coded)
{
    uint64_t bytes, elements, units, zero, end, split, from;

    MUST(hbm_shape_bytes(code->dims, code->rank, code->dtype, &bytes));
    MUST(hbm_shape_elements(code->dims, code->rank, &elements));
    MUST(hbm_encoding_units(&code->encoding, code->dims, code->rank, &units));
    if (hbm_codec_splits(code->encoding.codec)) {
        MUST(hbm_split_elements(&code->encoding, code->dims, code->rank, &split));
        job_split_layout(code->encoding.group, split, &zero, &from, &end);
        MUST(spans(coded, code->scale_offset, end));
    }
    return spans(raw, code->raw_offset, bytes) &&
           spans(coded, code->data_offset, (elements * hbm_dtype_bits(code->encoding.stored) + 7) / 8) &&
           job_units_layout(code->encoding.codec, units, &zero, &end) && spans(coded, code->scale_offset, end);
}

static bool can_file(const struct job *job, unsigned next)
{
    const struct job_file_request *request = &job->request.file;
    size_t size;
    struct job_range *ranges = memfd_map_sealed(job->fds[next + 1], 1 << 24, &size);
    bool right = true;

    MUST(ranges && size == request->n_ranges * sizeof(*ranges));
    for (uint32_t i = 0; i < request->n_ranges && right; i++)
        right = spans(&request->extent, ranges[i].extent_offset, ranges[i].bytes);
    munmap(ranges, size);
    return right;
}

static bool create(struct world *world, struct job *job)
{
    const struct job_create_request *request = &job->request.create;

    job->reply.create.size = request->size;
    if (request->kind == JOB_EXTENT_CUDA_IPC)
        job->reply.create.token = ++world->blocks;
    else
        job->reply_fd = memfd_fixed("extent", request->size);
    return request->kind == JOB_EXTENT_CUDA_IPC || job->reply_fd >= 0;
}

/* Every grain's hash is 0: so whatever is verified is right, and of a copy in parts the whole is too. */
static uint64_t hash_grains(const struct world *world, uint64_t bytes, int *fd)
{
    uint64_t n = bytes / world->core->grain + (bytes % world->core->grain != 0);
    static const uint64_t hashes[1024];

    CHECK(n <= 1024);
    if (fd)
        *fd = memfd_sealed("hashes", hashes, n * sizeof(*hashes));
    return XXH3_64bits(hashes, n * sizeof(*hashes));
}

static bool copy(struct world *world, struct job *job, unsigned next)
{
    const struct job_copy_request *request = &job->request.copy;

    job->reply.copy.checksum = hash_grains(world, request->bytes, request->flags & JOB_HASHES ? &job->reply_fd : NULL);
    job->reply.copy.nanoseconds = 1000;
    MUST(!(request->flags & JOB_VERIFY) || request->expected == job->reply.copy.checksum);
    MUST(spans(&request->source, request->source_offset, request->bytes));
    MUST(spans(&request->target, request->target_offset, request->bytes));
    MUST(!(request->flags & JOB_HASHES) || request->source_offset % world->core->grain == 0);
    MUST(has_size(job, &request->source, &next));
    if (!(request->flags & JOB_MAKE_TARGET))
        return has_size(job, &request->target, &next);
    job->reply_fd = memfd_fixed("extent", request->target.size);
    return job->reply_fd >= 0;
}

/* With so many codes behind them, or without. */
static bool has_pieces(const struct job *job, unsigned next, uint32_t n, uint32_t n_codes)
{
    size_t size = 0, codes = (size_t)n_codes * JOB_CODE_BYTES, most = n * sizeof(struct job_piece) + codes;
    void *pieces = next < job->n_fds ? memfd_map_sealed(job->fds[next], most, &size) : NULL;

    if (pieces)
        munmap(pieces, size);
    MUST(size == n * sizeof(struct job_piece) || size == most);
    return pieces;
}

static bool pack(struct world *world, struct job *job, unsigned next)
{
    const struct job_pack_request *request = &job->request.pack;
    static const struct job_receipt receipts[1024];

    job->reply.pack.checksum = hash_grains(world, request->bytes, NULL);
    job->reply.pack.nanoseconds = 1000;
    MUST(request->n_receipts && request->n_receipts <= 1024 && request->bytes == request->packed.size);
    MUST(has_size(job, &request->raw, &next));
    MUST(has_size(job, &request->packed, &next));
    job->reply_fd = memfd_sealed("receipts", receipts, request->n_receipts * sizeof(*receipts));
    return has_pieces(job, next, request->n_pieces, request->n_receipts) && job->reply_fd >= 0;
}

static bool unpack(struct world *world, struct job *job, unsigned next)
{
    const struct job_unpack_request *request = &job->request.unpack;

    job->reply.unpack.checksum = hash_grains(world, request->bytes, NULL);
    job->reply.unpack.nanoseconds = 1000;
    MUST(!(request->flags & JOB_VERIFY) || request->expected == job->reply.unpack.checksum);
    if (!(request->flags & JOB_MAKE_TARGET))
        MUST(has_size(job, &request->raw, &next));
    MUST(has_size(job, &request->packed, &next));
    MUST(has_pieces(job, next, request->n_pieces, 0));
    if (!(request->flags & JOB_MAKE_TARGET))
        return true;
    job->reply_fd = memfd_fixed("extent", request->raw.size);
    return job->reply_fd >= 0;
}

static bool measure(struct job *job, unsigned next)
{
    const struct job_measure_request *request = &job->request.measure;
    static unsigned char reply[1 << 20];
    struct job_measured *measured = (struct job_measured *)(void *)reply;
    size_t n = request->n_pieces, size = 0, used = n * sizeof(*measured);

    MUST(has_size(job, &request->raw, &next) && has_pieces(job, next, request->n_pieces, 0) && used < sizeof(reply));
    struct job_piece *pieces = memfd_map_sealed(job->fds[next], n * sizeof(*pieces), &size);
    for (size_t i = 0; i < n; i++) {
        measured[i] = (struct job_measured){.head = 64, .n_grains = (pieces[i].dims[2] + JOB_GRAIN - 1) / JOB_GRAIN};
        for (uint64_t g = 0; g < measured[i].n_grains && used + 4 <= sizeof(reply); g++, used += 4)
            memcpy(reply + used, &(uint32_t){JOB_GRAIN}, 4);
    }
    munmap(pieces, size);
    job->reply_fd = memfd_sealed("measures", reply, used);
    return job->reply_fd >= 0;
}

static bool observe(struct job *job, unsigned next)
{
    const struct job_observe_request *request = &job->request.observe;
    static uint64_t bins[JOB_OBSERVE_BINS];

    MUST(has_size(job, &request->extent, &next) && hbm_dtype_codable(request->dtype));
    MUST(spans(&request->extent, request->offset, request->elements * (hbm_dtype_bits(request->dtype) / 8)));
    bins[0x3f80] = request->elements;
    job->reply.observe = (struct job_observe_reply){.finite = request->elements, .nanoseconds = 1000, .lo = -1, .hi = 1};
    job->reply_fd = memfd_sealed("counts", bins, sizeof(bins));
    return job->reply_fd >= 0;
}

static bool hash(struct job *job, unsigned next)
{
    const struct job_hash_request *request = &job->request.hash;
    static const uint64_t hashes[JOB_SPANS_MAX];
    size_t size = request->n_spans * sizeof(struct job_span);

    MUST(request->n_spans && request->n_spans <= JOB_SPANS_MAX && spans(&request->extent, request->offset, request->bytes));
    MUST(has_size(job, &request->extent, &next) && next < job->n_fds);
    void *list = memfd_map_exact(job->fds[next], size);
    MUST(list);
    munmap(list, size);
    job->reply_fd = memfd_sealed("hashes", hashes, request->n_spans * sizeof(*hashes));
    return job->reply_fd >= 0;
}

static bool perform(struct world *world, struct job *job)
{
    union job_request *request = &job->request;
    unsigned next = 0;

    switch (job->opcode) {
    case JOB_CREATE:
        return create(world, job);
    case JOB_COPY:
        return copy(world, job, next);
    case JOB_PACK:
        return pack(world, job, next);
    case JOB_UNPACK:
        return unpack(world, job, next);
    case JOB_MEASURE:
        return measure(job, next);
    case JOB_ENCODE:
        job->reply.encode.receipt = (struct hbm_receipt){.sqnr_db = 40, .seconds = 1e-6};
        return has_size(job, &request->encode.source, &next) && has_size(job, &request->encode.target, &next) &&
               can_code(&request->encode.code, &request->encode.source, &request->encode.target) &&
               job->n_fds == next + job_takes_bins(&request->encode.calibration);
    case JOB_DECODE:
        return has_size(job, &request->decode.source, &next) && has_size(job, &request->decode.target, &next) &&
               can_code(&request->decode.code, &request->decode.target, &request->decode.source);
    case JOB_OBSERVE:
        return observe(job, next);
    case JOB_HASH:
        return hash(job, next);
    case JOB_FILE:
        return has_size(job, &request->file.extent, &next) && can_file(job, next);
    case JOB_CLIENTS:
        job->reply.clients.n = world->driver_lists ? request->clients.n : 0;
        memcpy(job->reply.clients.pids, request->clients.pids, sizeof(job->reply.clients.pids));
        return true;
    }
    return true;
}

void worker_runs(struct world *world, struct job *job)
{
    /* Asked first, failed or not: the owner sent it. */
    bool form = has_form(job);

    if (!job->error && (!form || !perform(world, job)))
        job->error = HBM_E_BAD_REQUEST;
    if (world->perform)
        world->perform(world, job);
    if (job->error)
        snprintf(job->detail, sizeof(job->detail), "the world made it fail");
    if (job->progress)
        job->progress(job);
}
