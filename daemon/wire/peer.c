#include "daemon/wire/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "daemon/base/cleanup.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; no libc of today has it */
#endif

static bool in_group(int socket, gid_t primary, gid_t group)
{
    gid_t none;
    socklen_t size = 0;

    if (group == (gid_t)-1)
        return false;
    if (primary == group)
        return true;
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, &none, &size) || errno != ERANGE)
        return false; /* it has none but its primary one, or the kernel does not say */
    _cleanup_free_ gid_t *groups = malloc(size);
    if (!groups || getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0)
        return false;
    for (size_t i = 0; i < size / sizeof(gid_t); i++)
        if (groups[i] == group)
            return true;
    return false;
}

static int peer_pidfd(int socket, pid_t pid)
{
    int pidfd;
    socklen_t size = sizeof(pidfd);

    if (!getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size))
        return pidfd;
    if (errno != ENOPROTOOPT)
        return -errno;
    if (pid <= 0)
        return -ESRCH;
    /* Before Linux 6.5. The peer was alive a moment ago: right after accept the number is still its own. */
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return pidfd < 0 ? -errno : pidfd;
}

bool wire_peer_identify(int socket, const struct wire_world *world, struct peer *peer, char why[HBM_DETAIL_MAX])
{
    struct ucred ids;
    socklen_t size = sizeof(ids);

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &ids, &size) < 0) {
        snprintf(why, HBM_DETAIL_MAX, "the kernel does not say who is calling: %s", strerror(errno));
        return false;
    }
    peer->pidfd = peer_pidfd(socket, ids.pid);
    if (peer->pidfd < 0) {
        snprintf(why, HBM_DETAIL_MAX, "there is no handle on the calling process: %s", strerror(-peer->pidfd));
        return false;
    }
    peer->pid = ids.pid;
    peer->who.owner = (struct owner){.listener = world->listener, .uid = ids.uid};
    peer->who.admin = !world->listener &&
                      (ids.uid == 0 || ids.uid == world->daemon_uid || in_group(socket, ids.gid, world->admin_gid));
    return true;
}
