/* Opening and closing sessions. */
#include "client/lib/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/early.h"
#include "client/lib/error.h"
#include "client/lib/lease.h"
#include "client/lib/residency.h"

#define RECONNECT_MS 10000

int session_check(hbm_session *session)
{
    if (!session)
        return set_error(HBM_E_INVALID, "the session is NULL");
    if (atomic_load_explicit(&session->inert, memory_order_relaxed))
        return set_error(HBM_E_FORKED, "%s", "");
    return 0;
}

bool session_add(hbm_session *session, struct node *list, struct node *node, uint64_t life)
{
    pthread_mutex_lock(&session->mutex);
    bool current = session->conn.life == life;
    if (current)
        node_append(list, node);
    else
        node_init(node);
    pthread_mutex_unlock(&session->mutex);
    return current;
}

uint64_t session_remove(hbm_session *session, struct node *node)
{
    if (session->inert) { /* a copy of the mutex may be locked for ever */
        node_unlink(node);
        return 0;
    }
    pthread_mutex_lock(&session->mutex);
    node_unlink(node);
    uint64_t life = session->conn.life;
    pthread_mutex_unlock(&session->mutex);
    return life;
}

static void serve(void *context)
{
    hbm_session *session = context;

    if (atomic_exchange(&session->conn.reclaim, false))
        residency_serve(session);
}

void session_dispatch(hbm_session *session)
{
    conn_dispatch(&session->conn);
    resume_step(session);
    serve(session);
}

static void look_for_daemon(void *context, const struct timespec *deadline)
{
    resume_wait(context, deadline);
}

/* During the opening, a GOODBYE is the daemon's answer rather than the end of anything. */
static int call_opening(hbm_session *session, uint32_t opcode, const void *request, void *reply,
                        struct conn_fds *fds)
{
    int error = conn_call_again(&session->conn, opcode, request, NULL, reply, fds);

    if (error == HBM_E_DISCONNECTED && session->conn.goodbye)
        return set_error(session->conn.goodbye, "%s", session->conn.reason);
    return error;
}

static int map_words(hbm_session *session, int fd)
{
    void *words = mmap(NULL, LOCKWORD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (words == MAP_FAILED)
        return set_system_error("mmap of the residency words", errno);
    madvise(words, LOCKWORD_PAGE_BYTES, MADV_DONTFORK);
    session->words = words;
    return 0;
}

static int say_hello(hbm_session *session, const char *client, unsigned *n_devices)
{
    struct wire_hello_request request = {.version = WIRE_VERSION};
    struct wire_hello_reply reply;
    CONN_FDS fds = {0};

    snprintf(request.client, sizeof(request.client), "%s", client ? client : program_invocation_short_name);
    int error = call_opening(session, WIRE_HELLO, &request, &reply, &fds);
    if (error)
        return error;
    if (fds.n != 1 || reply.slots > LOCKWORD_SLOTS || reply.n_devices > DEVICES_MAX)
        return set_error(HBM_E_BAD_REQUEST, "the daemon's HELLO has fields outside their range");
    session->comeback.id = reply.session;
    memcpy(session->comeback.secret, reply.secret, sizeof(reply.secret));
    memcpy(session->comeback.client, request.client, sizeof(request.client));
    *n_devices = reply.n_devices;
    return map_words(session, fds.fds[0]);
}

static int session_start(hbm_session *session, const struct hbm_options *options)
{
    char peer[256];
    unsigned n_devices = 0;
    int fd = -1;
    int error = connect_to_daemon(session, options, &fd);

    if (error)
        return error;
    snprintf(peer, sizeof(peer), "hbmd at %s", session->path);
    error = conn_init(&session->conn, fd, peer);
    session->conn.context = session;
    fork_watch(session);
    if (!error)
        error = say_hello(session, options->client, &n_devices);
    if (!error)
        error = devices_learn(session, n_devices);
    if (!error && !(options->flags & HBM_NO_RECONNECT))
        error = conn_make_lasting(&session->conn, options->reconnect_ms ? options->reconnect_ms : RECONNECT_MS);
    if (!error && (options->flags & HBM_NO_THREAD)) {
        session->conn.on_reclaim = serve;
        session->conn.on_down = look_for_daemon;
    } else if (!error) {
        error = thread_start(session);
    }
    return error;
}

int hbm_open(const struct hbm_options *given, hbm_session **ret)
{
    struct hbm_options options = given ? *given : (struct hbm_options){0};
    int error = 0;

    if (!ret)
        return set_error(HBM_E_INVALID, "ret is NULL");
    *ret = NULL;
    if (options.flags & ~(unsigned)(HBM_NO_THREAD | HBM_NO_RECONNECT))
        return set_error(HBM_E_INVALID, "flags has unknown bits (0x%x)", options.flags);
    if (options.client)
        error = check_text("client", options.client, sizeof(((struct wire_hello_request *)0)->client));
    if (error)
        return error;
    hbm_session *session = calloc(1, sizeof(*session));
    if (!session)
        return set_system_error("malloc", ENOMEM);
    session->conn.socket = session->conn.epoll = session->conn.wake = session->conn.timer = -1;
    session->comeback.socket = -1;
    node_init(&session->all);
    node_init(&session->leases);
    node_init(&session->models);
    node_init(&session->ops);
    pthread_mutex_init(&session->mutex, NULL);
    pthread_cond_init(&session->claims, NULL);
    error = session_start(session, &options);
    if (error) {
        struct error_kept kept;
        error_keep(&kept);
        hbm_close(session);
        error_restore(&kept);
        return error;
    }
    *ret = session;
    return 0;
}

static void free_what_it_gave(hbm_session *session)
{
    while (session->leases.next != &session->leases)
        lease_free(CONTAINER(session->leases.next, hbm_lease, node));
    while (session->models.next != &session->models)
        model_free(CONTAINER(session->models.next, hbm_model, node));
    while (session->ops.next != &session->ops)
        hbm_op_free(CONTAINER(session->ops.next, hbm_op, node));
}

void hbm_close(hbm_session *session)
{
    struct wire_bye_request request = {0};
    struct wire_bye_reply reply;

    if (!session)
        return;
    free_what_it_gave(session);
    if (!session->inert)
        early_end(session);
    /* The thread goes last: it may have to bring the daemon back to hear this. */
    if (!session->inert && session->words && session->conn.state != CONN_DEAD)
        conn_call_again(&session->conn, WIRE_BYE, &request, NULL, &reply, NULL);
    if (!session->inert)
        thread_stop(session);
    fork_unwatch(session);
    /* A fork may have left the child's copies of mutexes locked for ever, and its copy of the words is not there.
     */
    if (!session->inert) {
        if (session->words)
            munmap(session->words, LOCKWORD_PAGE_BYTES);
        close_fd_at(&session->comeback.socket);
        free(session->comeback.devices);
        conn_clear(&session->conn);
        pthread_cond_destroy(&session->claims);
        pthread_mutex_destroy(&session->mutex);
    }
    devices_free(session);
    free(session->path);
    free(session);
}

int hbm_event_fd(hbm_session *session)
{
    int error = session_check(session);

    if (error)
        return error;
    if (!session->conn.on_reclaim)
        return set_error(HBM_E_INVALID, "the session has its own thread: open it with HBM_NO_THREAD");
    return session->conn.epoll;
}

int hbm_dispatch(hbm_session *session)
{
    int error = session_check(session);

    if (error)
        return error;
    session_dispatch(session);
    return session->conn.state == CONN_DEAD ? conn_lost(&session->conn) : 0;
}
