/* What lies in the buffers. A number at both ends of the elements, its top byte the codec that it is stored in;
 * where there are scales, one that follows from the number. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "proto/memfd.h"
#include "tests/sim/sim.h"

static uint32_t scale_for(uint64_t tag)
{
    return (uint32_t)tag * 2654435761u;
}

static uint64_t stored(const struct form *form, uint64_t tag)
{
    return (uint64_t)form->encoding.codec << 56 | tag;
}

static void put(int fd, uint64_t at, const void *bytes, size_t size)
{
    CHECK(pwrite(fd, bytes, size, (off_t)at) == (ssize_t)size);
}

static uint64_t get(int fd, uint64_t at, size_t size)
{
    uint64_t value = 0;

    CHECK(pread(fd, &value, size, (off_t)at) == (ssize_t)size);
    return value;
}

/* Behind the scales. */
static uint64_t zero_of(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t scale_offset)
{
    uint64_t units = 0, zero, end;

    if (!hbm_codec_zero_bytes(encoding->codec))
        return 0;
    CHECK(hbm_encoding_units(encoding, dims, rank, &units) && job_units_layout(encoding->codec, units, &zero, &end));
    return scale_offset + zero;
}

static uint64_t outliers_of(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t scale_offset)
{
    uint64_t elements = 0, numbers, outliers, end;

    if (!hbm_codec_splits(encoding->codec))
        return 0;
    CHECK(hbm_split_elements(encoding, dims, rank, &elements));
    job_split_layout(encoding->group, elements, &numbers, &outliers, &end);
    return scale_offset + outliers;
}

struct form form_of(const struct buffer *buffer)
{
    return (struct form){.offset = buffer->offset,
                         .size = buffer->size,
                         .encoding = buffer->encoding,
                         .scale_offset = buffer->parts[PART_SCALE] ? buffer->parts[PART_SCALE]->offset : 0,
                         .zero_offset = buffer->parts[PART_ZERO] ? buffer->parts[PART_ZERO]->offset : 0,
                         .outliers_offset = buffer->parts[PART_OUTLIERS] ? buffer->parts[PART_OUTLIERS]->offset : 0};
}

/* Where a raw buffer's first byte lies in a packed extent. */
static uint64_t packed_offset(const struct packing *packing, uint64_t offset)
{
    for (uint32_t i = 0; i < packing->n_pieces; i++) {
        const struct job_piece *piece = &packing->pieces[i];
        if (piece->encoding.codec == HBM_CODEC_RAW && offset >= piece->raw_offset &&
            offset < piece->raw_offset + piece->dims[2])
            return piece->data_offset + (offset - piece->raw_offset);
    }
    CHECK(!"a raw buffer is in the packed extent");
    return 0;
}

/* Here no buffer takes more than one piece. */
struct form form_there(const struct buffer *buffer)
{
    const struct packing *packing = buffer->arena->extent->packing;
    const struct packed *packed = buffer_packed(buffer);
    struct form form = form_of(buffer);

    if (packing && !packed) {
        form.offset = packed_offset(packing, form.offset);
        if (form.scale_offset)
            form.scale_offset = packed_offset(packing, form.scale_offset);
        if (form.zero_offset)
            form.zero_offset = packed_offset(packing, form.zero_offset);
        if (form.outliers_offset)
            form.outliers_offset = packed_offset(packing, form.outliers_offset);
    }
    for (uint32_t i = 0; packed && i < packing->n_pieces; i++) {
        const struct job_piece *piece = &packing->pieces[i];
        if (piece->encoding.codec == HBM_CODEC_RAW || &packing->packed[piece->receipt] != packed)
            continue;
        form = (struct form){.offset = piece->data_offset,
                             .size = (piece->dims[0] * piece->dims[1] * piece->dims[2] *
                                          hbm_dtype_bits(piece->encoding.stored) + 7) / 8,
                             .encoding = piece->encoding,
                             .scale_offset = piece->scale_offset,
                             .zero_offset = zero_of(&piece->encoding, piece->dims, 3, piece->scale_offset)};
    }
    return form;
}

void contents_write(int fd, const struct form *form, uint64_t tag)
{
    uint64_t value = stored(form, tag);
    uint32_t scale = scale_for(tag);

    put(fd, form->offset, &value, sizeof(value));
    put(fd, form->offset + form->size - sizeof(value), &value, sizeof(value));
    if (hbm_codec_scale_bytes(form->encoding.codec))
        put(fd, form->scale_offset, &scale, sizeof(scale));
    if (hbm_codec_zero_bytes(form->encoding.codec))
        put(fd, form->zero_offset, &scale, sizeof(scale));
    if (hbm_codec_splits(form->encoding.codec))
        put(fd, form->outliers_offset, &scale, sizeof(uint16_t));
}

uint64_t contents_read(int fd, const struct form *form)
{
    if (form->size < sizeof(uint64_t)) /* a few scales */
        return UINT64_MAX;
    uint64_t value = get(fd, form->offset, sizeof(value)), tag = value & 0xffffffffffffff;

    if (value != get(fd, form->offset + form->size - sizeof(value), sizeof(value)) || value != stored(form, tag))
        return UINT64_MAX;
    /* A private copy has no scales of its own. */
    if (hbm_codec_scale_bytes(form->encoding.codec) &&
        (!form->scale_offset || get(fd, form->scale_offset, sizeof(uint32_t)) != scale_for(tag)))
        return UINT64_MAX;
    if (hbm_codec_zero_bytes(form->encoding.codec) &&
        (!form->zero_offset || get(fd, form->zero_offset, sizeof(uint32_t)) != scale_for(tag)))
        return UINT64_MAX;
    if (hbm_codec_splits(form->encoding.codec) &&
        (!form->outliers_offset || get(fd, form->outliers_offset, sizeof(uint16_t)) != (uint16_t)scale_for(tag)))
        return UINT64_MAX;
    return tag;
}

int extent_fd(const struct extent *extent)
{
    return extent->kind == JOB_EXTENT_CUDA_IPC ? sim.blocks[(extent->token - 1) % 256] : extent->fd;
}

/* ---- Jobs ---- */

static int fd_of(const struct job *job, const struct job_extent *extent, unsigned *next)
{
    return extent->kind == JOB_EXTENT_CUDA_IPC ? sim.blocks[(extent->token - 1) % 256] : job->fds[(*next)++];
}

/* A job that failed may have left anything in what it was to write. */
static void spoil(int fd, uint64_t at)
{
    uint64_t noise = random_next(&sim.random) | 0xee00000000000000u;

    put(fd, at, &noise, sizeof(noise));
}

/* The same, and its worker may do so again when it has been given up. */
static void fail(const struct job *job, int fd, uint64_t at)
{
    spoil(fd, at);
    if (!job->at_large || sim.n_late == LATE)
        return;
    sim.late[sim.n_late].fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    sim.late[sim.n_late++].at = at;
}

void contents_write_late(void)
{
    for (unsigned i = 0; i < sim.n_late; i++) {
        spoil(sim.late[i].fd, sim.late[i].at);
        close(sim.late[i].fd);
    }
    sim.n_late = 0;
}

static bool is_damaged(int fd)
{
    struct stat status;

    CHECK(!fstat(fd, &status));
    for (unsigned i = 0; i < 64; i++)
        if (sim.damaged[i] == status.st_ino)
            return true;
    return false;
}

/* A bit that flips in host memory or on the disk. */
void contents_damage(const struct arena *arena)
{
    struct stat status;

    CHECK(!fstat(arena->extent->fd, &status));
    sim.damaged[sim.n_damaged++ % 64] = status.st_ino;
    list_for_each (node, &arena->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
        struct known *known = known_get(buffer->id);
        spoil(arena->extent->fd, form_there(buffer).offset);
        if (known)
            known->damaged = true;
    }
}

/* Than what was stored. */
static void hash_otherwise(struct job *job)
{
    uint64_t hashes[64] = {1};
    size_t size = 0;
    void *right = memfd_map_sealed(job->reply_fd, sizeof(hashes), &size);

    CHECK(right);
    munmap(right, size);
    close(job->reply_fd);
    job->reply_fd = memfd_sealed("hashes", hashes, size);
}

static void copy(struct job *job)
{
    const struct job_copy_request *request = &job->request.copy;
    static char bytes[1 << 16];
    unsigned next = 0;
    bool makes = request->flags & JOB_MAKE_TARGET;
    int source = fd_of(job, &request->source, &next), target = makes ? job->reply_fd : fd_of(job, &request->target, &next);

    if (request->flags & JOB_VERIFY && is_damaged(source))
        job->error = HBM_E_CHECKSUM;
    if (job->error) {
        if (!makes)
            fail(job, target, request->target_offset);
        job->reply_fd = fd_close(job->reply_fd);
        return;
    }
    for (uint64_t at = 0; at < request->bytes; at += sizeof(bytes)) {
        size_t n = request->bytes - at < sizeof(bytes) ? request->bytes - at : sizeof(bytes);
        CHECK(pread(source, bytes, n, (off_t)(request->source_offset + at)) == (ssize_t)n);
        put(target, request->target_offset + at, bytes, n);
    }
    if (request->flags & JOB_HASHES && is_damaged(source))
        hash_otherwise(job);
    sim.count.moves++;
    sim.count.parts += request->flags & JOB_HASHES && request->flags & (JOB_TO_PEER | JOB_FROM_PEER);
}

static bool any_is_opaque(void)
{
    list_for_each (node, &sim.known)
        if (list_entry(node, struct known, node)->opaque)
            return true;
    return false;
}

static void recode(const struct job *job, bool encodes)
{
    const struct job_extent *from = encodes ? &job->request.encode.source : &job->request.decode.source;
    const struct job_extent *to = encodes ? &job->request.encode.target : &job->request.decode.target;
    const struct job_code *code = encodes ? &job->request.encode.code : &job->request.decode.code;
    unsigned next = 0;
    int source = fd_of(job, from, &next), target = fd_of(job, to, &next);
    uint64_t elements = 0;
    struct form raw = {.offset = code->raw_offset};
    struct form coded = {
        .offset = code->data_offset, .scale_offset = code->scale_offset, .encoding = code->encoding,
        .zero_offset = zero_of(&code->encoding, code->dims, code->rank, code->scale_offset),
        .outliers_offset = outliers_of(&code->encoding, code->dims, code->rank, code->scale_offset)};

    CHECK(hbm_shape_elements(code->dims, code->rank, &elements));
    CHECK(hbm_shape_bytes(code->dims, code->rank, code->dtype, &raw.size));
    coded.size = (elements * hbm_dtype_bits(code->encoding.stored) + 7) / 8;
    if (job->error) {
        fail(job, target, encodes ? coded.offset : raw.offset);
        return;
    }
    uint64_t tag = contents_read(source, encodes ? &raw : &coded);
    if (tag == UINT64_MAX) { /* else the coder finds what was stored */
        CHECK(any_is_opaque());
        return;
    }
    contents_write(target, encodes ? &coded : &raw, tag);
    sim.count.moves++;
}

static void move_piece(bool pack, const struct job_piece *piece, int raw_fd, int packed_fd)
{
    static char bytes[1 << 16];
    struct form coded = {.offset = piece->data_offset, .scale_offset = piece->scale_offset, .encoding = piece->encoding,
                         .zero_offset = zero_of(&piece->encoding, piece->dims, 3, piece->scale_offset)},
                raw = {.offset = piece->raw_offset};
    uint64_t elements = piece->dims[0] * piece->dims[1] * piece->dims[2], tag;

    if (piece->encoding.codec == HBM_CODEC_RAW) {
        for (uint64_t at = 0; at < elements; at += sizeof(bytes)) {
            size_t n = elements - at < sizeof(bytes) ? elements - at : sizeof(bytes);
            CHECK(pread(pack ? raw_fd : packed_fd, bytes, n,
                        (off_t)((pack ? piece->raw_offset : piece->data_offset) + at)) == (ssize_t)n);
            put(pack ? packed_fd : raw_fd, (pack ? piece->data_offset : piece->raw_offset) + at, bytes, n);
        }
        return;
    }
    raw.size = elements * hbm_dtype_bits(piece->dtype) / 8;
    coded.size = (elements * hbm_dtype_bits(piece->encoding.stored) + 7) / 8;
    tag = contents_read(pack ? raw_fd : packed_fd, pack ? &raw : &coded);
    if (tag == UINT64_MAX)
        CHECK(any_is_opaque());
    else
        contents_write(pack ? packed_fd : raw_fd, pack ? &coded : &raw, tag);
}

static void move_pieces(struct job *job)
{
    bool pack = job->opcode == JOB_PACK, makes = job->request.unpack.flags & JOB_MAKE_TARGET;
    const struct job_unpack_request *request = &job->request.unpack; /* both have the same fields */
    unsigned next = 0;
    int raw = makes ? job->reply_fd : fd_of(job, &request->raw, &next), packed = fd_of(job, &request->packed, &next);
    size_t size;
    struct job_piece *pieces = memfd_map_sealed(job->fds[next], 1 << 20, &size);

    CHECK(pieces && size == request->n_pieces * sizeof(*pieces));
    if (!pack && request->flags & JOB_VERIFY && is_damaged(packed))
        job->error = HBM_E_CHECKSUM;
    if (job->error && !makes)
        fail(job, pack ? packed : raw, 0);
    for (uint32_t i = 0; !job->error && i < request->n_pieces; i++)
        move_piece(pack, &pieces[i], raw, packed);
    if (job->error)
        job->reply_fd = fd_close(job->reply_fd);
    else
        sim.count.moves++;
    munmap(pieces, size);
}

static void tell_listed(struct job *job)
{
    struct job_clients_reply *reply = &job->reply.clients;

    reply->n = 0;
    for (unsigned i = 0; i < CLIENTS; i++)
        for (uint32_t j = 0; j < job->request.clients.n; j++)
            if (sim.clients[i].listed && job->request.clients.pids[j] == (uint32_t)sim.clients[i].pid)
                reply->pids[reply->n++] = job->request.clients.pids[j];
    if (sim.mute)
        job->error = HBM_E_UNSUPPORTED;
}

/* What a hash is of is what it starts with. */
static void hash(struct job *job)
{
    const struct job_hash_request *request = &job->request.hash;
    size_t size = request->n_spans * sizeof(struct job_span);
    unsigned next = 0;
    int fd = fd_of(job, &request->extent, &next);
    struct job_span *spans = memfd_map_exact(job->fds[next], size);
    uint64_t *hashes = calloc(request->n_spans, sizeof(*hashes));

    CHECK(spans && hashes);
    for (uint32_t i = 0; i < request->n_spans; i++)
        hashes[i] = get(fd, spans[i].offset, sizeof(*hashes));
    fd_close(job->reply_fd);
    job->reply_fd = memfd_sealed("hashes", hashes, request->n_spans * sizeof(*hashes));
    munmap(spans, size);
    free(hashes);
}

void contents_perform(struct world *world, struct job *job)
{
    (void)world;
    if (job->opcode == JOB_CREATE && !job->error && job->request.create.kind == JOB_EXTENT_CUDA_IPC) {
        int *block = &sim.blocks[(job->reply.create.token - 1) % 256];
        if (*block)
            close(*block);
        *block = memfd_create("block", MFD_CLOEXEC);
        CHECK(*block > 0 && !ftruncate(*block, (off_t)job->request.create.size));
    } else if (job->opcode == JOB_COPY) {
        copy(job);
    } else if (job->opcode == JOB_ENCODE || job->opcode == JOB_DECODE) {
        recode(job, job->opcode == JOB_ENCODE);
    } else if (job->opcode == JOB_PACK || job->opcode == JOB_UNPACK) {
        move_pieces(job);
    } else if (job->opcode == JOB_HASH && !job->error) {
        hash(job);
    } else if (job->opcode == JOB_CLIENTS && !job->error) {
        tell_listed(job);
    }
}
