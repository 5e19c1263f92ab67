#include "daemon/rpc/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/rpc/connection.h"
#include "daemon/rpc/peer.h"
#include "daemon/rpc/request.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define ACCEPTS_A_TURN 16
#define PAUSE_MS 100
#define TURN_NS (5 * 1000000ull) /* of a turn of the loop, for all operators together */

static void on_listen(uv_poll_t *poll, int status, int events);

/* Reading would close them here, and that can take for ever. It holds for the connections too. Linux before 6.16 takes
 * whatever is sent. */
static void take_no_fds(int socket)
{
    (void)setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
}

/* A line to someone who gets no connection. The socket is new, so it has room for it. */
static void turn_away(int fd, int error, const char *detail)
{
    struct writer line = {0};

    write_open(&line, NULL, '{');
    write_string(&line, "jsonrpc", "2.0");
    write_null(&line, "id");
    write_error(&line, error, detail, 0);
    write_close(&line, '}');
    write_bytes(&line, "\n", 1);
    if (line.state == WRITER_FINE && send(fd, line.bytes, line.size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("an operator that was turned away did not hear why: %s", strerror(errno));
    writer_clear(&line);
}

/* One user's connections never fill the house. */
static bool has_too_many(const struct rpc_server *server, const struct principal *who)
{
    unsigned n = 0;

    list_for_each (node, &server->connections)
        n += owner_equal(list_entry(node, struct connection, node)->who.owner, who->owner);
    return !who->admin && n >= (CONNECTIONS_MAX - CONNECTIONS_RESERVED) / 2;
}

static void admit(struct rpc_server *server, int new_fd)
{
    _cleanup_fd_ int fd = new_fd;
    struct principal who;
    int error = peer_identify(fd, &server->world, &who);

    if (error < 0) {
        log_warning("an operator's credentials cannot be read: %s", strerror(-error));
        return;
    }
    unsigned limit = who.admin ? CONNECTIONS_MAX : CONNECTIONS_MAX - CONNECTIONS_RESERVED;
    if (server->n_connections >= limit || has_too_many(server, &who)) {
        char detail[HBM_DETAIL_MAX];
        snprintf(detail, sizeof(detail), "%u operators are connected; one user may be half of all that can be",
                 server->n_connections);
        turn_away(fd, HBM_E_LIMIT, detail);
        return;
    }
    error = connection_new(server, fd, who);
    if (error < 0)
        log_warning("an operator cannot be served: %s", strerror(-error));
    else
        fd = -1; /* consume fd */
}

static void on_pause_over(uv_timer_t *pause)
{
    struct rpc_server *server = pause->data;

    if (uv_poll_start(&server->poll, UV_READABLE, on_listen) < 0)
        uv_timer_start(pause, on_pause_over, PAUSE_MS, 0);
}

/* Also when clients hold all fds but the reserve. */
static int accept_one(struct rpc_server *server)
{
    fd_reserve_lift(true);
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    fd_reserve_lift(false);
    return fd;
}

static void on_listen(uv_poll_t *poll, int status, int events)
{
    struct rpc_server *server = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept_one(server);
        if (fd >= 0) {
            admit(server, fd);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno == EAGAIN)
            return;
        /* Out of fds or memory: the queue stays readable, so look away until something may have come free. */
        log_warning("no operator can be accepted: %s", strerror(errno));
        uv_poll_stop(&server->poll);
        uv_timer_start(&server->pause, on_pause_over, PAUSE_MS, 0);
        return;
    }
}

/* One request a connection, and whose turn did not come goes first in the next: what lies in clients' sockets is looked
 * at in between. */
static void on_turn(uv_idle_t *turn)
{
    struct rpc_server *server = turn->data;
    uint64_t end = uv_hrtime() + TURN_NS;
    struct list *node;

    for (unsigned n = server->n_connections; n && (node = list_first(&server->turns)); n--) {
        list_unlink(node);
        connection_take_turn(list_entry(node, struct connection, turn));
        if (uv_hrtime() >= end)
            break;
    }
    if (list_empty(&server->turns))
        uv_idle_stop(turn);
}

void rpc_server_take_turn(struct connection *connection)
{
    struct rpc_server *server = connection->server;

    if (list_empty(&connection->turn))
        list_append(&server->turns, &connection->turn);
    uv_idle_start(&server->turn, on_turn);
}

static void on_closed(uv_handle_t *handle)
{
    struct rpc_server *server = handle->data;

    if (!--server->handles)
        free(server);
}

int rpc_server_new(uv_loop_t *loop, struct core *core, const struct rpc_world *world, int listen_fd,
                   struct rpc_server **ret)
{
    struct rpc_server *server = calloc(1, sizeof(*server));

    if (!server)
        return -ENOMEM;
    int error = uv_poll_init(loop, &server->poll, listen_fd);
    if (error < 0) {
        free(server);
        return error;
    }
    uv_timer_init(loop, &server->pause);
    uv_idle_init(loop, &server->turn);
    server->handles = 3;
    server->poll.data = server->pause.data = server->turn.data = server;
    server->loop = loop;
    server->core = core;
    server->world = *world;
    server->listen_fd = listen_fd; /* consume fd */
    take_no_fds(listen_fd);
    list_init(&server->connections);
    list_init(&server->turns);
    on_pause_over(&server->pause);
    *ret = server;
    return 0;
}

struct rpc_server *rpc_server_free(struct rpc_server *server)
{
    if (!server)
        return NULL;
    while (!list_empty(&server->connections))
        connection_close(list_entry(list_first(&server->connections), struct connection, node));
    uv_close((uv_handle_t *)&server->poll, on_closed);
    uv_close((uv_handle_t *)&server->pause, on_closed);
    uv_close((uv_handle_t *)&server->turn, on_closed);
    server->listen_fd = fd_close(server->listen_fd);
    return NULL;
}
