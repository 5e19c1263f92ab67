/* MEASURE: how long buffers come out by a codec whose size is not known from the shape. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/lanes.h"
#include "daemon/worker/pack_plan.h"
#include "daemon/worker/side.h"
#include "proto/memfd.h"

_Static_assert(JOB_GRAIN % LOSSLESS_BLOCK == 0, "what is cut between grains is cut between blocks");
_Static_assert(JOB_CODE_BYTES == sizeof(struct lossless_code), "it travels as it is");

#define GRAIN_BLOCKS (JOB_GRAIN / LOSSLESS_BLOCK)
#define PADDING 32u /* at most, between a stream's parts */

struct measuring {
    struct job *job;
    struct job_piece *pieces;
    uint64_t *first; /* grain of each piece */
    unsigned char *reply;
    uint64_t reply_bytes;
    struct side raw;
};

static uint64_t grains_of(uint64_t elements)
{
    return elements / JOB_GRAIN + (elements % JOB_GRAIN != 0);
}

static bool fits(const struct job_piece *piece, uint64_t size)
{
    uint64_t bytes;

    return hbm_codec_varies(piece->encoding.codec) && codec_supported(piece->dtype, &piece->encoding, piece->dims, 3) &&
           hbm_shape_bytes(piece->dims, 3, piece->dtype, &bytes) && bytes && piece->raw_offset % 16 == 0 &&
           piece->raw_offset <= size && bytes <= size - piece->raw_offset;
}

static int prepare(struct measuring *m, uint32_t n, uint64_t size, struct failure *failure)
{
    uint64_t grains = 0;

    m->first = calloc(n, sizeof(*m->first));
    if (!m->first)
        return fail(failure, HBM_E_SYSTEM, "out of memory for %u pieces", n);
    for (uint32_t i = 0; i < n; i++) {
        if (!fits(&m->pieces[i], size))
            return fail(failure, HBM_E_BAD_REQUEST, "piece %u is none that is measured, or reaches beyond its extent", i);
        m->first[i] = grains;
        if (__builtin_add_overflow(grains, grains_of(piece_elements(&m->pieces[i])), &grains))
            return fail(failure, HBM_E_BAD_REQUEST, "too many pieces");
    }
    m->reply_bytes = n * sizeof(struct job_measured) + grains * sizeof(uint32_t);
    m->reply = calloc(1, m->reply_bytes);
    return m->reply ? 0 : fail(failure, HBM_E_SYSTEM, "out of memory for %u measures", n);
}

static void add_up(const uint32_t *words, uint64_t elements, uint32_t *grains)
{
    for (uint64_t b = 0; b < lossless_blocks(elements); b++)
        grains[b / GRAIN_BLOCKS] += 4 + 4 * words[b];
    for (uint64_t g = 0; g < grains_of(elements); g++) {
        uint64_t left = elements - g * JOB_GRAIN;
        grains[g] += (uint32_t)(left < JOB_GRAIN ? left : JOB_GRAIN);
    }
}

static int measure_piece(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct measuring *m = context;
    const struct job_piece *piece = &m->pieces[index];
    struct job_measured *measured = (struct job_measured *)(void *)m->reply + index;
    uint32_t n = m->job->request.measure.n_pieces;
    uint32_t *grains = (uint32_t *)((struct job_measured *)(void *)m->reply + n) + m->first[index];
    uint64_t elements = piece_elements(piece);
    _cleanup_free_ uint32_t *words = calloc(lossless_blocks(elements), sizeof(*words));
    struct lossless_code code;

    (void)lane;
    if (job_poll(m->job, failure))
        return failure->error;
    if (!words)
        return fail(failure, HBM_E_SYSTEM, "out of memory for %llu blocks", (unsigned long long)lossless_blocks(elements));
    if (device_measure(m->raw.view.bytes + piece->raw_offset, elements, &code, words, failure))
        return failure->error;
    memcpy(measured->code, &code, sizeof(code));
    measured->head = LOSSLESS_HEADER + PADDING;
    measured->n_grains = grains_of(elements);
    add_up(words, elements, grains);
    return 0;
}

static void answer(struct measuring *m, struct job *job)
{
    const struct job_measure_request *r = &job->request.measure;

    if (prepare(m, r->n_pieces, r->raw.size, &job->failure) ||
        lanes_run(lanes_of_cpu(), r->n_pieces, measure_piece, m, &job->failure))
        return;
    int fd = memfd_sealed("hbm-measures", m->reply, m->reply_bytes);
    if (fd < 0)
        fail_errno(&job->failure, HBM_E_SYSTEM, "memfd_create", -fd);
    else
        job->reply_fd = fd;
}

void job_measure(struct job *job)
{
    const struct job_measure_request *r = &job->request.measure;
    struct measuring m = {.job = job};
    bool has_fd = r->raw.kind != JOB_EXTENT_CUDA_IPC, more;
    uint64_t start = monotonic_ns();

    m.pieces = pieces_load(job->fds[has_fd], r->n_pieces, 0, &more, &job->failure);
    if (m.pieces && !side_open(&m.raw, &r->raw, has_fd ? job->fds[0] : -1, false, &job->failure)) {
        answer(&m, job);
        side_close(&m.raw);
    }
    job->reply.measure.nanoseconds = monotonic_ns() - start;
    free(m.reply);
    free(m.first);
    free(m.pieces);
}
