/* The two listening sockets: passed by the service manager, or bound in the runtime directory. */
#pragma once

#include <stdbool.h>

#include "daemon/core/ledger.h"

#define CLIENT_SOCKET "hbmd.sock"
#define OPERATOR_SOCKET "control.sock"

/* What the service manager passed: our sockets, and fds that it kept for us. */
struct passed {
    int client_fd, operator_fd; /* -1: not passed */
    struct kept_fd *kept;
    size_t n_kept;
};

/* Takes LISTEN_FDS out of the environment. 0 or -errno. */
int passed_take(struct passed *passed);
/* The kept fd of that name, the caller's from now on; -1: there is none. */
int passed_take_fd(struct passed *passed, const char *name);
/* Closes what nobody took. */
void passed_clear(struct passed *passed);

/* A socket of the type (SOCK_SEQPACKET or SOCK_STREAM), listening under name in the directory, for the group
 * (created 0600 where there is no such group). The directory must be locked: what an earlier daemon left is
 * replaced. -1 with a sentence in why (256 bytes). */
int socket_listen(int dir_fd, const char *name, int type, const char *group, char *why);
