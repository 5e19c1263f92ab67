#include "daemon/wire/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/sent.h"
#include "daemon/wire/dispatch.h"
#include "daemon/wire/pending.h"
#include "daemon/wire/queue.h"
#include "daemon/wire/unread.h"

static void on_poll(uv_poll_t *poll, int status, int events);

static void hello_overdue(struct timer *timer)
{
    link_doom(container_of(timer, struct link, hello), HBM_E_TIMEOUT, "it did not say HELLO in time");
}

struct link *link_new(struct wire_server *server, int fd, struct peer *peer)
{
    struct account *account = account_of(server->core, peer->who.owner);
    struct link *link = account ? calloc(1, sizeof(*link)) : NULL;

    if (!link)
        return NULL;
    link->server = server;
    link->core = server->core;
    link->hello.fire = hello_overdue;
    list_init(&link->calls);
    list_init(&link->queue);
    if (uv_poll_init(server->loop, &link->poll, fd)) {
        free(link);
        return NULL;
    }
    link->account = account_ref(account);
    link->fd = fd;
    link->peer = *peer;
    peer->pidfd = -1; /* consume pidfd */
    link->poll.data = link;
    list_append(&server->links, &link->node);
    server->n_links++;
    wire_server_opened(server);
    timer_arm(link->core, &link->hello, LINK_HELLO_MS);
    link_balance(link);
    return link;
}

void link_balance(struct link *link)
{
    int want = UV_DISCONNECT;

    if (link->closed)
        return;
    if (!link->doomed && link->n_packets < LINK_PAUSE_PACKETS && link->n_calls < LINK_PAUSE_CALLS)
        want |= UV_READABLE;
    if (!list_empty(&link->queue))
        want |= UV_WRITABLE;
    if (want != link->watching)
        uv_poll_start(&link->poll, want, on_poll);
    link->watching = want;
}

static void close_fds(struct link *link)
{
    struct packet *packet = &link->packet;

    for (unsigned i = 0; i < packet->n_fds; i++)
        sent_close(link->core, link->peer.who.owner, packet_take_fd(packet, i));
    packet->n_fds = 0;
}

/* Requests of an account in one turn of the loop, which its time tells from the next: where each is a large one, the
 * others would wait for all of its connections. */
static bool has_had_its_turn(const struct link *link)
{
    return link->account->turn_ms == uv_now(link->server->loop) && link->account->turn_ns >= LINK_TURN_NS;
}

static void serve(struct link *link)
{
    struct account *account = link->account;
    uint64_t turn = uv_now(link->server->loop), start = uv_hrtime();

    wire_dispatch(link, &link->packet);
    if (account->turn_ms != turn)
        account->turn_ns = 0;
    account->turn_ms = turn;
    account->turn_ns += uv_hrtime() - start;
}

/* One a wake-up: then it is the others' turn, and who waits for an answer has sent no more. */
static void read_request(struct link *link)
{
    if (link->doomed)
        return;
    if (wire_server_has_unclosed(link->server, &link->peer.who)) {
        link_doom(link, HBM_E_LIMIT, WIRE_UNCLOSED);
        return;
    }
    if (has_had_its_turn(link))
        return; /* what it sent is still there in the next */
    int error = packet_receive_keeping_fds(link->fd, &link->packet);
    if (error == -EAGAIN || error == -ENOMEM || error == -ENOBUFS)
        return; /* the kernel's want of memory is not the client's: what it sent is still there */
    if (error == -EPROTO)
        link_violation(link,
                       "a packet that is shorter than a header, larger than a packet may be, or miscounts its fds");
    else if (error == -EMFILE)
        link_doom(link, HBM_E_LIMIT, FD_RAN_OUT);
    else if (!error)
        serve(link);
    close_fds(link);
    if (error && !link->doomed)
        link_close(link, "it hung up");
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct link *link = poll->data;

    if (status < 0) {
        link_close(link, "its socket failed");
        return;
    }
    if (events & UV_WRITABLE)
        queue_flush(link);
    if (events & UV_READABLE)
        read_request(link);
    else if ((events & UV_DISCONNECT) && !link->doomed)
        link_close(link, "it hung up");
    link_balance(link);
}

void link_reply(struct link *link, uint32_t opcode, uint32_t serial, const void *body, size_t size, int fd)
{
    struct packet_header header = {.opcode = opcode, .serial = serial};

    link_send(link, &header, body, size, &fd, fd >= 0);
}

void link_refuse(struct link *link, uint32_t opcode, uint32_t serial, int error, const char *format, ...)
{
    struct packet_header header = {.opcode = opcode, .serial = serial, .status = error};
    struct packet_refusal refusal = {0};
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(refusal.detail, sizeof(refusal.detail), format, arguments);
    va_end(arguments);
    core_count_refusal(link->core, error);
    link_send(link, &header, &refusal, sizeof(refusal), NULL, 0);
}

/* Marks it for the reaper, and says so: HBM_OK is a client that said goodbye. */
static void doom(struct link *link, int error, const char *event, const char *reason)
{
    const struct owner *owner = &link->peer.who.owner;

    link->doomed = true;
    link->doom_error = error;
    snprintf(link->doom_reason, sizeof(link->doom_reason), "%s", reason);
    wire_server_reap_soon(link->server);
    if (!error)
        return;
    event_emit(&link->core->events, event, link->session ? link->session->id : 0, NULL, owner->listener, owner->uid,
               link->peer.pid, "%s", reason);
    wire_server_complain(link->server, "client pid %d uid %u is disconnected: %s; see `hbmctl events`",
                         link->peer.pid, owner->uid, reason);
}

void link_doom(struct link *link, int error, const char *reason)
{
    if (!link->doomed && !link->closed)
        doom(link, error, "client.dropped", reason);
}

void link_turn_away(struct link *link, uint32_t opcode, uint32_t serial, int error, const char *why)
{
    link_refuse(link, opcode, serial, error, "%s", why);
    link_doom(link, error, why);
}

void link_violation(struct link *link, const char *what)
{
    char reason[HBM_DETAIL_MAX];

    snprintf(reason, sizeof(reason), "it sent %s", what);
    link->core->counters.violations++;
    doom(link, HBM_E_BAD_REQUEST, "client.violation", reason);
}

/* Best effort, and only if it can be the last packet in its turn. */
static void say_goodbye(struct link *link, int error, const char *reason)
{
    queue_flush(link);
    if (list_empty(&link->queue))
        wire_send_goodbye(link->fd, error, reason);
}

static void freed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    struct wire_server *server = link->server;

    free(link);
    wire_server_closed(server);
}

/* What a link has of its own, and no session. */
static void tear_down(struct link *link)
{
    link->closed = true;
    list_unlink(&link->node);
    link->server->n_links--;
    timer_stop(link->core, &link->hello);
    pending_abandon_all(link);
    queue_clear(link);
    close_fds(link);
    uv_close((uv_handle_t *)&link->poll, freed);
    if (!unread_keep(link)) {
        queue_forget_fds(link);
        wire_close_socket(link->server, link->peer.who.owner, TAKE_FD(link->fd));
    }
    link->peer.pidfd = fd_close(link->peer.pidfd);
    link->account = account_unref(link->account);
}

void link_close(struct link *link, const char *why)
{
    if (link->closed)
        return;
    struct session *session = TAKE_PTR(link->session);
    if (link->clean)
        queue_flush(link);
    else if (link->doomed)
        say_goodbye(link, link->doom_error, link->doom_reason);
    tear_down(link);
    if (!session)
        return;
    session->link = NULL;
    session_gone(session, link->clean, why);
}

void link_shut_down(struct link *link)
{
    say_goodbye(link, HBM_E_SHUTTING_DOWN, "the daemon is stopping");
    if (link->session)
        link->session->link = NULL;
    tear_down(link);
}
