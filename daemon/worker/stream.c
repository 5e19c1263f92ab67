/* Hashing beside a copy. Upwards the bytes are there from the start, so lanes hash while the link copies. Downwards
 * a chunk can be hashed only as it lands, and one core hashes slower than the link brings: pieces of four chunks
 * take turns on the link, so that four cores follow it and little is left to hash when the last piece has landed.
 */
#include "daemon/worker/stream.h"

#include "daemon/worker/checksum.h"
#include "daemon/worker/lanes.h"

#define WINDOW 16 /* pieces queued ahead */
#define SMALL_PIECE (CHECKSUM_CHUNK / 4)
#define TURNS 16 /* pieces that take turns: 4 of each of 4 chunks */

struct flow {
    const struct stream_copy *copy;
    uint64_t piece, pieces;
    bool in_turns;
    struct device_mark marks[WINDOW];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t landed; /* turns that are over */
    bool given_up;
    struct checksum_stream *streams[LANES_MAX];
};

/* Which piece goes at turn k, and also at which turn piece k goes: a 4 x 4 transposition is its own inverse. */
static uint64_t turn(const struct flow *flow, uint64_t k)
{
    uint64_t group = k / TURNS * TURNS;

    if (!flow->in_turns || group + TURNS > flow->pieces)
        return k;
    return group + k % 4 * 4 + k % TURNS / 4;
}

static size_t piece_bytes(const struct flow *flow, uint64_t piece)
{
    uint64_t left = flow->copy->bytes - piece * flow->piece;

    return left < flow->piece ? left : flow->piece;
}

static void land(struct flow *flow, uint64_t turns, bool give_up)
{
    pthread_mutex_lock(&flow->mutex);
    flow->landed = turns;
    flow->given_up = give_up;
    pthread_cond_broadcast(&flow->changed);
    pthread_mutex_unlock(&flow->mutex);
}

static bool wait_for_turn(struct flow *flow, uint64_t turn_awaited)
{
    pthread_mutex_lock(&flow->mutex);
    while (flow->landed <= turn_awaited && !flow->given_up)
        pthread_cond_wait(&flow->changed, &flow->mutex);
    bool there = flow->landed > turn_awaited;
    pthread_mutex_unlock(&flow->mutex);
    return there;
}

static int hash_while_sent(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct flow *flow = context;
    const struct stream_copy *copy = flow->copy;

    (void)lane;
    copy->hashes[index] =
        checksum_of(copy->source + index * CHECKSUM_CHUNK, checksum_chunk_bytes(copy->bytes, index));
    return job_poll(copy->job, failure);
}

static int hash_as_landed(void *context, uint64_t index, unsigned lane, struct failure *failure)
{
    struct flow *flow = context;
    const struct stream_copy *copy = flow->copy;
    uint64_t start = index * CHECKSUM_CHUNK, end = start + checksum_chunk_bytes(copy->bytes, index);
    struct checksum_stream *stream = flow->streams[lane];

    if (!stream && !(stream = flow->streams[lane] = checksum_stream_new()))
        return fail(failure, HBM_E_SYSTEM, "out of memory for a hash state");
    checksum_stream_reset(stream);
    for (uint64_t piece = start / flow->piece; piece * flow->piece < end; piece++) {
        if (!wait_for_turn(flow, turn(flow, piece)))
            return fail(failure, HBM_E_CANCELLED, "the copy ended early");
        checksum_stream_add(stream, copy->target + piece * flow->piece, piece_bytes(flow, piece));
    }
    copy->hashes[index] = checksum_stream_result(stream);
    return 0;
}

static int send(struct flow *flow, uint64_t k, struct failure *failure)
{
    const struct stream_copy *copy = flow->copy;
    uint64_t piece = turn(flow, k), offset = piece * flow->piece;

    if (job_poll(copy->job, failure) ||
        device_copy(copy->stream, copy->target + offset, copy->source + offset, piece_bytes(flow, piece), failure))
        return failure->error;
    return device_mark(copy->stream, &flow->marks[k % WINDOW], failure);
}

static int send_all(struct flow *flow, struct failure *failure)
{
    for (uint64_t k = 0; k < flow->pieces + WINDOW; k++) {
        if (k >= WINDOW) {
            if (device_wait(&flow->marks[k % WINDOW], failure))
                return failure->error;
            land(flow, k - WINDOW + 1, false);
            job_advance(flow->copy->job, piece_bytes(flow, turn(flow, k - WINDOW)));
        }
        if (k < flow->pieces && send(flow, k, failure))
            return failure->error;
    }
    return 0;
}

static int flow_run(struct flow *flow, struct failure *failure)
{
    const struct stream_copy *copy = flow->copy;
    bool down = copy->stream == DEVICE_DOWN;
    struct lanes lanes;

    for (unsigned i = 0; i < WINDOW && i < flow->pieces; i++)
        if (device_mark_new(&flow->marks[i], failure))
            return failure->error;
    if (copy->hashes)
        lanes_start(&lanes, lanes_of_cpu() + 1, checksum_chunks(copy->bytes),
                    down ? hash_as_landed : hash_while_sent, flow);
    if (send_all(flow, failure)) {
        land(flow, 0, true);
        device_drain(copy->stream);
        if (copy->hashes)
            lanes_stop(&lanes);
    }
    if (copy->hashes)
        lanes_join(&lanes, failure);
    return failure->error;
}

int stream_copy(const struct stream_copy *copy, struct failure *failure)
{
    bool follow = copy->hashes && copy->stream == DEVICE_DOWN;
    struct flow flow = {.copy = copy, .piece = follow ? SMALL_PIECE : CHECKSUM_CHUNK, .in_turns = follow};

    flow.pieces = copy->bytes / flow.piece + (copy->bytes % flow.piece != 0);
    pthread_mutex_init(&flow.mutex, NULL);
    pthread_cond_init(&flow.changed, NULL);
    int error = flow_run(&flow, failure);
    for (unsigned i = 0; i < LANES_MAX; i++)
        checksum_stream_free(flow.streams[i]);
    for (unsigned i = 0; i < WINDOW; i++)
        device_mark_free(&flow.marks[i]);
    pthread_cond_destroy(&flow.changed);
    pthread_mutex_destroy(&flow.mutex);
    return error;
}
