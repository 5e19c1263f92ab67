/* The sockets open: everything behind them is there. */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/server.h"

#define LINKS_BESIDE_SESSIONS 64 /* connections that are refused with a reason, or say goodbye */

static gid_t group_id(const char *name)
{
    const struct group *group = *name ? getgrnam(name) : NULL;

    return group ? group->gr_gid : (gid_t)-1;
}

static int listening_socket(struct server *server, const char *name, int type, bool *made)
{
    char why[256];

    int fd = passed_socket(&server->passed, server->runtime_dir, name, type);
    if (fd >= 0)
        return fd;
    const char *group = server->config.socket_group;
    fd = socket_listen(server->dir_fd, name, type, group, *group ? 0660 : 0600, why);
    if (fd < 0)
        server_fail(server, why);
    *made = fd >= 0;
    return fd;
}

static int serve_clients(struct server *server, gid_t admin_gid)
{
    uint32_t sessions = server->config.max_sessions;
    struct wire_world world = {
        .daemon_uid = geteuid(),
        .admin_gid = admin_gid,
        .max_links = sessions && sessions < UINT32_MAX / 2 ? sessions + LINKS_BESIDE_SESSIONS : UINT32_MAX,
    };
    _cleanup_fd_ int fd = listening_socket(server, CLIENT_SOCKET, SOCK_SEQPACKET, &server->made_client_socket);

    if (fd < 0)
        return -EBADF;
    int error = wire_server_new(&server->loop, server->core, &world, fd, &server->wire);
    if (error)
        return error;
    fd = -1; /* consume fd */
    listeners_serve(server, &world);
    return wire_server_watch_detached(server->wire);
}

static int serve_operators(struct server *server, gid_t admin_gid)
{
    struct rpc_world world = {
        .daemon_uid = geteuid(),
        .admin_gid = admin_gid,
        .started_ms = server->started_ms,
        .context = server,
        .each_option = server_each_option,
    };
    _cleanup_fd_ int fd = listening_socket(server, OPERATOR_SOCKET, SOCK_STREAM, &server->made_operator_socket);

    if (fd < 0)
        return -EBADF;
    int error = rpc_server_new(&server->loop, server->core, &world, fd, &server->rpc);
    if (!error)
        fd = -1; /* consume fd */
    return error;
}

void server_say_ready(struct server *server, const char *remark)
{
    char status[96 + DIR_PATH_MAX];

    snprintf(status, sizeof(status), "serving %u device%s in %s%s", server->core->n_devices,
             server->core->n_devices == 1 ? "" : "s", server->runtime_dir, remark);
    notify_ready(status);
}

void server_listen(struct server *server)
{
    gid_t admin_gid = group_id(server->config.admin_group);

    if (server->stopping)
        return;
    int error = serve_operators(server, admin_gid);
    if (!error)
        error = serve_clients(server, admin_gid);
    if (error && !server->failed)
        server_fail(server, strerror(-error));
    if (error)
        return;
    passed_clear(&server->passed);
    server->listening = true;
    log_info("hbmd %s serves %u device%s in %s", HBM_VERSION, server->core->n_devices,
             server->core->n_devices == 1 ? "" : "s", server->runtime_dir);
    server_say_ready(server, "");
}
