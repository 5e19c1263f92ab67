/* A session: connection, residency words, mappings, and everything that was handed out under it.
 *
 * Order of locks: session->mutex, then those inside conn (but conn_come_back's settle takes none); no thread waits
 * for the daemon with it held. What takes long (mapping, fences, a LOCK round trip) is guarded by mapping->busy
 * instead (mapping.h). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/hbm.h"
#include "client/lib/conn.h"
#include "client/lib/util.h"
#include "proto/lockword.h"
#include "proto/messages.h"

struct mapping;
struct device_table;

/* What resume.c knows of the way back. One thread at a time does it. */
struct comeback {
    bool busy, missed; /* conn.mutex; missed: a thread found it busy, and went back to sleep */
    int socket; /* where RESUME was sent and is not answered yet: it is not given up, or the daemon would take its
                 * end for the session's. -1: none */
    uint32_t pause_ms;
    uint64_t next_ms; /* when to try again */
    uint64_t id;      /* the session's, as the daemon names it */
    uint8_t secret[32];
    char client[64];
    struct device_table *devices; /* that daemon's, being asked for; the session is back with the last of them */
    unsigned n_devices;           /* that it has told */
};

#define DEVICES_MAX 4096u

struct known_device {
    char uuid[HBM_UUID_MAX];
    bool is_cuda;
};

/* Never changes: another daemon may have other devices, or number them otherwise, and gets another table. */
struct device_table {
    struct device_table *older;
    unsigned n;
    struct known_device devices[];
};

struct hbm_session {
    struct conn conn;
    struct node all;    /* fork.c's list of sessions */
    _Atomic bool inert; /* this is a forked child's copy */
    char *path;         /* of the socket */
    int64_t server_uid; /* whom the daemon has to run as; -1: whom connect.c trusts by itself */
    struct device_table *_Atomic devices;
    bool has_thread;
    _Atomic bool closing;
    struct comeback comeback;
    pthread_t thread;

    _Atomic uint64_t *words;
    _Atomic uint64_t used[LOCKWORD_SLOTS / 64]; /* a bit a slot that has a mapping */
    /* When a slot's arena was last let go: an fd asked for before that may be of memory the arena has left since.
     */
    _Atomic uint64_t releases;
    _Atomic uint64_t last_release[LOCKWORD_SLOTS];

    pthread_mutex_t mutex; /* guards what follows, and `leases` and `busy` of every mapping */
    pthread_cond_t claims; /* a mapping is no longer busy */
    struct mapping *slots[LOCKWORD_SLOTS];
    struct node leases, models, ops;
    unsigned n_early; /* threads that wait for what was locked by a stream (early.c) */
};

/* 0, or the error set: NULL, or a forked child's copy. First line of every public call. */
int session_check(hbm_session *session);
/* Handles what has arrived, and looks for the daemon if it is away: without blocking on it. */
void session_dispatch(hbm_session *session);
/* Links one of the session's lists. What came in a life that is past is not: it was not presented, so it has ended.
 * True if it was linked. */
bool session_add(hbm_session *session, struct node *list, struct node *node, uint64_t life);
/* Unlinks, and says in which life: until it ends, the daemon counts what was listed. */
uint64_t session_remove(hbm_session *session, struct node *node);

/* The next slot at or after `slot` that has a mapping; LOCKWORD_SLOTS if there is none. */
static inline uint32_t session_next_slot(hbm_session *session, uint32_t slot)
{
    while (slot < LOCKWORD_SLOTS) {
        uint64_t rest = atomic_load_explicit(&session->used[slot / 64], memory_order_relaxed) >> (slot % 64);
        if (rest)
            return slot + (uint32_t)__builtin_ctzll(rest);
        slot = (slot / 64 + 1) * 64;
    }
    return slot;
}

#define for_each_slot(session, slot)                                                                               \
    for (uint32_t slot = session_next_slot(session, 0); slot < LOCKWORD_SLOTS;                                     \
         slot = session_next_slot(session, slot + 1))

/* devices.c */
struct device_table *devices_new(unsigned n);
void devices_note(struct device_table *table, unsigned index, const struct wire_device_reply *reply);
/* Takes the table: the session's from now on, or freed if that says the same. */
void devices_take(hbm_session *session, struct device_table *table);
int devices_learn(hbm_session *session, unsigned n);
void devices_free(hbm_session *session);

/* fork.c */
void fork_watch(hbm_session *session);
void fork_unwatch(hbm_session *session);

/* connect.c: a connected socket to a daemon whose uid may be trusted, or the error set. Fills session->path, which is
 * malloc'd, and server_uid. */
int connect_to_daemon(hbm_session *session, const struct hbm_options *options, int *ret);
/* The same by what was filled, and without waiting for room in its queue: the socket does not block. */
int connect_again(const hbm_session *session, int *ret);

/* resume.c: a step on the way back, without blocking; nothing if the connection is not down. */
void resume_step(hbm_session *session);
/* Steps until it is not down or the deadline is past (NULL: none): for sessions without a thread. */
void resume_wait(hbm_session *session, const struct timespec *deadline);

/* thread.c: the thread that reads what comes unasked. */
int thread_start(hbm_session *session);
void thread_stop(hbm_session *session);
