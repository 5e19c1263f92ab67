/* Two streams with a slot of this device's memory each, piece by piece in turns: while one's piece is on the link, the other's goes
 * on between the devices. What is queued on a stream runs in order, so a slot is free when its next piece gets there. */
#include "daemon/worker/relay.h"

#include "daemon/base/cleanup.h"
#include "daemon/worker/checksum.h"
#include "daemon/worker/pace.h"

#define SLOTS 2u
#define AHEAD 4u /* pieces queued */

struct relaying {
    const struct relay *relay;
    struct view slots;
    struct device_mark marks[AHEAD];
    uint64_t *results; /* the device hashes, to here; NULL: the CPU does */
};

static enum device_stream stream_of(uint64_t piece)
{
    return piece % SLOTS ? DEVICE_COMPUTE : DEVICE_UP;
}

static int hash_piece(struct relaying *relaying, uint64_t piece, unsigned char *slot, size_t bytes, struct failure *failure)
{
    if (!relaying->results)
        return 0;
    return device_hash(stream_of(piece), NULL, slot, bytes / CHECKSUM_GRAIN, relaying->results + piece * CHECKSUM_GRAINS, failure);
}

static int send(struct relaying *relaying, uint64_t piece, struct failure *failure)
{
    const struct relay *relay = relaying->relay;
    uint64_t offset = piece * CHECKSUM_CHUNK;
    size_t bytes = checksum_chunk_bytes(relay->bytes, piece);
    unsigned char *slot = relaying->slots.bytes + piece % SLOTS * CHECKSUM_CHUNK;
    struct device_mark *mark = &relaying->marks[piece % AHEAD];
    enum device_stream stream = stream_of(piece);

    if (pace_wait(relay->job, bytes, failure) || (!mark->event && device_mark_new(mark, failure)) ||
        device_copy(stream, slot, relay->source + offset, bytes, failure) || hash_piece(relaying, piece, slot, bytes, failure) ||
        device_copy(stream, relay->target + offset, slot, bytes, failure))
        return failure->error;
    return device_mark(stream, mark, failure);
}

static int land(struct relaying *relaying, uint64_t piece, struct failure *failure)
{
    const struct relay *relay = relaying->relay;
    size_t bytes = checksum_chunk_bytes(relay->bytes, piece);
    const unsigned char *host = (relay->to_host ? relay->target : relay->source) + piece * CHECKSUM_CHUNK;

    if (device_wait(&relaying->marks[piece % AHEAD], failure))
        return failure->error;
    if (!relaying->results)
        checksum_of_chunk(host, bytes, relay->hashes + piece * CHECKSUM_GRAINS);
    job_advance(relay->job, bytes);
    return 0;
}

static int run(struct relaying *relaying, struct failure *failure)
{
    uint64_t pieces = checksum_chunks(relaying->relay->bytes), landed = 0;

    for (uint64_t piece = 0; piece < pieces; piece++)
        if ((piece >= AHEAD && land(relaying, landed++, failure)) || send(relaying, piece, failure))
            return failure->error;
    while (landed < pieces)
        if (land(relaying, landed++, failure))
            return failure->error;
    for (uint64_t i = 0; relaying->results && i < checksum_grains(relaying->relay->bytes); i++)
        relaying->relay->hashes[i] = relaying->results[i];
    return 0;
}

int relay_copy(const struct relay *relay, struct failure *failure)
{
    struct relaying relaying = {.relay = relay};
    const struct job_extent slots = {.kind = JOB_EXTENT_DEVICE, .size = SLOTS * CHECKSUM_CHUNK};

    if (device_make(&slots, &relaying.slots, failure))
        return failure->error;
    if (relay->bytes % CHECKSUM_GRAIN == 0)
        relaying.results = device_hashes_new(checksum_grains(relay->bytes));
    if (run(&relaying, failure)) {
        device_drain(DEVICE_UP);
        device_drain(DEVICE_COMPUTE);
    }
    device_hashes_free(relaying.results);
    for (unsigned i = 0; i < AHEAD; i++)
        device_mark_free(&relaying.marks[i]);
    device_unmap(&relaying.slots);
    return failure->error;
}
