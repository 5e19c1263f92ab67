/* HASH: one XXH3-64 a span. Two lanes fetch into a slot each and take turns with the hashes, so that fetching a chunk and
 * hashing the one before it overlap. Chunks are cut from all that the spans lie in: thousands of small ones cost the
 * device a few copies. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/checksum.h"
#include "daemon/worker/job.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/side.h"
#include "proto/memfd.h"

struct hashing {
    struct job *job;
    const struct job_span *spans;
    struct side side;
    struct kit kits[LANES_MAX];
    /* Whose turn it is may touch these. */
    struct checksum_stream *stream; /* of the span it is at */
    uint64_t *hashes;               /* of those before */
    uint32_t at;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t turn;
    bool given_up;
};

static void next_turn(struct hashing *h, bool give_up)
{
    pthread_mutex_lock(&h->mutex);
    h->turn++;
    h->given_up |= give_up;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}

static bool wait_turn(struct hashing *h, uint64_t index)
{
    pthread_mutex_lock(&h->mutex);
    while (h->turn != index && !h->given_up)
        pthread_cond_wait(&h->changed, &h->mutex);
    bool given_up = h->given_up;
    pthread_mutex_unlock(&h->mutex);
    return !given_up;
}

/* All that a chunk holds of the spans. */
static void hash_spans(struct hashing *h, const unsigned char *chunk, uint64_t offset, uint64_t bytes)
{
    for (; h->at < h->job->request.hash.n_spans; h->at++) {
        const struct job_span *span = &h->spans[h->at];
        uint64_t from = span->offset > offset ? span->offset : offset;
        uint64_t end = span->offset + span->bytes, to = end < offset + bytes ? end : offset + bytes;

        if (from < to)
            checksum_stream_add(h->stream, chunk + (from - offset), to - from);
        if (end > offset + bytes)
            return;
        h->hashes[h->at] = checksum_stream_result(h->stream);
        checksum_stream_reset(h->stream);
    }
}

static int hash_chunk(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct hashing *h = context;
    const struct job_hash_request *r = &h->job->request.hash;
    uint64_t offset = r->offset + index * CHECKSUM_CHUNK;
    size_t bytes = checksum_chunk_bytes(r->bytes, index);
    const unsigned char *chunk;

    if (pace_wait(h->job, bytes, failure) || side_get(&h->side, &h->kits[lane], offset, bytes, false, &chunk, failure)) {
        next_turn(h, true);
        return failure->error;
    }
    if (!wait_turn(h, index))
        return fail(failure, HBM_E_CANCELLED, "another chunk failed");
    hash_spans(h, chunk, offset, bytes);
    next_turn(h, false);
    job_advance(h->job, bytes);
    return 0;
}

static void hash_all(struct hashing *h, struct failure *failure)
{
    const struct job_hash_request *r = &h->job->request.hash;
    _cleanup_free_ uint64_t *hashes = calloc(r->n_spans, sizeof(*hashes));

    h->stream = checksum_stream_new();
    if (!hashes || !h->stream) {
        checksum_stream_free(h->stream);
        fail(failure, HBM_E_SYSTEM, "out of memory for %u hashes", r->n_spans);
        return;
    }
    h->hashes = hashes;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->changed, NULL);
    if (!lanes_run(2, checksum_chunks(r->bytes), hash_chunk, h, failure)) {
        int fd = memfd_sealed("hbm-hashes", hashes, r->n_spans * sizeof(*hashes));
        if (fd < 0)
            fail_errno(failure, HBM_E_SYSTEM, "memfd_create", -fd);
        else
            h->job->reply_fd = fd;
    }
    checksum_stream_free(h->stream);
    kits_close(h->kits);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->mutex);
}

static int check_spans(const struct hashing *h, struct failure *failure)
{
    const struct job_hash_request *r = &h->job->request.hash;
    uint64_t at = r->offset, end = r->offset + r->bytes;

    for (uint32_t i = 0; i < r->n_spans; i++) {
        const struct job_span *span = &h->spans[i];
        if (!span->bytes || span->offset < at || span->offset > end || span->bytes > end - span->offset)
            return fail(failure, HBM_E_BAD_REQUEST, "span %u is empty, or reaches beyond its place", i);
        at = span->offset + span->bytes;
    }
    return 0;
}

void job_hash(struct job *job)
{
    const struct job_hash_request *r = &job->request.hash;
    struct hashing h = {.job = job};
    size_t size = r->n_spans * sizeof(*h.spans);
    uint64_t start = monotonic_ns();
    void *spans = memfd_map_exact(job->fds[job->n_fds - 1], size);

    if (!spans) {
        fail(&job->failure, HBM_E_BAD_REQUEST, "the spans are no sealed memfd of %u spans: %s", r->n_spans, strerror(errno));
        return;
    }
    h.spans = spans;
    if (!check_spans(&h, &job->failure) &&
        !side_open(&h.side, &r->extent, job->n_fds == 2 ? job->fds[0] : -1, false, &job->failure)) {
        hash_all(&h, &job->failure);
        side_close(&h.side);
    }
    munmap(spans, size);
    job->reply.hash.nanoseconds = monotonic_ns() - start;
}
