/* Shared by conn.c, read.c (what comes by it) and call.c (what is asked by it). All with conn->mutex held. */
#pragma once

#include "client/lib/conn.h"
#include "proto/messages.h"

struct conn_call {
    struct conn_call *next;
    pthread_cond_t turn; /* done, or nobody reads */
    const struct wire_row *row;
    uint32_t serial;
    uint64_t life;
    const struct timespec *deadline; /* NULL: none */
    bool started; /* the reply's first packet came */
    bool done;
    int status; /* 0, the daemon's refusal, DISCONNECTED or CONN_CUT */
    void *reply;
    struct conn_fds fds;
    char detail[sizeof(((struct packet_refusal *)0)->detail)];
};

/* Reads one packet, or the end, with the mutex let go meanwhile. */
void conn_read_one(struct conn *conn);
/* True after a moment's wait if that was for want of memory in the kernel, which passes. */
bool conn_lacks_memory(int error);
void conn_hand_turn_on(struct conn *conn);
/* In the epoll set, or out of it. */
void conn_arm(struct conn *conn, bool on);
