/* The wire server as its files share it. */
#pragma once

#include "daemon/wire/wire.h"

struct wire_server {
    uv_loop_t *loop;
    struct core *core;
    struct wire_world world;
    int listen_fd, reserve_fd; /* the reserve is given up to refuse a connection when fds are out */
    struct list links;         /* struct link */
    struct list watches;       /* struct watch */
    unsigned n_links;
    uint64_t said_ms; /* when a client's fault was last logged */
    unsigned unsaid;  /* faults since then */
    bool stopped;     /* hears and says nothing more */
    uv_poll_t poll;
    uv_timer_t reaper; /* ends doomed links, outside of whatever doomed them */
    unsigned open_handles;
};

/* A handle of this server or of its links and watches was opened, or has closed. */
void wire_server_opened(struct wire_server *server);
void wire_server_closed(struct wire_server *server);
/* Logs what a client did wrong, at most once a second: its faults are not to fill the log. */
__attribute__((format(printf, 2, 3))) void wire_server_complain(struct wire_server *server, const char *format,
                                                                ...);
/* A link was doomed. */
void wire_server_reap_soon(struct wire_server *server);
