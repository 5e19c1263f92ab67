#include "daemon/core/quarantine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/ledger.h"

#define POLL_MS 2u
#define RARE_POLL_MS 200u /* where asking again soon is of no use */
/* Where the driver cannot be asked, kernels of a dead process are given this long after its end: killed with nothing
 * forked they stop within 65 ms (H200, driver 580), but a fork can keep them going. */
#define BLIND_MS 10000
/* Longer than the blind wait: whoever waits still is told of, once. */
#define LATE_MS 15000
#define PIDS_A_JOB 63

/* What it has or had mapped: the memory may lie with a peer by now. */
static bool is_of_gpu(const struct mapping *mapping)
{
    return mapping->extent->device->is_cuda || (mapping->arena && mapping->arena->device->is_cuda);
}

/* Kernels of a dead process go on only on a GPU, and only what it could write matters to others. */
static bool needs_driver(const struct session *session)
{
    list_for_each(node, &session->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, session_node);
        if (mapping->access == HBM_RW && is_of_gpu(mapping))
            return true;
    }
    return false;
}

static void release(struct session *session, const char *how)
{
    struct core *core = session->core;

    core->counters.reclaimed_sessions++;
    event_emit(&core->events, "session.reclaimed", session->id, session->client, session->who.owner.listener,
               session->who.owner.uid, session->pid, "%s after %llu ms", how,
               (unsigned long long)(core_now(core) - session->gone_ms));
    session_free(session);
}

/* Its pid means nothing here (another PID namespace), or NVML is not to be had. */
static bool driver_cannot_tell(const struct session *session)
{
    return session->pid <= 0 || session->core->driver_is_mute;
}

/* One device with a working driver is enough: NVML lists every GPU of the machine. */
static struct device *any_gpu(struct core *core)
{
    list_for_each(node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (device->is_cuda && device->worker_pid)
            return device;
    }
    return NULL;
}

bool session_awaiting(const struct session *session, struct awaiting *awaiting)
{
    char *what = awaiting->what;

    if (session->state != SESSION_QUARANTINED)
        return false;
    awaiting->since_ms = session->process_ended ? session->ended_ms : session->gone_ms;
    if (!session->process_ended) {
        snprintf(what, sizeof(awaiting->what), "its process to end");
        awaiting->remedy = "end that process; a stopped one takes SIGKILL";
    } else if (driver_cannot_tell(session)) {
        snprintf(what, sizeof(awaiting->what),
                 "%d s to pass, since the driver cannot say whether its GPU work has ended", BLIND_MS / 1000);
        awaiting->remedy = "nothing need be done";
    } else if (!any_gpu(session->core)) {
        snprintf(what, sizeof(awaiting->what), "a GPU's worker that can ask the driver");
        awaiting->remedy = "see `hbmctl devices` for why there is none";
    } else {
        snprintf(what, sizeof(awaiting->what), "the driver to let go of pid %d", session->pid);
        awaiting->remedy = "end the processes that it had forked: they keep its GPU context";
    }
    return true;
}

struct listing {
    struct core *core;
    struct job job;
    uint64_t sessions[PIDS_A_JOB];
};

static bool still_listed(const struct job_clients_reply *reply, int32_t pid)
{
    for (uint32_t i = 0; i < reply->n && i < PIDS_A_JOB; i++)
        if (reply->pids[i] == (uint32_t)pid)
            return true;
    return false;
}

static void listed(struct job *job)
{
    struct listing *listing = container_of(job, struct listing, job);
    struct core *core = listing->core;

    core->quarantine_asked = false;
    if (!job->error || job->error == HBM_E_UNSUPPORTED)
        core->driver_is_mute = job->error != 0;
    for (uint32_t i = 0; !job->error && i < job->request.clients.n; i++) {
        struct session *session = session_get(core, listing->sessions[i]);
        if (session && !still_listed(&job->reply.clients, session->pid))
            release(session, "quiescent");
    }
    free(listing);
    timer_arm(core, &core->quarantine_timer, core->driver_is_mute ? RARE_POLL_MS : POLL_MS);
}

static void ask_driver(struct core *core, struct device *gpu)
{
    struct listing *listing = calloc(1, sizeof(*listing));
    uint32_t n = 0;

    if (!listing) {
        timer_arm(core, &core->quarantine_timer, RARE_POLL_MS);
        return;
    }
    list_for_each(node, &core->sessions) {
        struct session *session = list_entry(node, struct session, node);
        if (session->state != SESSION_QUARANTINED || !session->process_ended || session->pid <= 0 || n == PIDS_A_JOB)
            continue;
        listing->sessions[n] = session->id;
        listing->job.request.clients.pids[n++] = (uint32_t)session->pid;
    }
    listing->core = core;
    listing->job.opcode = JOB_CLIENTS;
    listing->job.device = gpu->index;
    listing->job.request.clients.n = n;
    listing->job.reply_fd = -1;
    listing->job.done = listed;
    /* With more than a job can name, whoever is still listed must not stand before the others for ever. */
    for (uint32_t i = 0; i < n; i++) {
        struct session *session = session_get(core, listing->sessions[i]);
        list_unlink(&session->node);
        list_append(&core->sessions, &session->node);
    }
    core->quarantine_asked = true;
    core->env.submit(core->env.context, &listing->job);
}

/* Frees who needs no driver's word; true if others wait for it. */
static bool release_the_simple(struct core *core)
{
    bool waiting = false;

    list_for_each_safe(node, &core->sessions) {
        struct session *session = list_entry(node, struct session, node);
        bool empty = list_empty(&session->mappings); /* its process may live on: nothing of ours is in it */
        if (session->state != SESSION_QUARANTINED || session->free_when_stored || (!session->process_ended && !empty))
            continue;
        if (needs_driver(session) &&
            (!driver_cannot_tell(session) || core_now(core) < session->ended_ms + BLIND_MS))
            waiting = true;
        else if (needs_driver(session))
            release(session, "the driver cannot say whether its GPU work ended; waited blindly");
        else
            release(session, empty ? "it held nothing" : "its process ended");
    }
    return waiting;
}

static void tell_of(struct session *session)
{
    struct core *core = session->core;
    struct awaiting awaiting;

    session_awaiting(session, &awaiting);
    session->late = true;
    core->counters.late_reclaims++;
    log_write(LOG_LEVEL_WARNING, MESSAGE_SESSION_LATE,
              "pid %d (%s) is gone for %d s and its memory is not free yet: awaited is %s; %s", session->pid,
              session->client, LATE_MS / 1000, awaiting.what, awaiting.remedy);
    event_emit(&core->events, "session.late", session->id, session->client, session->who.owner.listener,
               session->who.owner.uid, session->pid, "awaited is %s", awaiting.what);
}

/* Tells of those who wait too long; when the next of them will be one, 0 if none is left. */
static uint64_t tell_of_the_late(struct core *core)
{
    uint64_t now = core_now(core), next = 0;

    list_for_each(node, &core->sessions) {
        struct session *session = list_entry(node, struct session, node);
        if (session->state != SESSION_QUARANTINED || session->late)
            continue;
        if (now >= session->gone_ms + LATE_MS)
            tell_of(session);
        else if (!next || session->gone_ms + LATE_MS < next)
            next = session->gone_ms + LATE_MS;
    }
    return next;
}

void quarantine_tick(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, quarantine_timer);
    bool waiting = release_the_simple(core);
    uint64_t next_late = tell_of_the_late(core);
    struct device *gpu = any_gpu(core);

    if (core->quarantine_asked)
        return; /* the answer brings us back */
    if (waiting && gpu)
        ask_driver(core, gpu);
    else if (waiting)
        timer_arm(core, timer, RARE_POLL_MS); /* until a worker is back */
    else if (next_late)
        timer_arm(core, timer, next_late - core_now(core));
}

/* From a timer, not from here: the caller may be walking the session's objects. */
static void look_soon(struct core *core)
{
    timer_arm(core, &core->quarantine_timer, 0);
}

void quarantine_enter(struct session *session)
{
    session->state = SESSION_QUARANTINED;
    session->core->n_quarantined++;
    ledger_put_session(session->core, session);
    look_soon(session->core);
}

void quarantine_process_ended(struct session *session)
{
    look_soon(session->core);
}
