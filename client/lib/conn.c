#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "client/lib/conn_internal.h"
#include "client/lib/error.h"
#include "client/lib/util.h"

static int watch(struct conn *conn, int fd)
{
    return fd < 0 ? -1 : epoll_ctl(conn->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN});
}

static void forget_reason(struct conn *conn)
{
    conn->goodbye = 0;
    snprintf(conn->reason, sizeof(conn->reason), "%s closed it", conn->peer);
}

int conn_init(struct conn *conn, int socket, const char *peer)
{
    pthread_condattr_t monotonic;

    *conn = (struct conn){.socket = socket, .life = 1};
    pthread_mutex_init(&conn->mutex, NULL);
    pthread_mutex_init(&conn->send_mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&conn->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    snprintf(conn->peer, sizeof(conn->peer), "%s", peer);
    forget_reason(conn);
    conn->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    conn->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    conn->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (conn->epoll < 0 || watch(conn, conn->wake) < 0 || watch(conn, conn->timer) < 0 || watch(conn, socket) < 0)
        return set_system_error("epoll", errno);
    return 0;
}

void conn_forget(struct conn *conn)
{
    int fds[] = {TAKE_FD(conn->socket), TAKE_FD(conn->epoll), TAKE_FD(conn->wake), TAKE_FD(conn->timer)};

    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        close_fd_at(&fds[i]);
}

void conn_clear(struct conn *conn)
{
    conn_forget(conn);
    pthread_cond_destroy(&conn->changed);
    pthread_mutex_destroy(&conn->mutex);
    pthread_mutex_destroy(&conn->send_mutex);
}

void conn_wake(struct conn *conn)
{
    uint64_t one = 1;

    /* EAGAIN: the counter is full, so it is readable already. */
    while (write(conn->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void conn_dispatch(struct conn *conn)
{
    struct pollfd ready = {.events = POLLIN};
    uint64_t count;

    if (read(conn->wake, &count, sizeof(count)) < 0) {
        /* EAGAIN: it was something else that woke us. */
    }
    pthread_mutex_lock(&conn->mutex);
    ready.fd = conn->socket;
    while (conn->state == CONN_UP && !conn->reading && poll(&ready, 1, 0) == 1)
        conn_read_one(conn);
    conn_hand_turn_on(conn);
    pthread_mutex_unlock(&conn->mutex);
}

bool conn_lives(struct conn *conn, uint64_t life)
{
    struct pollfd ends = {.events = POLLRDHUP};
    bool lives;

    pthread_mutex_lock(&conn->mutex);
    ends.fd = conn->socket;
    /* Whether its end has been read yet or not: the kernel knows it before another daemon can start. */
    lives = conn->state == CONN_UP && conn->life == life && poll(&ends, 1, 0) == 0;
    pthread_mutex_unlock(&conn->mutex);
    return lives;
}

int conn_make_lasting(struct conn *conn, uint32_t patience_ms)
{
    pthread_mutex_lock(&conn->mutex);
    bool up = conn->state == CONN_UP;
    conn->may_return = up;
    conn->patience_ms = patience_ms;
    pthread_mutex_unlock(&conn->mutex);
    return up ? 0 : conn_lost(conn);
}

void conn_settle(struct conn *conn, uint32_t opcode, const void *request)
{
    struct packet_header header = {.opcode = opcode};

    packet_send(conn->socket, &header, request, wire_row(opcode)->request_size, NULL, 0);
}

void conn_come_back(struct conn *conn, int socket, void (*settle)(void *context))
{
    pthread_mutex_lock(&conn->mutex);
    while (conn->callers || conn->senders || conn->reading)
        pthread_cond_wait(&conn->changed, &conn->mutex);
    close_fd_at(&conn->socket);
    conn->socket = socket;
    conn->ending = false;
    forget_reason(conn);
    settle(conn->context);
    conn->reclaim = true; /* who asked in the meantime could only leave it in the words */
    conn->state = CONN_UP;
    epoll_ctl(conn->epoll, EPOLL_CTL_ADD, socket, &(struct epoll_event){.events = EPOLLIN});
    pthread_cond_broadcast(&conn->changed);
    conn_wake(conn);
    pthread_mutex_unlock(&conn->mutex);
}

void conn_give_up(struct conn *conn, int error, const char *reason)
{
    pthread_mutex_lock(&conn->mutex);
    conn->may_return = false;
    conn->goodbye = error;
    snprintf(conn->reason, sizeof(conn->reason), "%s", reason);
    if (conn->state == CONN_DOWN)
        conn->state = CONN_DEAD;
    pthread_cond_broadcast(&conn->changed);
    pthread_mutex_unlock(&conn->mutex);
}
