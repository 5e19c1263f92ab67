#include "daemon/core/quarantine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/ledger.h"

#define POLL_MS 2
/* Where the driver cannot be asked, kernels of a dead process are given this long after its end: killed with nothing
 * forked they stop within 65 ms (H200, driver 580), but a fork can keep them going. */
#define BLIND_MS 10000
#define PIDS_A_JOB 63

/* Kernels of a dead process go on only on a GPU, and only what it could write matters to others. */
static bool needs_driver(const struct session *session)
{
    list_for_each(node, &session->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, session_node);
        if (mapping->access == HBM_RW && mapping->extent->device->is_cuda)
            return true;
    }
    return false;
}

const char *session_awaiting(const struct session *session)
{
    if (session->state != SESSION_QUARANTINED)
        return NULL;
    return session->process_ended ? "the driver to end its GPU context" : "its process to end";
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
    timer_arm(core, &core->quarantine_timer, core->driver_is_mute ? 100 * POLL_MS : POLL_MS);
}

static void ask_driver(struct core *core, struct device *gpu)
{
    struct listing *listing = calloc(1, sizeof(*listing));
    uint32_t n = 0;

    if (!listing)
        return;
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
        if (needs_driver(session) && !driver_cannot_tell(session))
            waiting = true;
        else if (needs_driver(session) && core_now(core) < session->ended_ms + BLIND_MS)
            waiting = true;
        else if (needs_driver(session))
            release(session, "the driver cannot say whether its GPU work ended; waited blindly");
        else
            release(session, empty ? "it held nothing" : "its process ended");
    }
    return waiting;
}

void quarantine_tick(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, quarantine_timer);

    if (!release_the_simple(core) || core->quarantine_asked)
        return;
    struct device *gpu = any_gpu(core);
    if (gpu)
        ask_driver(core, gpu);
    else
        timer_arm(core, timer, 100 * POLL_MS); /* until a worker is back */
}

void quarantine_enter(struct session *session)
{
    session->state = SESSION_QUARANTINED;
    session->core->n_quarantined++;
    ledger_put_session(session->core, session);
    if (session->process_ended || list_empty(&session->mappings))
        quarantine_process_ended(session);
}

void quarantine_process_ended(struct session *session)
{
    /* From a timer, not from here: the caller may be walking the session's objects. */
    timer_arm(session->core, &session->core->quarantine_timer, 0);
}
