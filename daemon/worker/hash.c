/* HASH: one XXH3-64 over the whole range. Two lanes fetch into a slot each and take turns with the hash, so that
 * fetching a chunk and hashing the one before it overlap. */
#include "daemon/worker/checksum.h"
#include "daemon/worker/job.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/side.h"

struct hashing {
    struct job *job;
    struct side side;
    struct kit kits[LANES_MAX];
    struct checksum_stream *stream; /* whose turn it is may touch it */
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

static int hash_chunk(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct hashing *h = context;
    const struct job_hash_request *r = &h->job->request.hash;
    size_t bytes = checksum_chunk_bytes(r->bytes, index);
    const unsigned char *from;

    if (pace_wait(h->job, bytes, failure) ||
        side_get(&h->side, &h->kits[lane], r->offset + index * CHECKSUM_CHUNK, bytes, false, &from, failure)) {
        next_turn(h, true);
        return failure->error;
    }
    if (!wait_turn(h, index))
        return fail(failure, HBM_E_CANCELLED, "another chunk failed");
    checksum_stream_add(h->stream, from, bytes);
    next_turn(h, false);
    job_advance(h->job, bytes);
    return 0;
}

static void hash_all(struct hashing *h, struct failure *failure)
{
    const struct job_hash_request *r = &h->job->request.hash;

    h->stream = checksum_stream_new();
    if (!h->stream) {
        fail(failure, HBM_E_SYSTEM, "out of memory for a hash state");
        return;
    }
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->changed, NULL);
    lanes_run(2, checksum_chunks(r->bytes), hash_chunk, h, failure);
    h->job->reply.hash.hash = checksum_stream_result(h->stream);
    checksum_stream_free(h->stream);
    kits_close(h->kits);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->mutex);
}

void job_hash(struct job *job)
{
    struct hashing h = {.job = job};
    uint64_t start = monotonic_ns();

    if (side_open(&h.side, &job->request.hash.extent, job->n_fds ? job->fds[0] : -1, false, &job->failure))
        return;
    hash_all(&h, &job->failure);
    side_close(&h.side);
    job->reply.hash.nanoseconds = monotonic_ns() - start;
}
