/* Who is at the other end of a client socket, as the kernel says it. */
#pragma once

#include "daemon/core/call.h"
#include "daemon/wire/wire.h"

struct peer {
    struct principal who;
    int32_t pid; /* 0: in a PID namespace that ours cannot see */
    int pidfd;
};

/* The caller owns peer->pidfd. False with a sentence in why: the process is gone, or cannot be known. */
bool wire_peer_identify(int socket, const struct wire_world *world, struct peer *peer, char why[HBM_DETAIL_MAX]);
