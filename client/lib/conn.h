/* The connection to the daemon. Any thread may call; one reads at a time and hands replies to their serials.
 *
 * Leader-follower: a caller sends its request, then reads packets itself until its reply is there, unless another
 * thread is reading already; a reader that has its reply hands the turn on. While nobody calls, the socket is armed
 * in an epoll set whose owner (the session's thread, or the caller's loop) reads what comes unasked. A caller
 * disarms it for the time of its call, so that its replies wake nobody else and an idle thread sleeps without a
 * timer.
 *
 * A connection that is cut is DOWN until resume.c has put another in its place, or DEAD if there is none to be had.
 * Meanwhile calls wait in the door; those that were under way end, and their callers know which of them may be
 * asked again. `life` counts: what a reply brought belongs to the life that it came in. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct conn_call;

enum conn_state { CONN_UP, CONN_DOWN, CONN_DEAD };

struct conn {
    int socket; /* -1: none now */
    int epoll;  /* socket while armed, wake, timer, and what resume.c waits for */
    int wake;   /* eventfd: an event came while a caller was reading, or it was cut, or the thread shall stop */
    int timer;  /* timerfd: for resume.c */
    pthread_mutex_t send_mutex;
    pthread_mutex_t mutex;  /* guards what follows */
    pthread_cond_t changed; /* state, or nobody is inside any more */
    struct conn_call *calls;
    unsigned callers, senders;
    uint32_t serial;
    bool reading;
    bool ending; /* end of file was seen once: what is still queued is read before giving up */
    _Atomic enum conn_state state;
    _Atomic uint64_t life;       /* one more with each list of leases that a daemon is shown */
    bool presented;              /* DOWN: a list has been made for this life */
    bool may_return;             /* DOWN is not DEAD */
    uint32_t patience_ms;        /* how long calls wait in the door */
    int goodbye;                 /* the error of GOODBYE, 0 if none came */
    char peer[256], reason[512]; /* who it was with; why it is gone */
    _Atomic bool reclaim;        /* a RECLAIM came that nobody has acted on; which slots, the words tell */
    /* Without a thread, whoever reads acts on RECLAIM at once: it may be what its own LOCK waits for. */
    void (*on_reclaim)(void *context);
    /* Without a thread, who waits in the door does the work: until it is not DOWN, or the deadline (NULL: none). */
    void (*on_down)(void *context, const struct timespec *deadline);
    void *context;
};

/* File descriptors of one reply, in order, over all its packets. */
struct conn_fds {
    int *fds; /* -1 where taken */
    unsigned n, room;
    uint64_t life; /* of the connection that the reply came by; also set where the call failed */
};
int conn_take_fd(struct conn_fds *fds, unsigned i); /* -1 if there is none */
void conn_fds_clear(struct conn_fds *fds);
#define CONN_FDS __attribute__((cleanup(conn_fds_clear))) struct conn_fds

/* Takes the connected socket, also on failure. `peer` names the daemon in sentences. */
int conn_init(struct conn *conn, int socket, const char *peer);
void conn_clear(struct conn *conn);
/* In a forked child: gives up the copies of the descriptors and nothing else. */
void conn_forget(struct conn *conn);

/* ---- Calls (call.c). Sizes come from the opcode's row; fds are borrowed; `out` may be NULL where the row has no
 * fds out. On failure the error is set and *reply is zero, except when the reply's fds could not be received: then
 * it is filled, so that the caller can give back what it was granted. ---- */

/* Sends a request and waits for its reply; RETRY if the connection was cut in between. */
int conn_call(struct conn *conn, uint32_t opcode, const void *request, void *reply, const int *fds, unsigned n_fds,
              struct conn_fds *out);
/* The same, asked again until it is answered. timeout_ms: the request's own field, which gets what is left; or
 * NULL. */
int conn_call_again(struct conn *conn, uint32_t opcode, const void *request, uint32_t *timeout_ms, void *reply,
                    struct conn_fds *out);
/* For what ends with the life that it began in: CONN_OVER without a word to the daemon if that is past. CONN_CUT
 * instead of RETRY. */
enum { CONN_CUT = 1, CONN_OVER };
int conn_call_in(struct conn *conn, uint64_t life, uint32_t opcode, const void *request, void *reply);
/* The same, of which no more than so many ms are waited: TIMEOUT, whatever the daemon is about. */
int conn_call_until(struct conn *conn, uint64_t life, uint32_t opcode, const void *request, void *reply, uint64_t ms);
/* One-way; not sent while down. A dead connection is noticed by its reader. */
void conn_send(struct conn *conn, uint32_t opcode, const void *request);
/* 0 when it is up; DISCONNECTED when it is dead, or not back in time. */
int conn_wait_up(struct conn *conn);
/* Sets and returns HBM_E_DISCONNECTED with the reason. */
int conn_lost(struct conn *conn);
/* Sets and returns HBM_E_RETRY. */
int conn_retry(void);

/* ---- Reading (read.c) and coming back (conn.c) ---- */

/* Reads what is there, without blocking. */
void conn_dispatch(struct conn *conn);
void conn_wake(struct conn *conn);
/* False if a daemon may have come up since that reply, and read the residency words. */
bool conn_lives(struct conn *conn, uint64_t life);
/* From now on a cut is not the end. DISCONNECTED if it has ended already. */
int conn_make_lasting(struct conn *conn, uint32_t patience_ms);
/* DOWN becomes UP, with a blocking socket; before anyone may call, `settle` says what has to be said first, by
 * conn_settle. */
void conn_come_back(struct conn *conn, int socket, void (*settle)(void *context));
void conn_settle(struct conn *conn, uint32_t opcode, const void *request);
/* DOWN becomes DEAD, and UP does at the next cut. */
void conn_give_up(struct conn *conn, int error, const char *reason);
