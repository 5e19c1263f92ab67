#include "daemon/core/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/health.h"
#include "daemon/core/ledger.h"
#include "daemon/core/op.h"
#include "daemon/core/quarantine.h"
#include "proto/memfd.h"

const char *session_state_name(enum session_state state)
{
    static const char *const names[] = {"open", "detached", "quarantined"};
    return names[state];
}

struct session *session_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_SESSION);
}

int session_map_page(struct session *session)
{
    void *page = mmap(NULL, LOCKWORD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, session->page_fd, 0);

    if (page == MAP_FAILED)
        return -errno;
    session->words = page;
    return 0;
}

/* What a session needs besides its fields; session_free undoes it, half-done or not. */
static int session_equip(struct session *session)
{
    session->slots = calloc(LOCKWORD_SLOTS, sizeof(*session->slots));
    session->page_fd = memfd_fixed("hbm-session", LOCKWORD_PAGE_BYTES);
    if (fd_ran_out(-session->page_fd))
        return HBM_E_LIMIT;
    if (!session->slots || session->page_fd < 0 || session_map_page(session) < 0)
        return HBM_E_NO_MEMORY;
    if (getrandom(session->secret, sizeof(session->secret), 0) != sizeof(session->secret))
        return HBM_E_SYSTEM;
    session->id = idmap_add(&session->core->ids, ID_SESSION, session);
    return session->id ? 0 : HBM_E_NO_MEMORY;
}

struct session *session_blank(struct core *core, struct principal who)
{
    struct session *session = calloc(1, sizeof(*session));

    if (!session)
        return NULL;
    session->core = core;
    session->who = who;
    session->pidfd = session->page_fd = -1;
    session->since_ms = core_now(core);
    list_init(&session->leases);
    list_init(&session->mappings);
    list_init(&session->calls);
    list_append(&core->sessions, &session->node);
    core->n_sessions++;
    return session;
}

/* One more session, charged to the account. */
static int admit(struct core *core, struct account *account, char *detail)
{
    if (core->draining) {
        snprintf(detail, HBM_DETAIL_MAX, "no new sessions");
        return HBM_E_SHUTTING_DOWN;
    }
    int error = health_check(core, detail);
    if (error)
        return error;
    if (core->limits.sessions && core->n_sessions >= core->limits.sessions) {
        snprintf(detail, HBM_DETAIL_MAX, "%" PRIu32 " sessions are open, max_sessions is %" PRIu32, core->n_sessions,
                 core->limits.sessions);
        return HBM_E_LIMIT;
    }
    detail[0] = 0;
    error = account ? account_charge(account, ACCOUNT_SESSIONS, 1, detail) : HBM_E_NO_MEMORY;
    explain_no_memory(error, detail);
    return error;
}

struct session *session_new(struct core *core, struct principal who, int32_t pid, int pidfd, const char *client, int *error,
                            char *detail)
{
    struct account *account = account_of(core, who.owner);

    *error = admit(core, account, detail);
    if (*error)
        return NULL;
    struct session *session = session_blank(core, who);
    if (!session) {
        account_release(account, ACCOUNT_SESSIONS, 1);
        *error = HBM_E_NO_MEMORY;
        explain_no_memory(*error, detail);
        return NULL;
    }
    session->account = account;
    session->pid = pid;
    snprintf(session->client, sizeof(session->client), "%s", client);
    *error = session_equip(session);
    if (*error) {
        snprintf(detail, HBM_DETAIL_MAX, "the owner cannot make the session's page: %s", strerror(errno));
        session_free(session);
        return NULL;
    }
    session->pidfd = pidfd;
    return session;
}

static void page_stored(struct store_request *request)
{
    struct session *session = container_of(request, struct session, store_page);

    int error = session->store_pidfd.refused || request->refused ? HBM_E_LIMIT : 0;
    session->stored = true;
    if (!error)
        ledger_put_session(session->core, session);
    if (session->ready) {
        void (*ready)(struct session *, int) = session->ready;
        session->ready = NULL;
        ready(session, error);
    }
    if (session->free_when_stored)
        session_free(session);
}

static void pidfd_stored(struct store_request *request)
{
    struct session *session = container_of(request, struct session, store_pidfd);

    session->store_page.fd = session->page_fd;
    session->store_page.done = page_stored;
    snprintf(session->store_page.name, STORE_NAME_MAX, "s-%016" PRIx64, session->id);
    session->core->env.store(session->core->env.context, &session->store_page);
}

void session_start(struct session *session)
{
    session->store_pidfd.fd = session->pidfd;
    session->store_pidfd.done = pidfd_stored;
    snprintf(session->store_pidfd.name, STORE_NAME_MAX, "p-%016" PRIx64, session->id);
    session->core->env.store(session->core->env.context, &session->store_pidfd);
}

bool session_can_write(const struct session *session)
{
    list_for_each(node, &session->mappings)
        if (list_entry(node, struct mapping, session_node)->access == HBM_RW)
            return true;
    return false;
}

void session_remember(struct session *session, uint64_t buffer)
{
    size_t n = sizeof(session->former) / sizeof(session->former[0]);

    if (!session_held(session, buffer))
        session->former[session->former_next++ % n] = buffer;
}

bool session_held(const struct session *session, uint64_t buffer)
{
    for (size_t i = 0; i < sizeof(session->former) / sizeof(session->former[0]); i++)
        if (buffer && session->former[i] == buffer)
            return true;
    return false;
}

/* What it was building can never be finished: others may start over at once, though the memory waits for quiescence. */
static void give_up_building(struct session *session)
{
    list_for_each(node, &session->leases) {
        struct lease *lease = list_entry(node, struct lease, node);
        if (lease->builder && lease->model->state == MODEL_BUILDING)
            model_unlist(lease->model);
    }
}

/* Their verbs still end them, whenever that is. */
static void orphan_calls(struct session *session)
{
    list_for_each_safe(node, &session->calls) {
        list_entry(node, struct call, node)->session = NULL;
        list_unlink(node);
    }
}

void session_gone(struct session *session, bool clean, const char *why)
{
    struct core *core = session->core;

    if (session->state == SESSION_QUARANTINED)
        return;
    session->link = NULL;
    session->ready = NULL;
    session->gone_ms = core_now(core);
    orphan_calls(session);
    op_cancel_of_session(core, session->id);
    give_up_building(session);
    event_emit(&core->events, "session.gone", session->id, session->client, session->who.owner.listener,
               session->who.owner.uid, session->pid, "%s", why);
    if (clean)
        session_free(session);
    else
        quarantine_enter(session);
}

void session_process_ended(struct session *session)
{
    session->process_ended = true;
    session->ended_ms = core_now(session->core);
    if (session->state == SESSION_QUARANTINED)
        quarantine_process_ended(session);
    else
        session_gone(session, false, "its process ended");
}

static void unstore(struct session *session, const char *name)
{
    if (session->core->env.unstore && name[0])
        session->core->env.unstore(session->core->env.context, name);
}

struct session *session_free(struct session *session)
{
    struct core *core = session->core;

    orphan_calls(session);
    while (!list_empty(&session->leases))
        lease_free(list_entry(list_first(&session->leases), struct lease, node));
    /* The store still holds pointers to our requests until the second one is through. */
    if (session->store_pidfd.name[0] && !session->stored && core->env.unstore) {
        session->free_when_stored = true;
        return NULL;
    }
    if (session->state == SESSION_QUARANTINED)
        core->n_quarantined--;
    if (session->watch_end)
        session->watch_end(session);
    unstore(session, session->store_pidfd.name);
    unstore(session, session->store_page.name);
    ledger_drop(core, session->id);
    if (session->words)
        munmap(session->words, LOCKWORD_PAGE_BYTES);
    fd_close(session->pidfd);
    fd_close(session->page_fd);
    if (session->account)
        account_release(session->account, ACCOUNT_SESSIONS, 1);
    list_unlink(&session->node);
    core->n_sessions--;
    if (session->id)
        idmap_remove(&core->ids, session->id);
    free(session->slots);
    free(session);
    return NULL;
}
