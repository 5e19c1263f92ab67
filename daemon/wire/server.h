/* The wire server as its files share it. */
#pragma once

#include "daemon/core/call.h"
#include "daemon/wire/wire.h"

#define WIRE_UNCLOSED "what this user's clients sent does not close: its file systems or its sockets do not answer"

struct wire_server {
    struct list node; /* of all that there are */
    uv_loop_t *loop;
    struct core *core;
    struct wire_world world;
    int listen_fd, reserve_fd; /* the reserve is given up to refuse a connection when fds are out */
    struct list links;         /* struct link */
    struct list watches;       /* struct watch */
    struct list unread;        /* struct unread */
    struct timer unread_timer;
    unsigned n_links, n_unread;
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
/* Best effort: the last packet of a connection, if there is room for it. */
void wire_send_goodbye(int fd, int error, const char *why);
/* Logs what a client did wrong, at most once a second: its faults are not to fill the log. */
__attribute__((format(printf, 2, 3))) void wire_server_complain(struct wire_server *server, const char *format,
                                                                ...);
/* Of no link, of any server, more is charged for fds that have left its socket. */
void wire_servers_forget_read(void);
/* A link was doomed. */
void wire_server_reap_soon(struct wire_server *server);
/* Takes the fd. The client hears of the end now, however long what lies unread in its socket takes to close. */
void wire_close_socket(struct wire_server *server, struct owner owner, int fd);
/* So much of what this user's clients sent is still being closed that they may send no more. */
bool wire_server_has_unclosed(const struct wire_server *server, const struct principal *who);
