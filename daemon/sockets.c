#include "daemon/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"

#define WHY_MAX 256

static void take_socket(int *slot, int fd)
{
    fd_close(*slot);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *slot = fd;
}

int passed_take(struct passed *passed)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    *passed = (struct passed){.client_fd = -1, .operator_fd = -1};
    if (n <= 0)
        return n;
    passed->kept = calloc((size_t)n, sizeof(*passed->kept));
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        /* Both sockets of hbmd.socket bear its name: their types tell them apart. */
        if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) > 0)
            take_socket(&passed->client_fd, fd);
        else if (sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) > 0)
            take_socket(&passed->operator_fd, fd);
        else if (passed->kept) {
            struct kept_fd *kept = &passed->kept[passed->n_kept++];
            snprintf(kept->name, sizeof(kept->name), "%s", names[i]);
            kept->fd = fd;
        }
        free(names[i]);
    }
    free(names);
    return passed->kept ? 0 : -ENOMEM;
}

int passed_take_fd(struct passed *passed, const char *name)
{
    for (size_t i = 0; i < passed->n_kept; i++)
        if (passed->kept[i].fd >= 0 && !strcmp(passed->kept[i].name, name))
            return TAKE_FD(passed->kept[i].fd);
    return -1;
}

void passed_clear(struct passed *passed)
{
    for (size_t i = 0; i < passed->n_kept; i++)
        fd_close(passed->kept[i].fd);
    free(passed->kept);
    passed->kept = NULL;
    passed->n_kept = 0;
    passed->client_fd = fd_close(passed->client_fd);
    passed->operator_fd = fd_close(passed->operator_fd);
}

/* Only what an earlier hbmd of ours can have left is removed; anything else is somebody's trap or file. */
static bool make_way(int dir_fd, const char *name, char *why)
{
    struct stat status;

    if (fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return true;
        snprintf(why, WHY_MAX, "cannot look at %s in the runtime directory: %s", name, strerror(errno));
        return false;
    }
    if (!S_ISSOCK(status.st_mode) || status.st_uid != geteuid()) {
        snprintf(why, WHY_MAX,
                 "%s in the runtime directory is no socket of uid %u: see who put it there, and remove it", name,
                 geteuid());
        return false;
    }
    if (unlinkat(dir_fd, name, 0) == 0)
        return true;
    snprintf(why, WHY_MAX, "cannot remove the old %s: %s", name, strerror(errno));
    return false;
}

/* The socket is born 0600 by our umask, and opened to the group afterwards. */
static void open_to_group(int dir_fd, const char *name, const char *group)
{
    const struct group *entry = *group ? getgrnam(group) : NULL;

    if (!entry)
        return;
    if (fchownat(dir_fd, name, (uid_t)-1, entry->gr_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        fchmodat(dir_fd, name, 0660, 0) < 0)
        log_warning("%s is for uid %u only: it cannot be given to group %s (%s); run hbmd as root or as a member",
                    name, geteuid(), group, strerror(errno));
}

int socket_listen(int dir_fd, const char *name, int type, const char *group, char *why)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_fd_ int fd = -1;

    if (!make_way(dir_fd, name, why))
        return -1;
    /* By way of the directory's fd: the one that was checked and locked, whatever its path leads to now. */
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", dir_fd, name);
    fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0177);
    int bound = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&address, sizeof(address));
    umask(before);
    if (bound < 0) {
        snprintf(why, WHY_MAX, "cannot make %s in the runtime directory: %s", name, strerror(errno));
        return -1;
    }
    open_to_group(dir_fd, name, group);
    if (listen(fd, 512) < 0) {
        snprintf(why, WHY_MAX, "cannot listen on %s: %s", name, strerror(errno));
        return -1;
    }
    return TAKE_FD(fd);
}
