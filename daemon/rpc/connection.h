/* One operator's connection: lines in, lines out. A turn runs one request of it at most, so that nobody's pipeline
 * holds up another. */
#pragma once

#include "daemon/core/call.h"
#include "daemon/core/events.h"
#include "daemon/rpc/server.h"

#define LINE_BYTES_MAX ((size_t)1 << 20)
#define OUTPUT_BYTES_MAX ((size_t)128 << 20)   /* a reader that stops is dropped past this */
#define OUTPUT_BYTES_PAUSE ((size_t)1 << 20)   /* no further request runs while so much is unread */
#define OUTPUT_BYTES_EVENTS ((size_t)16 << 20) /* a subscriber that stops is dropped past this */
#define REQUESTS_MAX 1024                      /* not answered yet */

struct batch;
struct listing;

struct connection {
    struct list node; /* server->connections */
    struct rpc_server *server;
    struct principal who;
    int fd;
    uv_poll_t poll;
    struct list turn; /* server->turns, while there is work that needs no I/O */

    char *input;
    size_t input_at, input_end, input_room; /* unread: [at, end) */
    size_t line_size;                       /* of the first whole line in it, with its newline; 0: none */
    size_t looked;                          /* up to here there is no newline */
    struct list output;                     /* struct chunk */
    size_t output_bytes;

    struct list requests; /* struct request, not answered yet */
    unsigned n_requests;
    struct list batches;   /* struct batch, not answered yet */
    struct batch *reading; /* the one whose requests are being run */
    struct listing *listing; /* the answer that is being written; nothing is run meanwhile */
    struct event_subscriber subscriber;
    bool subscribed;

    bool input_ended; /* the peer sends no more */
    bool refused;     /* we read no more; closes when the output is out */
    bool doomed;      /* closes at the next turn */
};

/* Takes fd on success. 0 or -errno. */
int connection_new(struct rpc_server *server, int fd, struct principal who);
/* Ends it now: nobody below may be in the middle of using it. Memory goes when its handles have closed. */
void connection_close(struct connection *connection);
/* Queues text and a newline. Takes text (malloc'd). Closes nothing: an overflow dooms the connection. */
void connection_send(struct connection *connection, char *text, size_t size);
/* Its turn: one request, some rows of a long answer, or its end. */
void connection_take_turn(struct connection *connection);
/* Closes at the next turn. */
void connection_doom(struct connection *connection);
/* Something changed: waits for what can bring it on now. Frees nothing. */
void connection_update(struct connection *connection);
