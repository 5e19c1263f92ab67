#include "daemon/wire/watch.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/wire/link.h"

struct watch {
    struct list node; /* server->watches */
    struct wire_server *server;
    struct session *session;
    uv_poll_t poll;
};

static void freed(uv_handle_t *handle)
{
    struct watch *watch = handle->data;
    struct wire_server *server = watch->server;

    free(watch);
    wire_server_closed(server);
}

static void watch_close(struct watch *watch)
{
    watch->session->watch = NULL;
    watch->session->watch_end = NULL;
    list_unlink(&watch->node);
    uv_close((uv_handle_t *)&watch->poll, freed);
}

static void session_ends(struct session *session)
{
    watch_close(session->watch);
}

static void process_ends(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = poll->data;
    struct session *session = watch->session;
    struct core *core = session->core;
    uint64_t id = session->id;

    (void)status;
    (void)events;
    watch_close(watch);
    /* No hang-up comes while a forked child holds the socket; a child may not speak for the session. */
    if (session->link)
        link_close(session->link, "its process ended");
    session = session_get(core, id); /* one that had said BYE is gone by now */
    if (session)
        session_process_ended(session);
}

int watch_session(struct wire_server *server, struct session *session)
{
    struct watch *watch = calloc(1, sizeof(*watch));

    if (!watch)
        return -ENOMEM;
    int error = uv_poll_init(server->loop, &watch->poll, session->pidfd);
    if (error) {
        free(watch);
        return error;
    }
    wire_server_opened(server);
    watch->server = server;
    watch->session = session;
    watch->poll.data = watch;
    list_append(&server->watches, &watch->node);
    session->watch = watch;
    session->watch_end = session_ends;
    uv_poll_start(&watch->poll, UV_READABLE, process_ends);
    if (session->core->env.find_origin)
        session->core->env.find_origin(session->core->env.context, session->id, session->pid);
    return 0;
}

void watch_clear(struct wire_server *server)
{
    while (!list_empty(&server->watches))
        watch_close(list_entry(list_first(&server->watches), struct watch, node));
}
