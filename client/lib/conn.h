/* The connection to the daemon. Any thread may call; one reads at a time and hands replies to their serials.
 *
 * Leader-follower: a caller sends its request, then reads packets itself until its reply is there, unless another
 * thread is reading already; a reader that has its reply hands the turn on. While nobody calls, the socket is armed
 * in an epoll set whose owner (the session's thread, or the caller's loop) reads what comes unasked. A caller
 * disarms it for the time of its call, so that its replies wake nobody else and an idle thread sleeps without a
 * timer. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct conn_call;

struct conn {
    int socket;
    int epoll; /* socket while armed, and wake */
    int wake;  /* eventfd: an event came while a caller was reading, or the thread shall stop */
    pthread_mutex_t send_mutex;
    pthread_mutex_t mutex; /* guards what follows */
    struct conn_call *calls;
    unsigned callers;
    uint32_t serial;
    bool reading;
    bool ending; /* end of file was seen once: what is still queued is read before giving up */
    _Atomic bool dead;
    int goodbye;          /* the error of GOODBYE, 0 if none came */
    char reason[512];     /* why it is dead */
    _Atomic bool reclaim; /* a RECLAIM came that nobody has acted on; which slots, the words tell */
    /* Without a thread, whoever reads acts on RECLAIM at once: it may be what its own LOCK waits for. */
    void (*on_reclaim)(void *context);
    void *context;
};

/* File descriptors of one reply, in order, over all its packets. */
struct conn_fds {
    int *fds; /* -1 where taken */
    unsigned n, room;
};
int conn_take_fd(struct conn_fds *fds, unsigned i); /* -1 if there is none */
void conn_fds_clear(struct conn_fds *fds);
#define CONN_FDS __attribute__((cleanup(conn_fds_clear))) struct conn_fds

/* Takes the connected socket, also on failure. `peer` names the daemon in sentences. */
int conn_init(struct conn *conn, int socket, const char *peer);
void conn_clear(struct conn *conn);
/* In a forked child: gives up the copies of the descriptors and nothing else. */
void conn_forget(struct conn *conn);

/* Sends a request and waits for its reply. Sizes come from the opcode's row; fds are borrowed; `out` may be NULL
 * where the row has no fds out. On failure the error is set and *reply is zero, except when the reply's fds could
 * not be received: then it is filled, so that the caller can give back what it was granted. */
int conn_call(struct conn *conn, uint32_t opcode, const void *request, void *reply, const int *fds, unsigned n_fds,
              struct conn_fds *out);
/* One-way. A dead connection is noticed by its reader. */
void conn_send(struct conn *conn, uint32_t opcode, const void *request);
/* Reads what is there, without blocking. */
void conn_dispatch(struct conn *conn);
void conn_wake(struct conn *conn);
/* Sets and returns HBM_E_DISCONNECTED with the reason. */
int conn_lost(struct conn *conn);
