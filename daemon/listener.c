/* The [listener]s of the configuration: client sockets more, each in a directory of its own, each with its own
 * devices and limits. What is wrong with one of them is its users' misfortune alone: whoever has its directory
 * mounted could otherwise keep the daemon from starting. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/listener.h"
#include "daemon/server.h"

static bool is_set(const struct config_listener *config, enum config_listener_key key)
{
    return strcmp(config->source[key], "default") != 0;
}

static void limit(const struct server *server, const struct config_listener *config, struct listener *listener)
{
    const struct config *main = &server->config;

#define THING(NAME, name, words)                                                                                   \
    listener->each[ACCOUNT_##NAME] =                                                                               \
        is_set(config, LISTENER_account_##name) ? config->account_##name : main->account_##name;                   \
    listener->total[ACCOUNT_##NAME] = config->total_##name;
#include "daemon/core/thing.def"
#undef THING
}

void listeners_limit(struct server *server)
{
    for (struct client_socket *each = server->sockets; each; each = each->next)
        limit(server, each->config, listener_of(server->core, listener_id(each->config->name)));
}

int listeners_add(struct server *server)
{
    struct client_socket **end = &server->sockets;
    char why[256];

    for (const struct config_listener *config = server->config.listeners; config; config = config->next) {
        struct client_socket *socket = calloc(1, sizeof(*socket));
        if (!socket || !listener_add(server->core, config->name)) {
            free(socket);
            snprintf(why, sizeof(why),
                     "there is no memory for listener %s, or its name has the number of another's: rename it",
                     config->name);
            server_fail(server, why);
            return -1;
        }
        socket->config = config;
        socket->dir_fd = -1;
        *end = socket;
        end = &socket->next;
    }
    listeners_limit(server);
    return 0;
}

/* One that is not there may have failed, or come with the next driver: the listener has the others. */
static void choose_devices(struct server *server, const struct config_listener *config, struct listener *listener)
{
    char list[CONFIG_TEXT_MAX], *rest = list, *word;

    if (!*config->devices)
        return;
    snprintf(list, sizeof(list), "%s", config->devices);
    listener->devices = 0;
    while ((word = strsep(&rest, ", "))) {
        const struct device *device = *word ? device_by_text(server->core, word) : NULL;
        if (device && device->index < 64)
            listener->devices |= UINT64_C(1) << device->index;
        else if (*word)
            log_warning("%s: there is no device %s for listener %s", config->source[LISTENER_devices], word,
                        config->name);
    }
}

/* Passed by the service manager, or made. -1 with a sentence in why. */
static int open_socket(struct server *server, struct client_socket *socket, char *why)
{
    const struct config_listener *config = socket->config;
    int fd = passed_socket(&server->passed, config->directory, CLIENT_SOCKET, SOCK_SEQPACKET);

    if (fd >= 0)
        return fd;
    socket->dir_fd = socket_dir_open(config->directory, server->dir_fd, why);
    if (socket->dir_fd < 0)
        return -1;
    fd = socket_listen(socket->dir_fd, CLIENT_SOCKET, SOCK_SEQPACKET, config->socket_group, config->socket_mode,
                       why);
    socket->made = fd >= 0;
    return fd;
}

static void serve(struct server *server, struct client_socket *socket, const struct wire_world *main_world)
{
    struct wire_world world = *main_world;
    char why[256] = "";
    _cleanup_fd_ int fd = open_socket(server, socket, why);

    world.listener = listener_id(socket->config->name);
    int error = fd < 0 ? 0 : wire_server_new(&server->loop, server->core, &world, fd, &socket->wire);
    if (error)
        snprintf(why, sizeof(why), "%s", strerror(-error));
    if (socket->wire) {
        fd = -1; /* consume fd */
        listener_of(server->core, world.listener)->serves = true;
        log_info("listener %s serves in %s", socket->config->name, socket->config->directory);
        return;
    }
    log_write(LOG_LEVEL_ERROR, MESSAGE_LISTENER_FAILED, "listener %s is not served: %s", socket->config->name, why);
    event_emit(&server->core->events, "listener.failed", 0, socket->config->name, 0, UINT32_MAX, 0, "%s", why);
}

void listeners_serve(struct server *server, const struct wire_world *main_world)
{
    for (struct client_socket *each = server->sockets; each; each = each->next) {
        choose_devices(server, each->config, listener_of(server->core, listener_id(each->config->name)));
        serve(server, each, main_world);
    }
}

void listeners_stop_listening(struct server *server)
{
    for (struct client_socket *each = server->sockets; each; each = each->next)
        if (each->wire)
            wire_server_stop_listening(each->wire);
}

void listeners_shut_down(struct server *server)
{
    for (struct client_socket *each = server->sockets; each; each = each->next) {
        each->wire = wire_server_free(each->wire);
        if (each->made)
            unlinkat(each->dir_fd, CLIENT_SOCKET, 0);
    }
}

void listeners_free(struct server *server)
{
    while (server->sockets) {
        struct client_socket *first = server->sockets;
        server->sockets = first->next;
        fd_close(first->dir_fd);
        free(first);
    }
}
