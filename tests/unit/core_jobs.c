#include "core_world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/cleanup.h"
#include "proto/memfd.h"

/* As the worker does (worker/checksum.h); the hashes go to a memfd if that is asked for. */
static uint64_t hash_grains(const unsigned char *bytes, uint64_t size, int *fd)
{
    uint64_t n = (size + MIB - 1) / MIB, hashes[64];

    assert_true(n <= 64);
    for (uint64_t i = 0; i < n; i++)
        hashes[i] = XXH3_64bits(bytes + i * MIB, i + 1 < n ? MIB : size - i * MIB);
    if (fd)
        *fd = memfd_sealed("hashes", hashes, n * sizeof(*hashes));
    return XXH3_64bits(hashes, n * sizeof(*hashes));
}

static int fd_of(const struct world *world, const struct job *job, const struct job_extent *extent, unsigned *next)
{
    if (extent->kind == JOB_EXTENT_CUDA_IPC) {
        assert_in_range(extent->token, 1, world->n_blocks);
        return world->blocks[extent->token - 1];
    }
    assert_true(*next < job->n_fds);
    return job->fds[(*next)++];
}

static unsigned char *view(int fd, const struct job_extent *extent)
{
    assert_int_equal(lseek(fd, 0, SEEK_END), extent->size); /* an import maps at no other size */
    unsigned char *bytes = mmap(NULL, extent->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    return bytes;
}

static int make(uint64_t size)
{
    int fd = memfd_create("extent", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static int run_create(struct world *world, struct job *job)
{
    const struct job_create_request *request = &job->request.create;
    int fd = make(request->size);

    job->reply.create.size = request->size;
    if (request->kind == JOB_EXTENT_CUDA_IPC) {
        assert_true(world->n_blocks < 16);
        world->blocks[world->n_blocks++] = fd;
        job->reply.create.token = world->n_blocks;
    } else {
        job->reply_fd = fd;
    }
    return 0;
}

static int run_copy(struct world *world, struct job *job)
{
    const struct job_copy_request *request = &job->request.copy;
    unsigned next = 0;
    unsigned char *source = view(fd_of(world, job, &request->source, &next), &request->source);
    if (request->flags & JOB_MAKE_TARGET)
        job->reply_fd = make(request->target.size);
    unsigned char *target =
        view(request->flags & JOB_MAKE_TARGET ? job->reply_fd : fd_of(world, job, &request->target, &next),
             &request->target);
    int error = 0;

    assert_true(request->source_offset + request->bytes <= request->source.size);
    assert_true(request->target_offset + request->bytes <= request->target.size);
    memcpy(target + request->target_offset, source + request->source_offset, request->bytes);
    if (request->flags & JOB_CHECKSUM) {
        job->reply.copy.checksum = hash_grains(target + request->target_offset, request->bytes, NULL);
        if ((request->flags & JOB_VERIFY) && job->reply.copy.checksum != request->expected)
            error = HBM_E_CHECKSUM;
    }
    if (request->flags & JOB_HASHES)
        hash_grains(target + request->target_offset, request->bytes, &job->reply_fd);
    job->reply.copy.nanoseconds = 1000;
    munmap(source, request->source.size);
    munmap(target, request->target.size);
    if (error)
        job->reply_fd = fd_close(job->reply_fd);
    return error;
}

/* Toy codecs, exact on the small whole numbers that the tests use: eight bits as int8 with every scale 1, sixteen as bf16 by
 * cutting. Four bits are what is left of them. */
static void toy(bool encode, const struct job_code *code, unsigned char *raw_side, unsigned char *coded_side)
{
    float *raw = (float *)(void *)(raw_side + code->raw_offset);
    uint64_t n = 0, units = 0;

    assert_int_equal(code->dtype, HBM_F32);
    assert_true(hbm_shape_elements(code->dims, code->rank, &n));
    assert_true(hbm_encoding_units(&code->encoding, code->dims, code->rank, &units));
    for (uint64_t i = 0; i < n; i++) {
        if (hbm_dtype_bits(code->encoding.stored) == 4) {
            unsigned char *pair = coded_side + code->data_offset + i / 2;
            unsigned shift = i % 2 * 4;
            if (encode)
                *pair = (unsigned char)((*pair & ~(15u << shift)) | ((unsigned)lrintf(raw[i]) & 15u) << shift);
            else
                raw[i] = (float)(*pair >> shift & 15u);
        } else if (hbm_dtype_bits(code->encoding.stored) == 8) {
            int8_t *q = (int8_t *)(coded_side + code->data_offset) + i;
            if (encode)
                *q = (int8_t)lrintf(raw[i]);
            else
                raw[i] = (float)*q;
        } else {
            uint16_t *half = (uint16_t *)(void *)(coded_side + code->data_offset) + i;
            uint32_t bits;
            memcpy(&bits, &raw[i], sizeof(bits));
            if (encode)
                *half = (uint16_t)(bits >> 16);
            bits = (uint32_t)*half << 16;
            if (!encode)
                memcpy(&raw[i], &bits, sizeof(bits));
        }
    }
    for (uint64_t i = 0; hbm_codec_scale_bytes(code->encoding.codec) && i < units; i++) {
        float *scale = (float *)(void *)(coded_side + code->scale_offset) + i;
        if (encode)
            *scale = 1;
        else
            assert_true(*scale == 1);
    }
}

static void take_calibration(struct world *world, const struct job *job, unsigned next)
{
    world->calibration = job->request.encode.calibration;
    if (!job_takes_bins(&world->calibration)) {
        assert_int_equal(job->n_fds, next);
        return;
    }
    size_t size = 0;
    assert_int_equal(job->n_fds, next + 1);
    const uint64_t *bins = memfd_map_sealed(job->fds[next], JOB_OBSERVE_BYTES, &size);
    assert_non_null(bins);
    assert_int_equal(size, JOB_OBSERVE_BYTES);
    world->observed = 0;
    for (unsigned i = 0; i < JOB_OBSERVE_BINS; i++)
        world->observed += bins[i];
    munmap((void *)bins, size);
}

static int run_code(struct world *world, struct job *job)
{
    bool encode = job->opcode == JOB_ENCODE;
    const struct job_extent *from = encode ? &job->request.encode.source : &job->request.decode.source;
    const struct job_extent *to = encode ? &job->request.encode.target : &job->request.decode.target;
    unsigned next = 0;
    unsigned char *source = view(fd_of(world, job, from, &next), from);
    unsigned char *target = view(fd_of(world, job, to, &next), to);

    if (encode)
        take_calibration(world, job, next);
    if (encode)
        toy(true, &job->request.encode.code, source, target);
    else
        toy(false, &job->request.decode.code, target, source);
    if (encode) {
        job->reply.encode.receipt = (struct hbm_receipt){.sqnr_db = 40, .seconds = 1e-6};
        job->reply.encode.quality = (struct hbm_quality){.sqnr_inlier_db = 41, .zeroed = 3, .lo = -2, .hi = 2};
    }
    munmap(source, from->size);
    munmap(target, to->size);
    return encode && job->request.encode.min_sqnr_db > 40 ? HBM_E_QUALITY : 0;
}

/* A piece as a coder's job has it. */
static struct job_code code_of(const struct job_piece *piece)
{
    struct job_code code = {.raw_offset = piece->raw_offset,
                            .data_offset = piece->data_offset,
                            .scale_offset = piece->scale_offset,
                            .rank = 3,
                            .dtype = piece->dtype,
                            .encoding = piece->encoding};

    memcpy(code.dims, piece->dims, sizeof(piece->dims));
    return code;
}

#define CODE_BYTE 0x5c

/* As if nothing were saved. */
static void run_varying(bool pack, const struct job_piece *piece, unsigned char *raw, unsigned char *packed)
{
    uint64_t bytes = piece->dims[2] * 2;

    assert_in_range(piece->dtype, HBM_F16, HBM_BF16);
    assert_true(piece->dims[0] == 1 && piece->dims[1] == 1);
    assert_true(piece->scale_offset - piece->data_offset >= bytes + 64);
    if (pack)
        memcpy(packed + piece->data_offset + 64, raw + piece->raw_offset, bytes);
    else
        memcpy(raw + piece->raw_offset, packed + piece->data_offset + 64, bytes);
}

static int run_measure(struct world *world, struct job *job)
{
    const struct job_measure_request *request = &job->request.measure;
    static unsigned char reply[1 << 16];
    struct job_measured *measured = (struct job_measured *)(void *)reply;
    uint32_t *grain = (uint32_t *)(measured + request->n_pieces);
    unsigned next = 0;
    size_t size;
    int raw = fd_of(world, job, &request->raw, &next);
    struct job_piece *pieces = memfd_map_sealed(job->fds[next], 1 << 20, &size);

    assert_int_equal(job->n_fds, next + 1);
    assert_int_equal(lseek(raw, 0, SEEK_END), request->raw.size);
    assert_non_null(pieces);
    assert_int_equal(size, request->n_pieces * sizeof(*pieces));
    for (uint32_t i = 0; i < request->n_pieces; i++) {
        measured[i] = (struct job_measured){.head = 64};
        memset(measured[i].code, CODE_BYTE, sizeof(measured[i].code));
        for (uint64_t left = pieces[i].dims[2]; left; measured[i].n_grains++) {
            uint64_t n = left < JOB_GRAIN ? left : JOB_GRAIN;
            *grain++ = (uint32_t)(2 * n);
            left -= n;
        }
    }
    munmap(pieces, size);
    job->reply_fd = memfd_sealed("measures", reply, (size_t)((unsigned char *)grain - reply));
    return 0;
}

static void check_codes(const struct job_pack_request *request, const struct job_piece *pieces, size_t size)
{
    const unsigned char *codes = (const unsigned char *)(pieces + request->n_pieces);
    size_t without = request->n_pieces * sizeof(*pieces);

    for (uint32_t i = 0; i < request->n_pieces; i++)
        if (hbm_codec_varies(pieces[i].encoding.codec)) {
            assert_int_equal(size, without + request->n_receipts * JOB_CODE_BYTES);
            assert_int_equal(codes[pieces[i].receipt * JOB_CODE_BYTES + 255], CODE_BYTE);
            return;
        }
    assert_int_equal(size, without);
}

static void run_piece(bool pack, const struct job_piece *piece, unsigned char *raw, unsigned char *packed)
{
    struct job_code code = code_of(piece);

    if (hbm_codec_varies(piece->encoding.codec))
        run_varying(pack, piece, raw, packed);
    else if (piece->encoding.codec != HBM_CODEC_RAW)
        toy(pack, &code, raw, packed);
    else if (pack)
        memcpy(packed + piece->data_offset, raw + piece->raw_offset, piece->dims[2]);
    else
        memcpy(raw + piece->raw_offset, packed + piece->data_offset, piece->dims[2]);
}

static int send_receipts(uint32_t n)
{
    struct job_receipt receipts[64];

    assert_in_range(n, 1, 64);
    for (uint32_t i = 0; i < n; i++)
        receipts[i] = (struct job_receipt){.receipt = {.sqnr_db = 40, .max_abs_error = 0.5, .seconds = 1e-6},
                                           .quality = {.sqnr_inlier_db = 41, .zeroed = 3, .lo = -2, .hi = 2}};
    return memfd_sealed("receipts", receipts, n * sizeof(*receipts));
}

static int run_packing(struct world *world, struct job *job)
{
    bool pack = job->opcode == JOB_PACK;
    const struct job_unpack_request *request = &job->request.unpack; /* both have the same fields */
    unsigned next = 0;
    size_t size;
    bool makes = request->flags & JOB_MAKE_TARGET;

    _Static_assert(sizeof(struct job_pack_request) == sizeof(struct job_unpack_request), "the same fields");
    if (makes)
        job->reply_fd = make(request->raw.size);
    unsigned char *raw = view(makes ? job->reply_fd : fd_of(world, job, &request->raw, &next), &request->raw);
    unsigned char *packed = view(fd_of(world, job, &request->packed, &next), &request->packed);
    struct job_piece *pieces = memfd_map_sealed(job->fds[next], 1 << 20, &size);
    int error = 0;

    assert_int_equal(job->n_fds, next + 1);
    assert_int_equal(request->bytes, request->packed.size);
    assert_non_null(pieces);
    if (pack)
        check_codes(&job->request.pack, pieces, size);
    else
        assert_int_equal(size, request->n_pieces * sizeof(*pieces));
    if (pack)
        memset(packed, 0, request->bytes);
    for (uint32_t i = 0; i < request->n_pieces; i++)
        run_piece(pack, &pieces[i], raw, packed);
    if (pack)
        job->reply_fd = send_receipts(request->n_receipts);
    job->reply.unpack.checksum = hash_grains(packed, request->bytes, NULL);
    job->reply.unpack.nanoseconds = 1000;
    if ((request->flags & JOB_VERIFY) && job->reply.unpack.checksum != request->expected)
        error = HBM_E_CHECKSUM;
    munmap(pieces, size);
    munmap(raw, request->raw.size);
    munmap(packed, request->packed.size);
    if (error)
        job->reply_fd = fd_close(job->reply_fd);
    return error;
}

static int run_hash(struct world *world, struct job *job)
{
    const struct job_hash_request *request = &job->request.hash;
    _cleanup_free_ uint64_t *hashes = calloc(request->n_spans, sizeof(*hashes));
    size_t size = request->n_spans * sizeof(struct job_span);
    uint64_t at = request->offset;
    unsigned next = 0;
    unsigned char *bytes = view(fd_of(world, job, &request->extent, &next), &request->extent);
    struct job_span *spans = memfd_map_exact(job->fds[next], size);

    assert_int_equal(job->n_fds, next + 1);
    assert_int_not_equal(request->extent.kind, JOB_EXTENT_DISK);
    assert_true(request->offset + request->bytes <= request->extent.size);
    assert_non_null(spans);
    assert_non_null(hashes);
    for (uint32_t i = 0; i < request->n_spans; i++) {
        assert_true(spans[i].bytes && spans[i].offset >= at);
        hashes[i] = XXH3_64bits(bytes + spans[i].offset, spans[i].bytes);
        at = spans[i].offset + spans[i].bytes;
    }
    assert_int_equal(at, request->offset + request->bytes);
    job->reply_fd = memfd_sealed("hashes", hashes, request->n_spans * sizeof(*hashes));
    munmap(spans, size);
    munmap(bytes, request->extent.size);
    return 0;
}

static void magnitudes(const float *x, uint64_t n, uint64_t *bins, struct job_observe_reply *reply)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bins[bits >> 16 & 0x7fff]++;
        if (!isfinite(x[i]))
            continue;
        reply->lo = !reply->finite || x[i] < reply->lo ? x[i] : reply->lo;
        reply->hi = !reply->finite || x[i] > reply->hi ? x[i] : reply->hi;
        reply->finite++;
    }
}

static int run_observe(struct world *world, struct job *job)
{
    const struct job_observe_request *request = &job->request.observe;
    static uint64_t bins[JOB_OBSERVE_BINS];
    unsigned next = 0;
    unsigned char *bytes = view(fd_of(world, job, &request->extent, &next), &request->extent);

    assert_int_not_equal(request->extent.kind, JOB_EXTENT_DISK);
    assert_true(hbm_dtype_codable(request->dtype) && request->offset + request->elements * 4 <= request->extent.size);
    memset(bins, 0, sizeof(bins));
    magnitudes((float *)(void *)(bytes + request->offset), request->elements, bins, &job->reply.observe);
    job->reply_fd = memfd_sealed("counts", bins, sizeof(bins));
    munmap(bytes, request->extent.size);
    return 0;
}

static int run_file(struct world *world, struct job *job)
{
    const struct job_file_request *request = &job->request.file;
    unsigned next = 0;
    unsigned char *bytes = view(fd_of(world, job, &request->extent, &next), &request->extent);
    int file = job->fds[next];
    size_t size;
    struct job_range *ranges = memfd_map_sealed(job->fds[next + 1], 1 << 20, &size);
    int error = 0;

    assert_int_equal(job->n_fds, next + 2);
    assert_int_not_equal(request->extent.kind, JOB_EXTENT_DISK);
    assert_non_null(ranges);
    assert_int_equal(size, request->n_ranges * sizeof(*ranges));
    for (uint32_t i = 0; i < request->n_ranges; i++) {
        unsigned char *at = bytes + ranges[i].extent_offset;
        assert_true(ranges[i].extent_offset + ranges[i].bytes <= request->extent.size);
        ssize_t n = request->write ? pwrite(file, at, ranges[i].bytes, (off_t)ranges[i].file_offset)
                                   : pread(file, at, ranges[i].bytes, (off_t)ranges[i].file_offset);
        if (n != (ssize_t)ranges[i].bytes)
            error = HBM_E_IO;
    }
    munmap(ranges, size);
    munmap(bytes, request->extent.size);
    return error;
}

static int tell_listed(const struct world *world, struct job *job)
{
    struct job_clients_reply *reply = &job->reply.clients;

    for (uint32_t i = 0; i < job->request.clients.n; i++)
        if (job->request.clients.pids[i] == (uint32_t)world->listed_pid)
            reply->pids[reply->n++] = job->request.clients.pids[i];
    return world->mute ? HBM_E_UNSUPPORTED : 0;
}

int core_job_run(struct world *world, struct job *job)
{
    switch (job->opcode) {
    case JOB_CLIENTS:
        return tell_listed(world, job);
    case JOB_QUERY:
        job->reply.query = world->said;
        return 0;
    case JOB_CREATE:
        return run_create(world, job);
    case JOB_COPY:
        return run_copy(world, job);
    case JOB_ENCODE:
    case JOB_DECODE:
        return run_code(world, job);
    case JOB_PACK:
    case JOB_UNPACK:
        return run_packing(world, job);
    case JOB_MEASURE:
        return run_measure(world, job);
    case JOB_HASH:
        return run_hash(world, job);
    case JOB_OBSERVE:
        return run_observe(world, job);
    case JOB_FILE:
        return run_file(world, job);
    default:
        return 0;
    }
}
