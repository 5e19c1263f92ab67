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

int passed_take(struct passed *passed)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    *passed = (struct passed){0};
    if (n <= 0)
        return n;
    passed->kept = calloc((size_t)n, sizeof(*passed->kept));
    passed->sockets = calloc((size_t)n, sizeof(*passed->sockets));
    bool room = passed->kept && passed->sockets;
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        if (room && sd_is_socket(fd, AF_UNIX, 0, 1) > 0) {
            fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
            passed->sockets[passed->n_sockets++] = fd;
        } else if (room) {
            struct kept_fd *kept = &passed->kept[passed->n_kept++];
            snprintf(kept->name, sizeof(kept->name), "%s", names[i]);
            kept->fd = fd;
        }
        free(names[i]);
    }
    free(names);
    return room ? 0 : -ENOMEM;
}

/* Directories are compared by what they are, not how they are written: /var/run is /run. */
static bool is_at(int fd, const struct stat *directory, const char *name)
{
    struct sockaddr_un address = {0};
    socklen_t size = sizeof(address) - 1;
    struct stat status;

    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return false;
    char *slash = strrchr(address.sun_path, '/');
    if (!slash || strcmp(slash + 1, name))
        return false;
    slash[slash == address.sun_path] = '\0';
    return stat(address.sun_path, &status) == 0 && status.st_dev == directory->st_dev &&
           status.st_ino == directory->st_ino;
}

int passed_socket(struct passed *passed, const char *directory, const char *name, int type)
{
    struct stat status;

    if (stat(directory, &status) < 0)
        return -1;
    for (size_t i = 0; i < passed->n_sockets; i++)
        if (passed->sockets[i] >= 0 && sd_is_socket(passed->sockets[i], AF_UNIX, type, 1) > 0 &&
            is_at(passed->sockets[i], &status, name))
            return TAKE_FD(passed->sockets[i]);
    return -1;
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
    for (size_t i = 0; i < passed->n_sockets; i++) {
        if (passed->sockets[i] >= 0)
            log_warning("a socket that was passed is in no directory of ours, and is closed");
        fd_close(passed->sockets[i]);
    }
    free(passed->kept);
    free(passed->sockets);
    *passed = (struct passed){0};
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

/* The socket is born 0600 by our umask, and opened to others afterwards. */
static void open_to(int dir_fd, const char *name, const char *group, unsigned mode)
{
    errno = 0;
    const struct group *entry = *group ? getgrnam(group) : NULL;

    if (*group && !entry) {
        mode &= ~070u;
        if (errno == ENOMEM || errno == EMFILE || errno == ENFILE || errno == EIO) /* all others: there is none */
            log_warning("%s is for uid %u only: group %s cannot be looked up (%s); restart hbmd to try again", name,
                        geteuid(), group, strerror(errno));
    }
    if ((entry && fchownat(dir_fd, name, (uid_t)-1, entry->gr_gid, AT_SYMLINK_NOFOLLOW) < 0) ||
        fchmodat(dir_fd, name, mode, 0) < 0)
        log_warning("%s is for uid %u only: it cannot be given to group %s (%s); run hbmd as root or as a member",
                    name, geteuid(), group, strerror(errno));
}

int socket_listen(int dir_fd, const char *name, int type, const char *group, unsigned mode, char *why)
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
    open_to(dir_fd, name, group, mode);
    if (listen(fd, 512) < 0) {
        snprintf(why, WHY_MAX, "cannot listen on %s: %s", name, strerror(errno));
        return -1;
    }
    return TAKE_FD(fd);
}
