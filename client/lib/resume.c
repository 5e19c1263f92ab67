/* The way back to a daemon that died or was restarted: connect, RESUME with what the session holds, and go on. A
 * few steps, none of which blocks, driven by the epoll set that the session's thread (or the caller's loop) sleeps
 * in. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "client/lib/error.h"
#include "client/lib/stock.h"
#include "proto/memfd.h"

#define PAUSE_MIN_MS 10
#define PAUSE_MAX_MS 1000
#define SERIAL 1

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void set_timer(hbm_session *session, uint32_t ms)
{
    struct itimerspec at = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}};

    timerfd_settime(session->conn.timer, 0, &at, NULL);
}

static void try_later(hbm_session *session)
{
    struct comeback *comeback = &session->comeback;

    close_fd_at(&comeback->socket);
    comeback->socket = -1;
    free(comeback->devices);
    comeback->devices = NULL;
    pthread_mutex_lock(&session->conn.mutex);
    session->conn.presented = false;
    pthread_cond_broadcast(&session->conn.changed);
    pthread_mutex_unlock(&session->conn.mutex);
    comeback->pause_ms = comeback->pause_ms ? comeback->pause_ms * 2 : PAUSE_MIN_MS;
    if (comeback->pause_ms > PAUSE_MAX_MS)
        comeback->pause_ms = PAUSE_MAX_MS;
    comeback->next_ms = now_ms() + comeback->pause_ms;
    set_timer(session, comeback->pause_ms);
}

static void end_for_good(hbm_session *session, int error, const char *reason)
{
    close_fd_at(&session->comeback.socket);
    session->comeback.socket = -1;
    conn_give_up(&session->conn, error, reason);
}

static bool send_resume(hbm_session *session, int socket)
{
    struct packet_header header = {.opcode = WIRE_RESUME, .serial = SERIAL};
    struct wire_resume_request request = {.session = session->comeback.id, .version = WIRE_VERSION};
    struct holdings holdings = {0};

    if (take_stock(session, &holdings))
        return false;
    FREE uint64_t *ids = holdings.ids;
    request.n_leases = holdings.n;
    memcpy(request.secret, session->comeback.secret, sizeof(request.secret));
    memcpy(request.client, session->comeback.client, sizeof(request.client));
    int CLOSE_FD fd = memfd_sealed("hbm-leases", ids, (holdings.n + LOCKWORD_SLOTS / 64) * sizeof(*ids));
    return fd >= 0 && packet_send(socket, &header, &request, sizeof(request), &fd, 1) == 0;
}

static void knock(hbm_session *session)
{
    struct comeback *comeback = &session->comeback;
    struct epoll_event event = {.events = EPOLLIN};
    struct error_kept kept;

    if (now_ms() < comeback->next_ms)
        return;
    set_timer(session, 0); /* off, and what it has counted forgotten */
    error_keep(&kept);     /* it is no call of the program's that fails here */
    if (connect_again(session, &comeback->socket) || !send_resume(session, comeback->socket) ||
        epoll_ctl(session->conn.epoll, EPOLL_CTL_ADD, comeback->socket, &event) < 0)
        try_later(session);
    error_restore(&kept);
}

/* The daemon counts as mapped what the words said when it read them, or what it believes was granted since. */
static void settle(void *context)
{
    hbm_session *session = context;

    for_each_slot(session, slot) if (session->words[slot] & LOCKWORD_AWAY)
    {
        conn_settle(&session->conn, WIRE_RELEASED, &(struct wire_released_request){.slot = slot});
        session->last_release[slot] = ++session->releases;
    }
}

static void ask_next_device(hbm_session *session)
{
    struct packet_header header = {.opcode = WIRE_DEVICE, .serial = SERIAL};
    struct wire_device_request request = {.index = session->comeback.n_devices};

    /* A failure is the end, which is read next. */
    (void)packet_send(session->comeback.socket, &header, &request, sizeof(request), NULL, 0);
}

static void enter(hbm_session *session)
{
    struct comeback *comeback = &session->comeback;
    int socket = TAKE_FD(comeback->socket);

    devices_take(session, comeback->devices);
    comeback->devices = NULL;
    epoll_ctl(session->conn.epoll, EPOLL_CTL_DEL, socket, NULL);
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
    comeback->pause_ms = 0;
    comeback->next_ms = 0;
    conn_come_back(&session->conn, socket, settle);
}

/* It has the session again. Its devices first: grants name them by number. */
static void accepted(hbm_session *session, struct packet *packet)
{
    const struct wire_resume_reply *reply = (const void *)packet->body;
    struct comeback *comeback = &session->comeback;

    if (reply->n_lost)
        lose_leases(session, packet->n_fds ? packet->fds[0] : -1, reply->n_lost);
    comeback->n_devices = 0;
    comeback->devices = reply->n_devices <= DEVICES_MAX ? devices_new(reply->n_devices) : NULL;
    if (!comeback->devices) {
        end_for_good(session, HBM_E_SYSTEM, "no memory for the names of the devices");
        return;
    }
    if (reply->n_devices == 0)
        enter(session);
    else
        ask_next_device(session);
}

static void heard_of_device(hbm_session *session, const struct wire_device_reply *reply)
{
    struct comeback *comeback = &session->comeback;

    devices_note(comeback->devices, comeback->n_devices++, reply);
    if (comeback->n_devices == comeback->devices->n)
        enter(session);
    else
        ask_next_device(session);
}

/* Whether it makes sense to knock again after that answer. */
static bool may_change(int error)
{
    return error == HBM_E_SHUTTING_DOWN || error == HBM_E_LIMIT || error == HBM_E_NO_MEMORY ||
           error == HBM_E_SYSTEM || error == HBM_E_TIMEOUT || error == HBM_E_DISCONNECTED;
}

static void refused(hbm_session *session, int error, const char *detail)
{
    if (may_change(error))
        try_later(session);
    else if (error == HBM_E_NOT_FOUND)
        end_for_good(session, HBM_E_DISCONNECTED,
                     "the daemon that is there now does not know this session: it was "
                     "stopped, and its memory given back, or its ledger lost");
    else
        end_for_good(session, error, detail);
}

static void hear(hbm_session *session, struct packet *packet)
{
    const struct packet_header *header = &packet->header;
    const struct packet_refusal *refusal = (const void *)packet->body;
    const struct wire_goodbye_request *goodbye = (const void *)packet->body;
    char detail[HBM_DETAIL_MAX];

    if (header->opcode == WIRE_GOODBYE && packet->body_size == sizeof(*goodbye)) {
        snprintf(detail, sizeof(detail), "%.*s", (int)sizeof(goodbye->detail) - 1, goodbye->detail);
        refused(session, goodbye->error, detail);
    } else if (header->serial == 0) {
        return; /* a RECLAIM: the words say it too */
    } else if (header->opcode == WIRE_RESUME && header->status < 0 && packet->body_size == sizeof(*refusal)) {
        snprintf(detail, sizeof(detail), "%.*s", (int)sizeof(refusal->detail) - 1, refusal->detail);
        refused(session, header->status, detail);
    } else if (header->opcode == WIRE_RESUME && !header->status &&
               packet->body_size == sizeof(struct wire_resume_reply)) {
        accepted(session, packet);
    } else if (header->opcode == WIRE_DEVICE && !header->status && session->comeback.devices &&
               packet->body_size == sizeof(struct wire_device_reply)) {
        heard_of_device(session, (const void *)packet->body);
    } else {
        end_for_good(session, HBM_E_BAD_REQUEST, "the daemon answered something that was not asked");
    }
}

static void listen_for_answer(hbm_session *session)
{
    struct packet packet;

    while (session->comeback.socket >= 0) {
        packet.header = (struct packet_header){0};
        int error = packet_receive(session->comeback.socket, &packet);
        if (error == -EAGAIN)
            return;
        /* Without room for the list of what is lost, it is back all the same. */
        if (error && (error != -EMFILE || packet.header.opcode != WIRE_RESUME)) {
            try_later(session);
            return;
        }
        hear(session, &packet);
        packet_close_fds(&packet);
    }
}

static bool begin(hbm_session *session)
{
    struct conn *conn = &session->conn;
    bool mine;

    if (conn->state != CONN_DOWN)
        return false;
    pthread_mutex_lock(&conn->mutex);
    mine = conn->state == CONN_DOWN && !session->comeback.busy;
    session->comeback.missed = !mine;
    session->comeback.busy |= mine;
    pthread_mutex_unlock(&conn->mutex);
    return mine;
}

static void end(hbm_session *session)
{
    pthread_mutex_lock(&session->conn.mutex);
    session->comeback.busy = false;
    if (session->comeback.missed) /* the wake-up that it drained may have been for a step after this one */
        conn_wake(&session->conn);
    pthread_mutex_unlock(&session->conn.mutex);
}

void resume_step(hbm_session *session)
{
    if (!begin(session))
        return;
    if (session->comeback.socket < 0)
        knock(session);
    if (session->comeback.socket >= 0)
        listen_for_answer(session);
    end(session);
}

static int left_ms(const struct timespec *deadline)
{
    uint64_t now = now_ms(), at;

    if (!deadline)
        return -1;
    at = (uint64_t)deadline->tv_sec * 1000 + (uint64_t)deadline->tv_nsec / 1000000 + 1;
    return at <= now ? 0 : at - now > INT32_MAX ? INT32_MAX : (int)(at - now);
}

void resume_wait(hbm_session *session, const struct timespec *deadline)
{
    struct pollfd something = {.fd = session->conn.epoll, .events = POLLIN};

    while (session->conn.state == CONN_DOWN) {
        int left = left_ms(deadline);
        if (!left)
            return;
        session_dispatch(session);
        if (session->conn.state == CONN_DOWN)
            poll(&something, 1, left);
    }
}
