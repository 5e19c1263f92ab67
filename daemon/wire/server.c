#include "daemon/wire/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/core/sent.h"
#include "daemon/wire/link.h"
#include "daemon/wire/queue.h"
#include "daemon/wire/unread.h"
#include "daemon/wire/watch.h"

#define ACCEPTS_A_WAKEUP 16
#define COMPLAINT_MS 1000

static struct list servers = LIST_INIT(servers);

void wire_servers_forget_read(void)
{
    list_for_each (node, &servers) {
        struct wire_server *server = list_entry(node, struct wire_server, node);
        list_for_each (inner, &server->links)
            queue_forget_if_read(list_entry(inner, struct link, node));
        unread_reap(server);
    }
}

static int open_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void wire_server_complain(struct wire_server *server, const char *format, ...)
{
    uint64_t now = core_now(server->core);
    char line[HBM_DETAIL_MAX + 128];
    va_list arguments;

    if (server->said_ms && now - server->said_ms < COMPLAINT_MS) {
        server->unsaid++;
        return;
    }
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (server->unsaid)
        log_warning("%s (and %u more like it were not logged)", line, server->unsaid);
    else
        log_warning("%s", line);
    server->said_ms = now;
    server->unsaid = 0;
}

void wire_send_goodbye(int fd, int error, const char *why)
{
    struct packet_header header = {.opcode = WIRE_GOODBYE};
    struct wire_goodbye_request goodbye = {.error = error};

    snprintf(goodbye.detail, sizeof(goodbye.detail), "%s", why);
    (void)packet_send(fd, &header, &goodbye, sizeof(goodbye), NULL, 0);
}

/* A connection that cannot be served hears why. */
static void refuse(struct wire_server *server, int fd, int error, const char *why)
{
    wire_send_goodbye(fd, error, why);
    wire_server_complain(server, "a connection is refused: %s", why);
}

/* One user's connections never fill the house: the other half is for the others. */
static bool has_too_many(const struct wire_server *server, const struct principal *who)
{
    unsigned n = 0;

    list_for_each (node, &server->links)
        n += owner_equal(list_entry(node, struct link, node)->peer.who.owner, who->owner);
    n += unread_of(server, who->owner);
    return !who->admin && n >= (server->world.max_links + 1) / 2;
}

bool wire_server_has_unclosed(const struct wire_server *server, const struct principal *who)
{
    return sent_is_stuck(server->core, who->owner);
}

void wire_close_socket(struct wire_server *server, struct owner owner, int fd)
{
    shutdown(fd, SHUT_RDWR);
    sent_close(server->core, owner, fd);
}

static void take(struct wire_server *server, int fd)
{
    char why[HBM_DETAIL_MAX];
    struct peer peer;

    if (!wire_peer_identify(fd, &server->world, &peer, why)) {
        refuse(server, fd, HBM_E_DENIED, why);
        wire_close_socket(server, owner_shared(server->world.listener), fd); /* a stranger's */
        return;
    }
    if (server->core->draining)
        refuse(server, fd, HBM_E_SHUTTING_DOWN, "the daemon is stopping");
    else if (server->n_links + server->n_unread >= server->world.max_links)
        refuse(server, fd, HBM_E_LIMIT, "all connections are in use; raise max_sessions in hbmd.conf");
    else if (has_too_many(server, &peer.who))
        refuse(server, fd, HBM_E_LIMIT, "this user holds half of all connections; raise max_sessions in hbmd.conf");
    else if (wire_server_has_unclosed(server, &peer.who))
        refuse(server, fd, HBM_E_LIMIT, WIRE_UNCLOSED);
    else if (link_new(server, fd, &peer))
        fd = -1; /* consume fd */
    else
        refuse(server, fd, HBM_E_NO_MEMORY, "the daemon has no memory for a connection");
    if (fd >= 0)
        wire_close_socket(server, peer.who.owner, fd);
    fd_close(peer.pidfd);
}

/* Without a free fd the caller would wait in the backlog, and the loop spin: the reserve lets it be told. */
static void take_on_reserve(struct wire_server *server)
{
    server->reserve_fd = fd_close(server->reserve_fd);
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        refuse(server, fd, HBM_E_LIMIT, FD_RAN_OUT);
    fd_close(fd);
    server->reserve_fd = open_reserve();
}

static void on_connect(uv_poll_t *poll, int status, int events)
{
    struct wire_server *server = poll->data;

    (void)status;
    (void)events;
    if (server->reserve_fd < 0)
        server->reserve_fd = open_reserve();
    for (unsigned i = 0; i < ACCEPTS_A_WAKEUP; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            take(server, fd);
        else if (fd_ran_out(errno))
            take_on_reserve(server);
        else if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

static void reap(uv_timer_t *timer)
{
    struct wire_server *server = timer->data;

    /* Closing one may doom others (core tells the waiters), but only a doomed one is closed here. */
    list_for_each_safe (node, &server->links) {
        struct link *link = list_entry(node, struct link, node);
        if (link->doomed)
            link_close(link, link->doom_reason);
    }
}

void wire_server_reap_soon(struct wire_server *server)
{
    if (!server->stopped)
        uv_timer_start(&server->reaper, reap, 0, 0);
}

void wire_server_opened(struct wire_server *server)
{
    server->open_handles++;
}

void wire_server_closed(struct wire_server *server)
{
    if (--server->open_handles == 0)
        free(server);
}

static void handle_closed(uv_handle_t *handle)
{
    wire_server_closed(handle->data);
}

int wire_server_new(uv_loop_t *loop, struct core *core, const struct wire_world *world, int listen_fd,
                    struct wire_server **ret)
{
    struct wire_server *server = calloc(1, sizeof(*server));

    if (!server)
        return -ENOMEM;
    server->loop = loop;
    server->core = core;
    server->world = *world;
    list_init(&server->links);
    list_init(&server->watches);
    list_init(&server->unread);
    server->unread_timer.fire = unread_tick;
    list_init(&server->unread_timer.node);
    int error = uv_poll_init(loop, &server->poll, listen_fd);
    if (error) {
        free(server);
        return error;
    }
    list_append(&servers, &server->node);
    uv_timer_init(loop, &server->reaper);
    server->poll.data = server->reaper.data = server;
    server->open_handles = 2;
    server->listen_fd = listen_fd;
    server->reserve_fd = open_reserve();
    uv_poll_start(&server->poll, UV_READABLE, on_connect);
    *ret = server;
    return 0;
}

int wire_server_watch_detached(struct wire_server *server)
{
    list_for_each (node, &server->core->sessions) {
        struct session *session = list_entry(node, struct session, node);
        if (session->watch || session->pidfd < 0)
            continue;
        int error = watch_session(server, session);
        if (error)
            return error;
    }
    return 0;
}

void wire_server_stop_listening(struct wire_server *server)
{
    if (server->listen_fd < 0)
        return;
    uv_close((uv_handle_t *)&server->poll, handle_closed);
    server->listen_fd = fd_close(server->listen_fd);
}

struct wire_server *wire_server_free(struct wire_server *server)
{
    if (!server)
        return NULL;
    server->stopped = true;
    list_unlink(&server->node);
    wire_server_stop_listening(server);
    while (!list_empty(&server->links))
        link_shut_down(list_entry(list_first(&server->links), struct link, node));
    unread_clear(server);
    watch_clear(server);
    server->reserve_fd = fd_close(server->reserve_fd);
    uv_close((uv_handle_t *)&server->reaper, handle_closed);
    return NULL;
}
