/* A client socket: accepts libhbm's connections, refuses what is malformed, asks core, answers. */
#pragma once

#include <sys/types.h>
#include <uv.h>

#include "daemon/core/core.h"

struct wire_server;

struct wire_world {
    uid_t daemon_uid;
    gid_t admin_gid;    /* (gid_t)-1: there is no such group */
    uint32_t max_links; /* connections at once, greeted or not */
    uint32_t listener;  /* whose clients they are; administrators come by the main one, 0, alone */
};

/* Takes listen_fd (SOCK_SEQPACKET, listening, non-blocking) on success. 0 or -errno. */
int wire_server_new(uv_loop_t *loop, struct core *core, const struct wire_world *world, int listen_fd,
                    struct wire_server **ret);
/* Sessions that came back from the ledger: hears of their processes' ends. 0 or -errno. */
int wire_server_watch_detached(struct wire_server *server);
/* Grants nothing new: the listening socket closes, connections stay. */
void wire_server_stop_listening(struct wire_server *server);
/* Says goodbye and closes every connection; the sessions stay in the ledger. The memory goes with the loop's close
 * callbacks, after which core may go. Returns NULL. */
struct wire_server *wire_server_free(struct wire_server *server);
