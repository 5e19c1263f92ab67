/* The operators' socket: JSON-RPC 2.0, one object or batch a line, as proto/methods.def lists it. */
#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/core/core.h"

struct rpc_server;

/* What the methods say about the daemon that the core does not know. */
struct rpc_world {
    uid_t daemon_uid;
    gid_t admin_gid;     /* (gid_t)-1: no such group */
    uint64_t started_ms; /* by the core's clock */
    void *context;
    /* Calls row(to, ...) for every option in effect. */
    void (*each_option)(void *context,
                        void (*row)(void *to, const char *key, const char *value, const char *source), void *to);
};

/* Serves operators on a listening stream socket, from now on. Takes listen_fd on success. 0 or -errno. */
int rpc_server_new(uv_loop_t *loop, struct core *core, const struct rpc_world *world, int listen_fd,
                   struct rpc_server **ret);
/* Ends every connection; answers that are still awaited end unseen. Before core_free(); the loop must turn
 * afterwards so that handles can close. NULL is fine; returns NULL. */
struct rpc_server *rpc_server_free(struct rpc_server *server);
