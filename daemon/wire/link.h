/* A link: one client's connection, with its bounded send queue. It never waits for its client, and a client that
 * does not read costs no more than the bounds below, then its own connection. */
#pragma once

#include "daemon/core/session.h"
#include "daemon/wire/peer.h"
#include "daemon/wire/server.h"
#include "proto/messages.h"

#define LINK_QUEUE_PACKETS 1024u
#define LINK_QUEUE_BYTES (4u << 20)
#define LINK_QUEUE_FDS 512u
#define LINK_UNREAD_FDS                                                                                            \
    16384u /* in its socket: four of the largest models; the kernel counts them against us all */
#define LINK_HELLO_MS 10000u      /* to say HELLO in */
/* Replies and calls that may be outstanding before its requests are left in the socket. */
#define LINK_PAUSE_PACKETS 64u
#define LINK_PAUSE_CALLS 256u
#define LINK_TURN_NS (5 * 1000000ull) /* of a turn of the loop, for all links of an account together */

enum link_state { LINK_FRESH, LINK_GREETED, LINK_OPEN };

struct link {
    struct list node; /* server->links */
    struct wire_server *server;
    struct core *core;
    int fd;
    enum link_state state;
    struct peer peer;        /* its pidfd goes to the session */
    struct account *account; /* pays for what it leaves unread */
    struct session *session; /* from HELLO on */
    struct list calls;       /* struct pending: unanswered */
    unsigned n_calls;
    struct list queue; /* struct queued */
    unsigned n_packets, n_bytes, n_fds;
    unsigned unread_fds; /* sent since its socket was last seen empty */
    bool doomed, closed;
    bool clean; /* it said BYE */
    int doom_error;
    char doom_reason[HBM_DETAIL_MAX];
    struct timer hello;
    uint32_t hello_serial;
    int watching; /* uv events polled for */
    uv_poll_t poll;
    struct packet packet; /* the one being handled */
};

/* Takes fd and peer->pidfd on success. NULL: memory is out. */
struct link *link_new(struct wire_server *server, int fd, struct peer *peer);
/* What core has to say to the session's client goes out here from now on. */
void link_take_session(struct link *link, struct session *session);
/* Sends or queues. fds are borrowed. What does not fit dooms the link; nothing is reported to the caller. */
void link_send(struct link *link, const struct packet_header *header, const void *body, size_t size, const int *fds,
               unsigned n_fds);
void link_reply(struct link *link, uint32_t opcode, uint32_t serial, const void *body, size_t size, int fd);
__attribute__((format(printf, 5, 6))) void link_refuse(struct link *link, uint32_t opcode, uint32_t serial,
                                                       int error, const char *format, ...);
/* Ends it, from the loop, with a GOODBYE. Nothing of the session's changes before this returns. */
void link_doom(struct link *link, int error, const char *reason);
/* Refuses a request and ends the link with the same sentence: of what comes before it is served. */
void link_turn_away(struct link *link, uint32_t opcode, uint32_t serial, int error, const char *why);
/* What it sent is against the protocol: counted, told, doomed. */
void link_violation(struct link *link, const char *what);
/* The client is gone: its session ends with it, its calls lose it. */
void link_close(struct link *link, const char *why);
/* The daemon goes, the session stays in the ledger. */
void link_shut_down(struct link *link);
/* Reads again, or no more, as the bounds say. */
void link_balance(struct link *link);
