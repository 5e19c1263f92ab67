/* The operators' listening socket and its connections. */
#pragma once

#include "daemon/rpc/rpc.h"

#define CONNECTIONS_MAX 64
#define CONNECTIONS_RESERVED 16 /* of them, for administrators */

struct connection;

struct rpc_server {
    uv_loop_t *loop;
    struct core *core;
    struct rpc_world world;
    int listen_fd;
    uv_poll_t poll;
    uv_timer_t pause;
    uv_idle_t turn; /* runs while there are turns to take */
    struct list turns; /* struct connection: who has work that needs no I/O, in the order in which it is its turn */
    unsigned handles; /* open libuv handles of the server's own */
    struct list connections;
    unsigned n_connections;
};

/* The connection has something to do: it gets its turn, once. */
void rpc_server_take_turn(struct connection *connection);
