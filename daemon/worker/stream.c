/* Pieces go over the link queued ahead, and are hashed beside it. A device that hashes where its memory lies does
 * so on a stream of its own: down, whenever it likes; up, once a piece has landed. Otherwise the CPU's lanes hash:
 * up, from the start, while the link copies; down, piece by piece as they land. */
#include "daemon/worker/stream.h"

#include <string.h>

#include "daemon/worker/checksum.h"
#include "daemon/worker/lanes.h"
#include "daemon/worker/pace.h"

#define WINDOW 8 /* pieces queued ahead */
/* The device loses 4 us between two pieces, the CPU a cache: each side has its size. */
#define LARGE_CHUNKS 4
/* The last piece takes the link about as long as a CPU takes to wake up for the one before it: 62.5 MiB go at 0.53 of one
 * pinned copy with it, at 0.46 in one piece (a group of small_bench, H200, driver 580.159.04, 2026-11-30). */
#define TAIL_GRAINS UINT64_C(16)
/* Hashed by one kernel: another process's kernels stand still whenever one of ours gets its turn. On an H200, driver
 * 580.159.04, one of 1.18 ms beside an offload takes 1.22 times as long with a kernel a piece, 1.03 with this
 * (ONLY=kernel make bench-gpu, 2026-11-30). */
#define HASH_PIECES 16

struct flow {
    const struct stream_copy *copy;
    uint64_t *hashes; /* NULL: none are made */
    uint64_t piece, pieces; /* bytes of one, and how many */
    uint64_t sent;          /* pieces */
    uint64_t tail;          /* bytes of the last one; 0: it is like the others */
    struct device_mark marks[WINDOW];
    uint64_t *results; /* the device hashes, to here; NULL: it does not */
    uint64_t hashed;   /* pieces that it has been told to hash */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t landed; /* pieces */
    bool given_up;
};

static bool goes_down(const struct stream_copy *copy)
{
    return copy->stream == DEVICE_DOWN;
}

static enum device_stream hash_stream(const struct stream_copy *copy)
{
    return goes_down(copy) ? DEVICE_DOWN_HASH : DEVICE_UP_HASH;
}

static const unsigned char *device_side(const struct stream_copy *copy)
{
    return goes_down(copy) ? copy->source : copy->target;
}

static const unsigned char *host_side(const struct stream_copy *copy)
{
    return goes_down(copy) ? copy->target : copy->source;
}

static bool is_last(const struct flow *flow, uint64_t piece)
{
    return piece + 1 == flow->pieces;
}

static uint64_t piece_offset(const struct flow *flow, uint64_t piece)
{
    return flow->tail && is_last(flow, piece) ? flow->copy->bytes - flow->tail : piece * flow->piece;
}

static size_t piece_bytes(const struct flow *flow, uint64_t piece)
{
    uint64_t end = is_last(flow, piece) ? flow->copy->bytes : piece_offset(flow, piece + 1);

    return end - piece_offset(flow, piece);
}

/* ---- Hashing on the CPU ---- */

static void land(struct flow *flow, uint64_t pieces, bool give_up)
{
    pthread_mutex_lock(&flow->mutex);
    flow->landed = pieces;
    flow->given_up = give_up;
    pthread_cond_broadcast(&flow->changed);
    pthread_mutex_unlock(&flow->mutex);
}

static bool wait_for_piece(struct flow *flow, uint64_t piece)
{
    pthread_mutex_lock(&flow->mutex);
    while (flow->landed <= piece && !flow->given_up)
        pthread_cond_wait(&flow->changed, &flow->mutex);
    bool there = flow->landed > piece;
    pthread_mutex_unlock(&flow->mutex);
    return there;
}

/* Pieces are chunks here. */
static int hash_piece(void *context, uint64_t piece, unsigned lane, struct failure *failure)
{
    struct flow *flow = context;
    const struct stream_copy *copy = flow->copy;

    (void)lane;
    if (goes_down(copy) && !wait_for_piece(flow, piece))
        return fail(failure, HBM_E_CANCELLED, "the copy ended early");
    checksum_of_chunk(host_side(copy) + piece * CHECKSUM_CHUNK, piece_bytes(flow, piece),
                      copy->hashes + piece * CHECKSUM_GRAINS);
    return job_poll(copy->job, failure);
}

/* ---- Hashing on the device ---- */

/* Up, whoever waits for the last piece waits for what is hashed with it: that is little. */
static bool ends_group(const struct flow *flow, uint64_t piece)
{
    return is_last(flow, piece) || piece + 3 == flow->pieces || piece + 1 == flow->hashed + HASH_PIECES;
}

/* What is not hashed yet, with this piece. Up, the mark moves on: it stands for landed and hashed, so that one
 * wait is for both. */
static int hash_there(struct flow *flow, uint64_t piece, struct device_mark *mark, struct failure *failure)
{
    const struct stream_copy *copy = flow->copy;
    uint64_t offset = piece_offset(flow, flow->hashed), end = piece_offset(flow, piece) + piece_bytes(flow, piece);

    if (device_hash(hash_stream(copy), goes_down(copy) ? NULL : mark, device_side(copy) + offset,
                    (end - offset) / CHECKSUM_GRAIN, flow->results + offset / CHECKSUM_GRAIN, failure))
        return failure->error;
    flow->hashed = piece + 1;
    return goes_down(copy) ? 0 : device_mark(hash_stream(copy), mark, failure);
}

/* When all has landed. The device hashes whole grains only. */
static int collect(struct flow *flow, struct failure *failure)
{
    const struct stream_copy *copy = flow->copy;
    uint64_t grains = copy->bytes / CHECKSUM_GRAIN, rest = copy->bytes % CHECKSUM_GRAIN;

    if (goes_down(copy) &&
        (device_mark(hash_stream(copy), &flow->marks[0], failure) || device_wait_soon(&flow->marks[0], failure)))
        return failure->error;
    memcpy(copy->hashes, flow->results, grains * sizeof(*copy->hashes));
    if (rest)
        copy->hashes[grains] = checksum_of(host_side(copy) + grains * CHECKSUM_GRAIN, rest);
    return 0;
}

/* ---- Sending ---- */

static int send(struct flow *flow, uint64_t piece, struct failure *failure)
{
    const struct stream_copy *copy = flow->copy;
    uint64_t offset = piece_offset(flow, piece), end = offset + piece_bytes(flow, piece);
    struct device_mark *mark = &flow->marks[piece % WINDOW];

    if (piece == 0 && head_land(&copy->head, copy->target, failure))
        return failure->error;
    if (offset < head_bytes(&copy->head))
        offset = head_bytes(&copy->head);
    if (pace_wait(copy->job, piece_bytes(flow, piece), failure) ||
        (!mark->event && device_mark_new(mark, failure)) ||
        (end > offset && device_copy(copy->stream, copy->target + offset, copy->source + offset, end - offset, failure)) ||
        device_mark(copy->stream, mark, failure))
        return failure->error;
    return flow->results && ends_group(flow, piece) ? hash_there(flow, piece, mark, failure) : 0;
}

/* As far ahead of what has landed as keeps the link busy; where that is not wanted, no further than it may. */
static int send_ahead(struct flow *flow, uint64_t landed, struct failure *failure)
{
    while (flow->sent < flow->pieces && flow->sent < landed + (pace_is_limited(flow->copy->job) ? 1 : WINDOW))
        if (send(flow, flow->sent++, failure))
            return failure->error;
    return 0;
}

static int send_rest(struct flow *flow, struct failure *failure)
{
    for (uint64_t piece = 0; piece < flow->pieces; piece++) {
        struct device_mark *mark = &flow->marks[piece % WINDOW];

        if (is_last(flow, piece) ? device_wait_soon(mark, failure) : device_wait(mark, failure))
            return failure->error;
        land(flow, piece + 1, false);
        job_advance(flow->copy->job, piece_bytes(flow, piece));
        if (flow->tail && piece + 2 == flow->pieces)
            job_tell(flow->copy->job);
        if (send_ahead(flow, piece + 1, failure))
            return failure->error;
    }
    return 0;
}

static void run(struct flow *flow, struct failure *failure)
{
    bool by_cpu = flow->hashes && !flow->results;
    struct lanes lanes;

    /* The link is busy before there are threads to follow it, and while the caller does what it has to. */
    send_ahead(flow, 0, failure);
    if (flow->copy->meanwhile && !failure->error)
        flow->copy->meanwhile(flow->copy->context, failure);
    if (by_cpu)
        lanes_start(&lanes, lanes_of_cpu() + 1, flow->pieces, hash_piece, flow);
    if (failure->error || send_rest(flow, failure)) {
        land(flow, 0, true);
        if (by_cpu)
            lanes_stop(&lanes);
    }
    if (by_cpu)
        lanes_join(&lanes, failure);
    if (flow->results && !failure->error)
        collect(flow, failure);
    if (!failure->error)
        return;
    device_drain(flow->copy->stream);
    if (flow->results)
        device_drain(hash_stream(flow->copy));
}

static bool device_may_hash(const struct stream_copy *copy)
{
    return copy->hashes && copy->bytes >= CHECKSUM_GRAIN && (uintptr_t)device_side(copy) % 16 == 0 &&
           !(copy->between && copy->bytes % CHECKSUM_GRAIN);
}

int stream_copy(const struct stream_copy *copy, bool *hashed, struct failure *failure)
{
    struct flow flow = {.copy = copy, .hashes = copy->hashes};

    if (device_may_hash(copy))
        flow.results = device_hashes_new(checksum_grains(copy->bytes));
    if (copy->between && !flow.results)
        flow.hashes = NULL;
    *hashed = flow.hashes || !copy->hashes;
    flow.piece = CHECKSUM_CHUNK * (flow.results ? LARGE_CHUNKS : 1);
    flow.pieces = copy->bytes / flow.piece + (copy->bytes % flow.piece != 0);
    if (flow.results && copy->bytes > 2 * TAIL_GRAINS * CHECKSUM_GRAIN) {
        flow.tail = TAIL_GRAINS * CHECKSUM_GRAIN + copy->bytes % CHECKSUM_GRAIN;
        flow.pieces = (copy->bytes - flow.tail + flow.piece - 1) / flow.piece + 1;
    }
    pthread_mutex_init(&flow.mutex, NULL);
    pthread_cond_init(&flow.changed, NULL);
    run(&flow, failure);
    device_hashes_free(flow.results);
    for (unsigned i = 0; i < WINDOW; i++)
        device_mark_free(&flow.marks[i]);
    pthread_cond_destroy(&flow.changed);
    pthread_mutex_destroy(&flow.mutex);
    return failure->error;
}
