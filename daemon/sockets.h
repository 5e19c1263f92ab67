/* The listening sockets: passed by the service manager, or bound in their directories. */
#pragma once

#include <stdbool.h>

#include "daemon/core/ledger.h"

#define CLIENT_SOCKET "hbmd.sock"
#define OPERATOR_SOCKET "control.sock"

/* What the service manager passed: our sockets, and fds that it kept for us. */
struct passed {
    int *sockets; /* -1: taken */
    size_t n_sockets;
    struct kept_fd *kept;
    size_t n_kept;
};

/* Takes LISTEN_FDS out of the environment. 0 or -errno. */
int passed_take(struct passed *passed);
/* The kept fd of that name, the caller's from now on; -1: there is none. */
int passed_take_fd(struct passed *passed, const char *name);
/* The listening one of that type and name in the directory, now the caller's; -1: none was passed. The path alone
 * tells whose it is: one that no listener wants any more must not become the main one's. */
int passed_socket(struct passed *passed, const char *directory, const char *name, int type);
/* Closes what nobody took. */
void passed_clear(struct passed *passed);

/* A socket of the type (SOCK_SEQPACKET or SOCK_STREAM), listening under name in the directory, with that mode
 * and group (without the group's bits where there is no such group). The directory must be locked: what an earlier
 * daemon left is replaced. -1 with a sentence in why (256 bytes). */
int socket_listen(int dir_fd, const char *name, int type, const char *group, unsigned mode, char *why);
