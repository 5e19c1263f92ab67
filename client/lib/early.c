#include "client/lib/early.h"

#include <errno.h>
#include <signal.h>

#include "client/lib/error.h"

#define STACK_BYTES ((size_t)256 * 1024)
#define GRACE_MS 1000 /* that a daemon gets to answer in, past the time that it was given */

/* What has been asked for, until it is here; of one that failed, why, until it is unmapped. */
struct early {
    hbm_session *session;
    struct mapping *mapping;
    uint64_t life;
    uint32_t timeout_ms;
    struct gate gate;
    int error;
    struct error_kept why;
};

int early_error(const struct mapping *mapping)
{
    if (!mapping->failed)
        return 0;
    error_restore(&mapping->failed->why);
    return mapping->failed->error;
}

void early_drop(hbm_session *session, struct mapping *mapping)
{
    struct place *place = &mapping->place;
    struct error_kept kept;

    for (const struct hold *hold = mapping->failed ? mapping->holds : NULL; hold; hold = hold->next)
        if (hold->locks)
            return;
    if (!mapping->failed)
        return;
    error_keep(&kept);
    if (!place->backend->wait(place) && !place->backend->unmap(place)) {
        mapping->asked = 0;
        mapping_send_released(session, mapping->slot);
        free(mapping->failed);
        mapping->failed = NULL;
        mapping->early = false;
    }
    error_restore(&kept);
}

/* Waits for the bytes. Afterwards it is locked as any arena, or away with what is mapped there good for nothing. */
static int arrive(struct early *early)
{
    struct conn *conn = &early->session->conn;
    struct mapping *mapping = early->mapping;
    struct wire_arrived_request request = {.slot = mapping->slot, .timeout_ms = early->timeout_ms};
    struct wire_arrived_reply reply;
    int error = conn_call_until(conn, early->life, WIRE_ARRIVED, &request, &reply,
                                (uint64_t)early->timeout_ms + GRACE_MS);

    if (!error) {
        lockword_land(mapping->word);
        if (conn_lives(conn, early->life)) {
            lockword_arrive(mapping->word, 1);
            mapping->early = false;
            return 0;
        }
        lockword_turn_back(mapping->word); /* a daemon that came since has not heard of it */
    }
    early->error = error < 0 ? error : conn_retry();
    error_keep(&early->why);
    mapping->failed = early;
    return early->error;
}

static void *run(void *argument)
{
    struct early *early = argument;
    hbm_session *session = early->session;
    struct mapping *mapping = early->mapping;
    struct gate gate = early->gate;

    if (!arrive(early))
        free(early);
    gate_open(&gate);
    mapping_unclaim(session, mapping);
    pthread_mutex_lock(&session->mutex);
    session->n_early--;
    pthread_cond_broadcast(&session->claims);
    pthread_mutex_unlock(&session->mutex);
    return NULL;
}

void early_end(hbm_session *session)
{
    pthread_mutex_lock(&session->mutex);
    while (session->n_early)
        pthread_cond_wait(&session->claims, &session->mutex);
    pthread_mutex_unlock(&session->mutex);
}

static bool start_thread(struct early *early)
{
    hbm_session *session = early->session;
    pthread_attr_t attributes;
    sigset_t all, old;
    pthread_t thread;

    pthread_mutex_lock(&session->mutex);
    session->n_early++;
    pthread_mutex_unlock(&session->mutex);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool started = pthread_create(&thread, &attributes, run, early) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    if (started)
        return true;
    pthread_mutex_lock(&session->mutex);
    session->n_early--;
    pthread_mutex_unlock(&session->mutex);
    return false;
}

/* Where the stream cannot be held back, or no thread be had, the CPU waits after all: the work comes after this call. */
static int wait_here(struct early *early, struct hold *hold, bool gated)
{
    hbm_session *session = early->session;
    struct gate gate = early->gate;
    int error = arrive(early);

    if (!error)
        free(early);
    if (gated)
        gate_open(&gate);
    if (error) {
        hold->locks--;
        early_drop(session, hold->mapping);
    }
    return error;
}

/* Maps what came. CONN_CUT: the connection ended before it counted as mapped. */
static int take(hbm_session *session, struct mapping *mapping, bool coming, int fd, uint64_t life)
{
    struct place *place = &mapping->place;
    int error;

    if (fd < 0)
        return set_error(HBM_E_INTERNAL, "the daemon sent no memory for slot %u", mapping->slot);
    place->host = !coming && (*mapping->word & LOCKWORD_HOST);
    error = place->backend->map(place, fd);
    if (error || coming)
        return error;
    if (!mapping_land(session, &mapping, 1, life))
        return CONN_CUT;
    lockword_arrive(mapping->word, 1);
    return 0;
}

static int ask(hbm_session *session, struct mapping *mapping, struct wire_lock_early_request *request, bool *coming,
               uint64_t *life)
{
    struct wire_lock_early_reply reply;
    CONN_FDS fds = {0};
    int error = conn_call_again(&session->conn, WIRE_LOCK_EARLY, request, &request->timeout_ms, &reply, &fds);
    int CLOSE_FD fd = conn_take_fd(&fds, 0);

    if (!error)
        error = take(session, mapping, reply.coming, fd, fds.life);
    /* Whether it was granted or not, it is not mapped here. */
    if (error && error != CONN_CUT)
        mapping_send_released(session, mapping->slot);
    *coming = reply.coming;
    *life = fds.life;
    return error;
}

int early_fetch(hbm_session *session, struct hold *hold, void *stream, uint32_t timeout_ms, bool *passed)
{
    struct mapping *mapping = hold->mapping;
    struct place *place = &mapping->place;
    struct wire_lock_early_request request = {.slot = mapping->slot, .timeout_ms = timeout_ms};
    struct early *early = calloc(1, sizeof(*early));
    bool coming = false;
    int error;

    *passed = false;
    if (!early)
        return set_system_error("malloc", ENOMEM);
    *early = (struct early){.session = session, .mapping = mapping, .timeout_ms = timeout_ms};
    do
        error = ask(session, mapping, &request, &coming, &early->life);
    while (error == CONN_CUT);
    if (error || !coming) {
        free(early);
        hold->locks += !error;
        return error;
    }
    hold->locks++;
    mapping->early = true;
    bool gated = place->backend->hold_back(place, stream, &early->gate) == 0;
    *passed = gated && start_thread(early);
    return *passed ? 0 : wait_here(early, hold, gated);
}
