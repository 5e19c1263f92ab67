/* What is asked of the daemon: waiting in the door while it is away, and for answers. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "client/lib/conn_internal.h"
#include "client/lib/error.h"
#include "client/lib/util.h"

int conn_lost(struct conn *conn)
{
    char reason[sizeof(conn->reason)];

    pthread_mutex_lock(&conn->mutex);
    int goodbye = conn->goodbye;
    memcpy(reason, conn->reason, sizeof(reason));
    pthread_mutex_unlock(&conn->mutex);
    if (goodbye && goodbye != HBM_E_DISCONNECTED)
        return set_error(HBM_E_DISCONNECTED, "%s: %s", hbm_error_what(goodbye), reason);
    return set_error(HBM_E_DISCONNECTED, "%s", reason);
}

int conn_retry(void)
{
    return set_error(HBM_E_RETRY, "%s", "");
}

static struct timespec in_ms(uint32_t ms)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += (long)(ms % 1000) * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static uint64_t now_ms(void)
{
    struct timespec now = in_ms(0);

    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool is_past(const struct timespec *deadline)
{
    struct timespec now = in_ms(0);

    return now.tv_sec > deadline->tv_sec || (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec);
}

/* conn->mutex is held: one wait in the door. False when it has been long enough. */
static bool wait_for_change(struct conn *conn, const struct timespec *deadline)
{
    if (conn->patience_ms != UINT32_MAX && is_past(deadline))
        return false;
    if (conn->on_down) {
        pthread_mutex_unlock(&conn->mutex);
        conn->on_down(conn->context, conn->patience_ms == UINT32_MAX ? NULL : deadline);
        pthread_mutex_lock(&conn->mutex);
    } else if (conn->patience_ms == UINT32_MAX) {
        pthread_cond_wait(&conn->changed, &conn->mutex);
    } else {
        pthread_cond_timedwait(&conn->changed, &conn->mutex, deadline);
    }
    return true;
}

static bool has_stopped(struct conn *conn, uint64_t life)
{
    return conn->state == CONN_DOWN || (conn->life != life && conn->state == CONN_UP);
}

/* The daemon of that life refuses what is new before it stops. False if it does not stop, or for good. */
static bool wait_for_stop(struct conn *conn, uint64_t life)
{
    struct timespec deadline = in_ms(conn->patience_ms);

    pthread_mutex_lock(&conn->mutex);
    bool lasting = conn->may_return;
    pthread_mutex_unlock(&conn->mutex);
    while (lasting && !has_stopped(conn, life) && conn->state != CONN_DEAD && !is_past(&deadline)) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        conn_dispatch(conn);
    }
    return lasting && has_stopped(conn, life);
}

/* conn->mutex is held. What began in that life and is not presented to the next daemon has ended with it. */
static bool is_over(const struct conn *conn, uint64_t life)
{
    return life && (conn->life != life || (conn->state == CONN_DOWN && !conn->presented));
}

/* conn->mutex is held. 0, CONN_OVER, or DISCONNECTED (not set). */
static int stand_in_the_door(struct conn *conn, uint64_t life)
{
    struct timespec deadline = in_ms(conn->patience_ms);

    for (;;) {
        if (conn->state == CONN_DEAD)
            return HBM_E_DISCONNECTED;
        if (is_over(conn, life))
            return CONN_OVER;
        if (conn->state == CONN_UP)
            return 0;
        if (!wait_for_change(conn, &deadline))
            return HBM_E_DISCONNECTED;
    }
}

static int still_away(struct conn *conn)
{
    if (conn->state != CONN_DOWN)
        return conn_lost(conn);
    return set_error(HBM_E_DISCONNECTED, "%s went away and did not come back within %u ms", conn->peer,
                     conn->patience_ms);
}

int conn_wait_up(struct conn *conn)
{
    pthread_mutex_lock(&conn->mutex);
    int error = stand_in_the_door(conn, 0);
    pthread_mutex_unlock(&conn->mutex);
    return error ? still_away(conn) : 0;
}

/* ---- Calls ---- */

static int join(struct conn *conn, struct conn_call *call, uint64_t life)
{
    pthread_mutex_lock(&conn->mutex);
    int error = stand_in_the_door(conn, life);
    if (!error) {
        if (++conn->serial == 0)
            conn->serial = 1;
        call->serial = conn->serial;
        call->life = conn->life;
        call->next = conn->calls;
        conn->calls = call;
        if (conn->callers++ == 0)
            conn_arm(conn, false);
    }
    pthread_mutex_unlock(&conn->mutex);
    return error < 0 ? still_away(conn) : error;
}

/* Before reading, which has no end. False: it is past the call's time, or something came of it meanwhile. */
static bool wait_until_readable(struct conn *conn, const struct conn_call *call)
{
    struct pollfd ready = {.fd = conn->socket, .events = POLLIN};
    struct timespec now = in_ms(0);
    int64_t ms = ((int64_t)call->deadline->tv_sec - now.tv_sec) * 1000 + (call->deadline->tv_nsec - now.tv_nsec) / 1000000 + 1;

    conn->reading = true;
    pthread_mutex_unlock(&conn->mutex);
    int n = poll(&ready, 1, ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms);
    pthread_mutex_lock(&conn->mutex);
    conn->reading = false;
    return n > 0 && !call->done;
}

static void await(struct conn *conn, struct conn_call *call)
{
    while (!call->done && !(call->deadline && is_past(call->deadline))) {
        if (conn->reading && call->deadline) {
            pthread_cond_clockwait(&call->turn, &conn->mutex, CLOCK_MONOTONIC, call->deadline);
            continue;
        }
        if (conn->reading) {
            pthread_cond_wait(&call->turn, &conn->mutex);
            continue;
        }
        if (call->deadline && !wait_until_readable(conn, call))
            continue;
        conn_read_one(conn);
        if (conn->on_reclaim && conn->reclaim) {
            conn_hand_turn_on(conn);
            pthread_mutex_unlock(&conn->mutex);
            conn->on_reclaim(conn->context);
            pthread_mutex_lock(&conn->mutex);
        }
    }
}

static void leave(struct conn *conn, struct conn_call *call)
{
    struct conn_call **link = &conn->calls;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    conn_hand_turn_on(conn);
    if (--conn->callers == 0) {
        conn_arm(conn, true);
        if (conn->state != CONN_UP)
            pthread_cond_broadcast(&conn->changed);
    }
}

/* 0, an error that is set, or CONN_CUT, CONN_OVER. */
static int call_by(struct conn *conn, const struct timespec *deadline, uint64_t life, uint32_t opcode,
                   const void *request, void *reply, const int *fds, unsigned n_fds, struct conn_fds *out)
{
    struct conn_call call = {
        .row = wire_row(opcode), .reply = reply, .turn = PTHREAD_COND_INITIALIZER, .deadline = deadline};

    memset(reply, 0, call.row->reply_size);
    int error = join(conn, &call, life);
    if (error)
        return error;
    struct packet_header header = {.opcode = opcode, .serial = call.serial};
    pthread_mutex_lock(&conn->send_mutex);
    int sent = packet_send(conn->socket, &header, request, call.row->request_size, fds, n_fds);
    pthread_mutex_unlock(&conn->send_mutex);

    pthread_mutex_lock(&conn->mutex);
    /* -EPIPE: the reason may still lie in the socket, so the call reads on until the end of file. */
    if (!sent || sent == -EPIPE)
        await(conn, &call);
    leave(conn, &call);
    pthread_mutex_unlock(&conn->mutex);
    pthread_cond_destroy(&call.turn);

    call.fds.life = call.life;
    if (call.status == CONN_CUT)
        memset(reply, 0, call.row->reply_size);
    if (!call.status && out) {
        *out = call.fds;
    } else {
        conn_fds_clear(&call.fds);
        if (out)
            out->life = call.life;
    }
    if (sent && sent != -EPIPE)
        return set_system_error("sendmsg", -sent);
    if (sent == -EPIPE &&
        call.status == CONN_CUT) /* nobody has got it: it is still to be asked for the first time */
        return call_by(conn, deadline, life, opcode, request, reply, fds, n_fds, out);
    if (!call.done)
        return set_error(HBM_E_TIMEOUT, "%s does not answer", conn->peer);
    if (call.status == HBM_E_DISCONNECTED)
        return conn_lost(conn);
    return call.status < 0 ? set_error(call.status, "%s", call.detail) : call.status;
}

static int call_once(struct conn *conn, uint64_t life, uint32_t opcode, const void *request, void *reply,
                     const int *fds, unsigned n_fds, struct conn_fds *out)
{
    return call_by(conn, NULL, life, opcode, request, reply, fds, n_fds, out);
}

int conn_call(struct conn *conn, uint32_t opcode, const void *request, void *reply, const int *fds, unsigned n_fds,
              struct conn_fds *out)
{
    int error = call_once(conn, 0, opcode, request, reply, fds, n_fds, out);

    return error == CONN_CUT ? conn_retry() : error;
}

int conn_call_again(struct conn *conn, uint32_t opcode, const void *request, uint32_t *timeout_ms, void *reply,
                    struct conn_fds *out)
{
    for (;;) {
        uint64_t start = now_ms(), life = conn->life;
        int error = call_once(conn, 0, opcode, request, reply, NULL, 0, out);
        if (error != CONN_CUT && (error != HBM_E_SHUTTING_DOWN || !wait_for_stop(conn, life)))
            return error;
        uint64_t took = now_ms() - start;
        if (timeout_ms && *timeout_ms != UINT32_MAX)
            *timeout_ms -= took < *timeout_ms ? (uint32_t)took : *timeout_ms;
    }
}

int conn_call_in(struct conn *conn, uint64_t life, uint32_t opcode, const void *request, void *reply)
{
    return call_once(conn, life, opcode, request, reply, NULL, 0, NULL);
}

int conn_call_until(struct conn *conn, uint64_t life, uint32_t opcode, const void *request, void *reply, uint64_t ms)
{
    struct timespec deadline = in_ms(ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX);

    return call_by(conn, &deadline, life, opcode, request, reply, NULL, 0, NULL);
}

void conn_send(struct conn *conn, uint32_t opcode, const void *request)
{
    struct packet_header header = {.opcode = opcode};

    pthread_mutex_lock(&conn->mutex);
    bool up = conn->state == CONN_UP;
    conn->senders += up;
    pthread_mutex_unlock(&conn->mutex);
    if (!up)
        return;
    pthread_mutex_lock(&conn->send_mutex);
    while (conn_lacks_memory(packet_send(conn->socket, &header, request, wire_row(opcode)->request_size, NULL, 0)))
        ; /* nobody would say it again */
    pthread_mutex_unlock(&conn->send_mutex);
    pthread_mutex_lock(&conn->mutex);
    if (--conn->senders == 0 && conn->state != CONN_UP)
        pthread_cond_broadcast(&conn->changed);
    pthread_mutex_unlock(&conn->mutex);
}
