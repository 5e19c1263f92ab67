#include "daemon/rpc/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"

/* 1 if gid is among the peer's supplementary groups, 0 if not, -errno. */
static int has_group(int fd, gid_t gid)
{
    socklen_t size = 0;
    _cleanup_free_ gid_t *groups = NULL;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0)
        return 0;
    if (errno != ERANGE)
        return errno == ENODATA ? 0 : -errno;
    groups = malloc(size);
    if (!groups)
        return -ENOMEM;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0)
        return -errno;
    for (socklen_t i = 0; i < size / sizeof(*groups); i++)
        if (groups[i] == gid)
            return 1;
    return 0;
}

int peer_identify(int fd, const struct rpc_world *world, struct principal *ret)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -errno;
    *ret = (struct principal){.owner = {.listener = 0, .uid = peer.uid}};
    ret->admin = peer.uid == 0 || peer.uid == world->daemon_uid;
    if (ret->admin || world->admin_gid == (gid_t)-1)
        return 0;
    int member = peer.gid == world->admin_gid ? 1 : has_group(fd, world->admin_gid);
    if (member < 0)
        return member;
    ret->admin = member;
    return 0;
}
