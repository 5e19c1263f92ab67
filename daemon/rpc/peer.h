/* Who connected, by the kernel's word. */
#pragma once

#include "daemon/core/call.h"
#include "daemon/rpc/rpc.h"

/* Right after accept: the ids are those of connect(). 0 or -errno. */
int peer_identify(int fd, const struct rpc_world *world, struct principal *ret);
