/* The operators' listening socket and its connections. */
#pragma once

#include "daemon/rpc/rpc.h"

#define CONNECTIONS_MAX 64
#define CONNECTIONS_RESERVED 16 /* of them, for administrators */

struct rpc_server {
    uv_loop_t *loop;
    struct core *core;
    struct rpc_world world;
    int listen_fd;
    uv_poll_t poll;
    uv_timer_t pause;
    unsigned handles; /* open libuv handles of the server's own */
    struct list connections;
    unsigned n_connections;
};
