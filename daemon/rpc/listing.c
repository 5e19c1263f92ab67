#include "daemon/rpc/listing.h"

#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/request.h"

/* Of a turn: a millisecond or two. */
#define ROWS_A_TURN 500
#define BYTES_A_TURN ((size_t)1 << 19)

struct listing {
    struct request *request; /* lives as long as its connection, which ends this first */
    listing_row row;
    struct lease_index index;
    size_t n, at;
    bool alone; /* no event and no other answer is sent until it ends */
    uint64_t ids[];
};

struct listing *listing_free(struct listing *listing)
{
    if (!listing)
        return NULL;
    lease_index_clear(&listing->index);
    free(listing);
    return NULL;
}

struct listing *listing_new(struct request *request, size_t n, listing_row row)
{
    struct listing *listing = calloc(1, sizeof(*listing) + n * sizeof(listing->ids[0]));

    if (!listing || !lease_index_make(&listing->index, request->core)) {
        answer_refuse(request, INTERNAL_ERROR, "no memory for the answer");
        return listing_free(listing);
    }
    listing->request = request;
    listing->row = row;
    return listing;
}

void listing_add(struct listing *listing, const struct buffer *buffer)
{
    listing->ids[listing->n++] = buffer->id;
}

static void end(struct listing *listing)
{
    struct request *request = listing->request;

    request->connection->listing = listing_free(listing);
    write_close(&request->answer, ']');
    answer_end(request);
}

void listing_go_on(struct listing *listing)
{
    struct request *request = listing->request;
    struct writer *writer = &request->answer;
    size_t enough = writer->size + BYTES_A_TURN;

    for (unsigned i = 0; i < ROWS_A_TURN && writer->size < enough; i++) {
        if (listing->at == listing->n || writer_has_failed(writer)) {
            end(listing);
            return;
        }
        const struct buffer *buffer = buffer_get(request->core, listing->ids[listing->at++]);
        if (buffer)
            listing->row(writer, &listing->index, &request->connection->who, buffer);
    }
    if (listing->alone)
        answer_send_on(request);
}

void listing_start(struct listing *listing)
{
    struct request *request = listing->request;
    struct connection *connection = request->connection;

    listing->alone = request->id && !request->batch && !connection->subscribed && connection->n_requests == 1;
    write_open(answer_begin(request), "result", '[');
    connection->listing = listing;
    listing_go_on(listing);
}
