#include "client/lib/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "client/lib/error.h"
#include "client/lib/util.h"
#include "proto/messages.h"
#include "proto/table.h"

struct conn_call {
    struct conn_call *next;
    pthread_cond_t turn; /* done, or nobody reads */
    const struct wire_row *row;
    uint32_t serial;
    bool started; /* the reply's first packet came */
    bool done;
    int status;
    void *reply;
    struct conn_fds fds;
    char detail[sizeof(((struct packet_refusal *)0)->detail)];
};

int conn_take_fd(struct conn_fds *fds, unsigned i)
{
    return i < fds->n ? TAKE_FD(fds->fds[i]) : -1;
}

void conn_fds_clear(struct conn_fds *fds)
{
    for (unsigned i = 0; i < fds->n; i++)
        close_fd_at(&fds->fds[i]);
    free(fds->fds);
    *fds = (struct conn_fds){0};
}

static bool gather_fds(struct conn_fds *fds, struct packet *packet)
{
    unsigned need = fds->n + packet->n_fds;

    if (need > TABLE_ARENAS_MAX + 1)
        return false;
    if (need > fds->room) {
        int *grown = reallocarray(fds->fds, need, sizeof(int));
        if (!grown)
            return false;
        fds->fds = grown;
        fds->room = need;
    }
    for (unsigned i = 0; i < packet->n_fds; i++)
        fds->fds[fds->n++] = packet_take_fd(packet, i);
    return true;
}

int conn_init(struct conn *conn, int socket, const char *peer)
{
    struct epoll_event wake = {.events = EPOLLIN}, armed = {.events = EPOLLIN};

    *conn = (struct conn){.socket = socket};
    pthread_mutex_init(&conn->mutex, NULL);
    pthread_mutex_init(&conn->send_mutex, NULL);
    snprintf(conn->reason, sizeof(conn->reason), "%s closed it", peer);
    conn->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    conn->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (conn->wake < 0 || conn->epoll < 0 || epoll_ctl(conn->epoll, EPOLL_CTL_ADD, conn->wake, &wake) < 0 ||
        epoll_ctl(conn->epoll, EPOLL_CTL_ADD, conn->socket, &armed) < 0)
        return set_system_error("epoll", errno);
    return 0;
}

void conn_forget(struct conn *conn)
{
    int fds[] = {TAKE_FD(conn->socket), TAKE_FD(conn->epoll), TAKE_FD(conn->wake)};

    for (unsigned i = 0; i < 3; i++)
        close_fd_at(&fds[i]);
}

void conn_clear(struct conn *conn)
{
    conn_forget(conn);
    pthread_mutex_destroy(&conn->mutex);
    pthread_mutex_destroy(&conn->send_mutex);
}

void conn_wake(struct conn *conn)
{
    uint64_t one = 1;

    if (write(conn->wake, &one, sizeof(one)) < 0) {
        /* EAGAIN: the counter is full, so it is readable already. */
    }
}

int conn_lost(struct conn *conn)
{
    if (conn->goodbye && conn->goodbye != HBM_E_DISCONNECTED)
        return set_error(HBM_E_DISCONNECTED, "%s: %s", hbm_error_what(conn->goodbye), conn->reason);
    return set_error(HBM_E_DISCONNECTED, "%s", conn->reason);
}

/* The functions from here to the next public one run with conn->mutex held. */

static void arm(struct conn *conn, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0};

    if (!conn->dead)
        epoll_ctl(conn->epoll, EPOLL_CTL_MOD, conn->socket, &event);
}

static void hand_turn_on(struct conn *conn)
{
    if (conn->reading)
        return;
    for (struct conn_call *call = conn->calls; call; call = call->next)
        if (!call->done) {
            pthread_cond_signal(&call->turn);
            return;
        }
}

static void finish(struct conn_call *call, int status)
{
    call->status = status;
    call->done = true;
    pthread_cond_signal(&call->turn);
}

static void die(struct conn *conn)
{
    conn->dead = true;
    epoll_ctl(conn->epoll, EPOLL_CTL_DEL, conn->socket, NULL);
    for (struct conn_call *call = conn->calls; call; call = call->next)
        if (!call->done)
            finish(call, HBM_E_DISCONNECTED);
}

static void die_of_nonsense(struct conn *conn, const char *sentence)
{
    conn->goodbye = HBM_E_BAD_REQUEST;
    snprintf(conn->reason, sizeof(conn->reason), "%s", sentence);
    shutdown(conn->socket, SHUT_RDWR);
    die(conn);
}

static struct conn_call *find_call(struct conn *conn, uint32_t serial)
{
    struct conn_call *call = conn->calls;

    while (call && call->serial != serial)
        call = call->next;
    return call && !call->done ? call : NULL;
}

static void take_event(struct conn *conn, const struct packet *packet)
{
    const struct wire_goodbye_request *goodbye = (const void *)packet->body;

    if (packet->header.opcode == WIRE_RECLAIM) {
        conn->reclaim = true;
        if (!conn->on_reclaim)
            conn_wake(conn);
    } else if (packet->header.opcode == WIRE_GOODBYE && packet->body_size == sizeof(*goodbye)) {
        conn->goodbye = goodbye->error < 0 ? goodbye->error : HBM_E_DISCONNECTED;
        snprintf(conn->reason, sizeof(conn->reason), "%.*s", (int)sizeof(goodbye->detail), goodbye->detail);
    }
    /* OP_ENDED and events of later versions ask nothing of this side. */
}

static void take_reply(struct conn *conn, struct packet *packet)
{
    struct conn_call *call = find_call(conn, packet->header.serial);
    const struct packet_refusal *refusal = (const void *)packet->body;

    if (!call) /* the rest of a reply whose first descriptors were lost */
        return;
    if (packet->header.opcode != call->row->opcode)
        return die_of_nonsense(conn, "the daemon answered something that was not asked");
    if (packet->header.status < 0) {
        if (packet->body_size == sizeof(*refusal))
            snprintf(call->detail, sizeof(call->detail), "%.*s", (int)sizeof(refusal->detail), refusal->detail);
        finish(call, packet->header.status);
        return;
    }
    if (packet->body_size != call->row->reply_size)
        return die_of_nonsense(conn, "the daemon answered with a message of another size");
    if (!call->started)
        memcpy(call->reply, packet->body, packet->body_size);
    call->started = true;
    if (!gather_fds(&call->fds, packet))
        return die_of_nonsense(conn, "the daemon answered with more descriptors than a model has arenas");
    if (!packet->header.more)
        finish(call, 0);
}

/* The packet was read, but this process had no room for its descriptors: that one call fails, the rest goes on. */
static void lose_fds(struct conn *conn, const struct packet *packet)
{
    struct conn_call *call = find_call(conn, packet->header.serial);

    if (!call)
        return;
    if (!call->started)
        memcpy(call->reply, packet->body, call->row->reply_size);
    snprintf(call->detail, sizeof(call->detail), "no file descriptors are left in this process (RLIMIT_NOFILE)");
    finish(call, HBM_E_SYSTEM);
}

static void deliver(struct conn *conn, int error, struct packet *packet)
{
    if (error == -EMFILE) {
        lose_fds(conn, packet);
    } else if (error == -EPIPE && !conn->ending) {
        /* A peer that closed with our packets unread gives a reset first, and its last words (GOODBYE) after it. */
        conn->ending = true;
        shutdown(conn->socket, SHUT_RDWR);
    } else if (error == -EPIPE) {
        die(conn);
    } else if (error) {
        die_of_nonsense(conn, "the daemon sent a malformed packet");
    } else if (packet->header.serial == 0) {
        take_event(conn, packet);
    } else {
        take_reply(conn, packet);
    }
    packet_close_fds(packet);
}

static void read_one(struct conn *conn)
{
    struct packet packet;

    conn->reading = true;
    pthread_mutex_unlock(&conn->mutex);
    packet.header = (struct packet_header){0};
    int error = packet_receive(conn->socket, &packet);
    pthread_mutex_lock(&conn->mutex);
    conn->reading = false;
    deliver(conn, error, &packet);
}

static void await(struct conn *conn, struct conn_call *call)
{
    while (!call->done) {
        if (conn->reading) {
            pthread_cond_wait(&call->turn, &conn->mutex);
            continue;
        }
        read_one(conn);
        if (conn->on_reclaim && conn->reclaim) {
            hand_turn_on(conn);
            pthread_mutex_unlock(&conn->mutex);
            conn->on_reclaim(conn->context);
            pthread_mutex_lock(&conn->mutex);
        }
    }
}

/* ---- */

static bool join(struct conn *conn, struct conn_call *call)
{
    bool alive;

    pthread_mutex_lock(&conn->mutex);
    alive = !conn->dead;
    if (alive) {
        if (++conn->serial == 0)
            conn->serial = 1;
        call->serial = conn->serial;
        call->next = conn->calls;
        conn->calls = call;
        if (conn->callers++ == 0)
            arm(conn, false);
    }
    pthread_mutex_unlock(&conn->mutex);
    return alive;
}

static void leave(struct conn *conn, struct conn_call *call)
{
    struct conn_call **link = &conn->calls;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    hand_turn_on(conn);
    if (--conn->callers == 0)
        arm(conn, true);
}

int conn_call(struct conn *conn, uint32_t opcode, const void *request, void *reply, const int *fds, unsigned n_fds,
              struct conn_fds *out)
{
    struct conn_call call = {.row = wire_row(opcode), .reply = reply, .turn = PTHREAD_COND_INITIALIZER};

    memset(reply, 0, call.row->reply_size);
    if (!join(conn, &call))
        return conn_lost(conn);
    struct packet_header header = {.opcode = opcode, .serial = call.serial};
    pthread_mutex_lock(&conn->send_mutex);
    int error = packet_send(conn->socket, &header, request, call.row->request_size, fds, n_fds);
    pthread_mutex_unlock(&conn->send_mutex);

    pthread_mutex_lock(&conn->mutex);
    /* -EPIPE: the reason may still lie in the socket, so the call reads on until the end of file. */
    if (!error || error == -EPIPE)
        await(conn, &call);
    leave(conn, &call);
    pthread_mutex_unlock(&conn->mutex);
    pthread_cond_destroy(&call.turn);

    if (error && error != -EPIPE) {
        conn_fds_clear(&call.fds);
        return set_system_error("sendmsg", -error);
    }
    if (!call.status && out)
        *out = call.fds;
    else
        conn_fds_clear(&call.fds);
    if (call.status == HBM_E_DISCONNECTED)
        return conn_lost(conn);
    return call.status ? set_error(call.status, "%s", call.detail) : 0;
}

void conn_send(struct conn *conn, uint32_t opcode, const void *request)
{
    struct packet_header header = {.opcode = opcode};

    pthread_mutex_lock(&conn->send_mutex);
    packet_send(conn->socket, &header, request, wire_row(opcode)->request_size, NULL, 0);
    pthread_mutex_unlock(&conn->send_mutex);
}

void conn_dispatch(struct conn *conn)
{
    struct pollfd ready = {.fd = conn->socket, .events = POLLIN};
    uint64_t count;

    if (read(conn->wake, &count, sizeof(count)) < 0) {
        /* EAGAIN: it was the socket that woke us. */
    }
    pthread_mutex_lock(&conn->mutex);
    while (!conn->dead && !conn->reading && poll(&ready, 1, 0) == 1)
        read_one(conn);
    hand_turn_on(conn);
    pthread_mutex_unlock(&conn->mutex);
}
