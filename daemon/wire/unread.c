#include "daemon/wire/unread.h"

#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/sent.h"
#include "daemon/wire/queue.h"

#define LOOK_MS 200
#define PACKETS_A_LOOK 16

struct unread {
    struct list node; /* server->unread */
    struct owner owner;
    struct account *account;
    unsigned n_fds;
    int fd;
};

bool unread_keep(struct link *link)
{
    struct wire_server *server = link->server;

    queue_forget_if_read(link);
    if (!link->unread_fds || server->stopped)
        return false;
    struct unread *unread = malloc(sizeof(*unread));
    if (!unread)
        return false;
    *unread = (struct unread){.owner = link->peer.who.owner,
                              .account = link->account,
                              .n_fds = link->unread_fds,
                              .fd = TAKE_FD(link->fd)};
    link->unread_fds = 0;
    shutdown(unread->fd, SHUT_RDWR);
    list_append(&server->unread, &unread->node);
    server->n_unread++;
    if (!server->unread_timer.at_ms)
        timer_arm(server->core, &server->unread_timer, LOOK_MS);
    return true;
}

static void let_go(struct wire_server *server, struct unread *unread)
{
    account_release(unread->account, ACCOUNT_UNREAD_FDS, unread->n_fds);
    wire_close_socket(server, unread->owner, TAKE_FD(unread->fd));
    list_unlink(&unread->node);
    server->n_unread--;
    free(unread);
}

void unread_reap(struct wire_server *server)
{
    list_for_each_safe (node, &server->unread) {
        struct unread *unread = list_entry(node, struct unread, node);
        int left;
        if (ioctl(unread->fd, SIOCOUTQ, &left) < 0 || !left)
            let_go(server, unread);
    }
}

/* What was sent and never read may hold the client's own end, which would be open for as long as ours is. */
static void drop_sent(struct wire_server *server, const struct unread *unread)
{
    struct packet packet;
    unsigned n = 0;
    int error;

    do {
        error = packet_receive_keeping_fds(unread->fd, &packet);
        for (unsigned i = 0; i < packet.n_fds; i++)
            sent_close(server->core, unread->owner, packet_take_fd(&packet, i));
    } while (error != -EPIPE && error != -EAGAIN && ++n < PACKETS_A_LOOK);
}

void unread_tick(struct timer *timer)
{
    struct wire_server *server = container_of(timer, struct wire_server, unread_timer);

    list_for_each (node, &server->unread) {
        const struct unread *unread = list_entry(node, struct unread, node);
        if (!sent_is_stuck(server->core, unread->owner))
            drop_sent(server, unread);
    }
    unread_reap(server);
    if (server->n_unread)
        timer_arm(server->core, timer, LOOK_MS);
}

unsigned unread_of(const struct wire_server *server, struct owner owner)
{
    unsigned n = 0;

    list_for_each (node, &server->unread)
        n += owner_equal(list_entry(node, struct unread, node)->owner, owner);
    return n;
}

void unread_clear(struct wire_server *server)
{
    timer_stop(server->core, &server->unread_timer);
    while (!list_empty(&server->unread))
        let_go(server, list_entry(list_first(&server->unread), struct unread, node));
}
