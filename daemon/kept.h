/* The supervisor's fd store: sd_notify datagrams in, LISTEN_FDS out. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct kept {
    char name[64];
    int fd;
};

struct keeper {
    int socket;
    char address[32]; /* for NOTIFY_SOCKET */
    struct kept *kept;
    unsigned n, room;
    bool ready; /* the child has said READY=1 */
};

/* 0 or -errno. */
int keeper_open(struct keeper *keeper);
/* Takes what the child has sent. Datagrams of other processes are dropped. */
void keeper_receive(struct keeper *keeper, pid_t child);
/* In the child, before exec: the kept fds as 3.., and the environment. 0 or -errno. */
int keeper_pass_on(const struct keeper *keeper);
