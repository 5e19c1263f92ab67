/* From options to a connected socket whose other end may be trusted with this process's memory. */
#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/lib/error.h"
#include "client/lib/session.h"

static int find_path(const struct hbm_options *options, char **path)
{
    const char *dir = options->runtime_dir ? options->runtime_dir : secure_getenv("HBM_RUNTIME_DIR");
    const char *user = secure_getenv("XDG_RUNTIME_DIR");
    int n;

    if (options->socket)
        n = asprintf(path, "%s", options->socket);
    else if (dir && *dir)
        n = asprintf(path, "%s/hbmd.sock", dir);
    else if (access("/run/hbmd", F_OK) == 0)
        n = asprintf(path, "/run/hbmd/hbmd.sock");
    else if (user && *user)
        n = asprintf(path, "%s/hbmd/hbmd.sock", user);
    else
        return set_error(HBM_E_NO_DAEMON, "there is no /run/hbmd, and XDG_RUNTIME_DIR is not set");
    if (n < 0) {
        *path = NULL;
        return set_system_error("malloc", ENOMEM);
    }
    return 0;
}

/* The socket's group if it can be seen, else that of its directory: whose members may pass. */
static int set_denied(const char *path, const char *dir)
{
    struct group group, *found = NULL;
    struct stat status;
    char room[1024];

    if (stat(path, &status) < 0 && stat(dir, &status) < 0)
        return set_error(HBM_E_DENIED, "%s cannot be reached by this user", path);
    getgrgid_r(status.st_gid, &group, room, sizeof(room), &found);
    if (found)
        return set_error(HBM_E_DENIED, "%s is for members of group %s", path, found->gr_name);
    return set_error(HBM_E_DENIED, "%s is for members of group %u", path, status.st_gid);
}

/* The option, HBM_SERVER_UID, or neither. */
static int find_server_uid(const struct hbm_options *options, int64_t *uid)
{
    const char *text = secure_getenv("HBM_SERVER_UID");
    char *end;

    *uid = options->server_uid ? (int64_t)options->server_uid : -1;
    if (*uid >= 0 || !text || !*text)
        return 0;
    errno = 0;
    *uid = strtoll(text, &end, 10);
    if (errno || *end || *uid < 0 || *uid >= UINT32_MAX)
        return set_error(HBM_E_INVALID, "HBM_SERVER_UID is \"%.40s\", which is no user's number", text);
    return 0;
}

/* A planted socket could hand out memory that its maker reads. */
static int check_server(int fd, const char *path, const char *dir, int64_t wanted)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    struct stat status;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return set_system_error("SO_PEERCRED", errno);
    if (wanted >= 0 && peer.uid != wanted)
        return set_error(HBM_E_DENIED, "%s is served by uid %u, and HBM_SERVER_UID or server_uid wants %u", path,
                         peer.uid, (unsigned)wanted);
    if (wanted >= 0 || peer.uid == 0 || peer.uid == geteuid() ||
        (stat(dir, &status) == 0 && peer.uid == status.st_uid))
        return 0;
    return set_error(HBM_E_DENIED,
                     "%s is served by uid %u, which is neither root, nor you, nor the directory's owner", path,
                     peer.uid);
}

static int connect_at(const char *path, int64_t server_uid, int flags, int *ret)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char dir[sizeof(address.sun_path)];

    if (strlen(path) >= sizeof(address.sun_path))
        return set_error(HBM_E_INVALID, "%s is longer than a socket's path can be (%zu bytes)", path,
                         sizeof(address.sun_path) - 1);
    strcpy(address.sun_path, path);
    strcpy(dir, path);
    const char *parent = dirname(dir);

    int CLOSE_FD fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        return set_system_error("socket", errno);
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        if (errno == EINTR)
            continue;
        if (errno == EACCES || errno == EPERM)
            return set_denied(path, parent);
        if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR || errno == EPROTOTYPE)
            return set_error(HBM_E_NO_DAEMON, "%s: %s", path, errno == ENOENT ? "not there" : "nobody listens");
        return set_system_error(path, errno);
    }
    int error = check_server(fd, path, parent, server_uid);
    if (error)
        return error;
    *ret = TAKE_FD(fd);
    return 0;
}

int connect_to_daemon(hbm_session *session, const struct hbm_options *options, int *ret)
{
    int error = find_path(options, &session->path);

    if (!error)
        error = find_server_uid(options, &session->server_uid);
    return error ? error : connect_at(session->path, session->server_uid, 0, ret);
}

int connect_again(const hbm_session *session, int *ret)
{
    return connect_at(session->path, session->server_uid, SOCK_NONBLOCK, ret);
}
