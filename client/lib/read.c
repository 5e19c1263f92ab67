/* What comes from the daemon: replies to their calls, events to whoever acts on them, and the end. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "client/lib/conn_internal.h"
#include "client/lib/error.h"
#include "client/lib/util.h"
#include "proto/table.h"

/* A daemon with nothing else to do answers sooner than a thread falls asleep and wakes up. */
#define LOOK_NS 30000

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

/* False without memory for their numbers. */
static bool gather_fds(struct conn_fds *fds, struct packet *packet)
{
    unsigned need = fds->n + packet->n_fds;

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

/* The functions from here on run with conn->mutex held. */

void conn_arm(struct conn *conn, bool on)
{
    /* The end is told even to who did not ask, and told again for as long as nobody reads it, but for ONESHOT. */
    struct epoll_event event = {.events = on ? EPOLLIN : EPOLLONESHOT};

    if (conn->state == CONN_UP)
        epoll_ctl(conn->epoll, EPOLL_CTL_MOD, conn->socket, &event);
}

void conn_hand_turn_on(struct conn *conn)
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

/* A daemon that stops, or dies without a word, will be back; one that said why it ends this will not have it again.
 */
static bool is_cut(const struct conn *conn)
{
    return conn->may_return && (!conn->goodbye || conn->goodbye == HBM_E_SHUTTING_DOWN);
}

static void die(struct conn *conn)
{
    bool cut = is_cut(conn);

    if (conn->state != CONN_UP)
        return;
    epoll_ctl(conn->epoll, EPOLL_CTL_DEL, conn->socket, NULL);
    shutdown(conn->socket, SHUT_RDWR);
    conn->state = cut ? CONN_DOWN : CONN_DEAD;
    conn->presented = false;
    for (struct conn_call *call = conn->calls; call; call = call->next)
        if (!call->done)
            finish(call, cut ? CONN_CUT : HBM_E_DISCONNECTED);
    pthread_cond_broadcast(&conn->changed);
    conn_wake(conn);
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

/* The packet was read, but this process had no room for its descriptors: that one call fails, the rest goes on. */
static void lose_fds(struct conn_call *call, const struct packet *packet, const char *sentence)
{
    if (!call->started)
        memcpy(call->reply, packet->body, call->row->reply_size);
    snprintf(call->detail, sizeof(call->detail), "%s", sentence);
    finish(call, HBM_E_SYSTEM);
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
    if (call->row->opcode == WIRE_BYE) /* the end that follows is meant */
        conn->may_return = false;
    if (!call->started)
        memcpy(call->reply, packet->body, packet->body_size);
    call->started = true;
    if (call->fds.n + packet->n_fds > TABLE_ARENAS_MAX + 1)
        return die_of_nonsense(conn, "the daemon answered with more descriptors than a model has arenas");
    if (!gather_fds(&call->fds, packet))
        lose_fds(call, packet, "no memory is left in this process for descriptors");
    else if (!packet->header.more)
        finish(call, 0);
}

static void deliver(struct conn *conn, int error, struct packet *packet)
{
    struct conn_call *call = error == -EMFILE ? find_call(conn, packet->header.serial) : NULL;

    if (call) {
        lose_fds(call, packet, "no file descriptors are left in this process (RLIMIT_NOFILE)");
    } else if (error == -EMFILE) {
        /* The rest of a reply whose first descriptors were lost. */
    } else if (error == -EPIPE && !conn->ending) {
        /* A peer that closed with our packets unread gives a reset first, and its last words (GOODBYE) after it. */
        conn->ending = true;
        shutdown(conn->socket, SHUT_RDWR);
    } else if (error && error != -EPROTO) {
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

bool conn_lacks_memory(int error)
{
    if (error != -ENOMEM && error != -ENOBUFS)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return true;
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void look_for_a_moment(int socket)
{
    struct pollfd ready = {.fd = socket, .events = POLLIN};
    int64_t until = now_ns() + LOOK_NS;

    while (poll(&ready, 1, 0) == 0 && now_ns() < until)
        sched_yield(); /* the daemon may have no other processor than this one */
}

void conn_read_one(struct conn *conn)
{
    struct packet packet;

    conn->reading = true;
    pthread_mutex_unlock(&conn->mutex);
    look_for_a_moment(conn->socket);
    packet.header = (struct packet_header){0};
    int error = packet_receive(conn->socket, &packet);
    bool later = conn_lacks_memory(error); /* the packet is still there */
    pthread_mutex_lock(&conn->mutex);
    conn->reading = false;
    if (!later)
        deliver(conn, error, &packet);
    if (conn->state != CONN_UP)
        pthread_cond_broadcast(&conn->changed);
}
