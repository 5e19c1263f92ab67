/* Leases as clients get them: how to map, with the fd. */
#pragma once

#include "daemon/wire/pending.h"

/* The fd of what the mapping maps, for its access: it stays the extent's. -1 if none belongs (cuda-ipc, away). 0 or
 * -errno. */
int grant_fd(const struct mapping *mapping, int *fd);
/* Answers with a struct wire_grant, or with the model's table and fds. On failure the lease is ended and the client
 * told. */
void grant_buffer(struct pending *pending, struct lease *lease);
void grant_model(struct pending *pending, struct lease *lease);
