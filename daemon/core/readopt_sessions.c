#include "daemon/core/readopt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/core/quarantine.h"

static int drop_row(struct readopt *readopt, const struct ledger_row *row, const char *why)
{
    log_warning("ledger: the %s 0x%016" PRIx64 " does not come back: %s",
                row->type == LEDGER_SESSION ? "session" : "lease", row->id, why);
    ledger_drop(readopt->core, row->id);
    return 0;
}

/* ---- Sessions ---- */

static void resume_quarantine(struct session *session, bool process_ended)
{
    session->state = SESSION_QUARANTINED;
    session->core->n_quarantined++;
    session->process_ended = process_ended;
    session->gone_ms = session->ended_ms = core_now(session->core); /* a blind wait begins anew */
    quarantine_process_ended(session);
}

static int equip(struct readopt *readopt, struct session *session, uint64_t id)
{
    struct core *core = readopt->core;

    session->account = account_of(core, session->who.owner);
    session->slots = calloc(LOCKWORD_SLOTS, sizeof(*session->slots));
    if (!session->account || !session->slots || session_map_page(session) < 0 ||
        idmap_put(&core->ids, id, session) < 0)
        return -ENOMEM;
    session->id = id;
    account_charge_anyway(session->account, ACCOUNT_SESSIONS, 1);
    session->state = SESSION_DETACHED;
    session->stored = true;
    snprintf(session->store_pidfd.name, STORE_NAME_MAX, "p-%016" PRIx64, id);
    snprintf(session->store_page.name, STORE_NAME_MAX, "s-%016" PRIx64, id);
    return 0;
}

static void unequip(struct session *session)
{
    session->account = NULL; /* not charged yet */
    session_free(session);
}

int readopt_session(struct readopt *readopt, struct ledger_row *row)
{
    struct unpack *in = &row->payload;
    struct principal who = {.owner.listener = unpack_u32(in)};
    char pidfd_name[STORE_NAME_MAX], page_name[STORE_NAME_MAX];

    who.owner.uid = unpack_u32(in);
    who.admin = unpack_u32(in);
    int32_t pid = (int32_t)unpack_u32(in);
    bool quarantined = unpack_u32(in), process_ended = unpack_u32(in);
    uint64_t since_ms = unpack_u64(in);
    snprintf(pidfd_name, sizeof(pidfd_name), "p-%016" PRIx64, row->id);
    snprintf(page_name, sizeof(page_name), "s-%016" PRIx64, row->id);
    _cleanup_fd_ int pidfd = readopt_take_pidfd(readopt, pidfd_name);
    _cleanup_fd_ int page = readopt_take_sized(readopt, page_name, LOCKWORD_PAGE_BYTES);
    if (in->failed || pidfd < 0 || page < 0) {
        readopt->core->env.unstore(readopt->core->env.context, pidfd_name);
        readopt->core->env.unstore(readopt->core->env.context, page_name);
        return drop_row(readopt, row, "its pidfd or its page was not kept, so nobody could tell when it ends");
    }
    struct session *session = session_blank(readopt->core, who);
    if (!session)
        return -ENOMEM;
    session->pidfd = TAKE_FD(pidfd);
    session->page_fd = TAKE_FD(page);
    session->pid = pid;
    if (since_ms < session->since_ms) /* later than now: of another time namespace's clock */
        session->since_ms = since_ms;
    unpack_bytes(in, session->secret, sizeof(session->secret));
    const char *client = unpack_text(in);
    snprintf(session->client, sizeof(session->client), "%s", client ? client : "");
    if (equip(readopt, session, row->id) < 0) {
        unequip(session);
        return -ENOMEM;
    }
    if (quarantined)
        resume_quarantine(session, process_ended);
    return 0;
}

/* ---- Leases and mappings ---- */

/* The word says whether the client has it mapped: it went on locking and letting go while nobody was here. Whoever
 * asked for it back is gone. In one step: what is read as AWAY can't be landing on by the time it is withdrawn. */
static void read_word(struct mapping *mapping)
{
    mapping->present = !(lockword_withdraw(&mapping->session->words[mapping->slot]) & LOCKWORD_AWAY);
}

/* 0, -ENOENT or -ENOMEM. */
static int read_mapping(struct readopt *readopt, struct session *session, struct unpack *in, struct mapping **ret)
{
    struct core *core = readopt->core;
    uint32_t slot = unpack_u32(in), access = unpack_u32(in);
    struct arena *arena = arena_get(core, unpack_u64(in));
    struct extent *extent = idmap_get(&core->ids, unpack_u64(in), ID_EXTENT);

    if (in->failed || slot >= LOCKWORD_SLOTS)
        return -ENOENT;
    *ret = session->slots[slot];
    if (*ret)
        return 0;
    /* It moved with its arena; the row names what was mapped when the lease was given. An arena that is no more is no
     * reason to take the memory from whoever still has it mapped. */
    if (arena)
        extent = arena->extent;
    if (!extent)
        return -ENOENT;
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    if (!mapping)
        return -ENOMEM;
    *mapping = (struct mapping){
        .session = session, .arena = arena, .extent = extent_ref(extent), .access = access, .slot = slot};
    session->slots[slot] = mapping;
    list_append(&session->mappings, &mapping->session_node);
    if (arena)
        list_append(&arena->mappings, &mapping->arena_node);
    else
        list_init(&mapping->arena_node);
    read_word(mapping);
    *ret = mapping;
    return 0;
}

static void count(struct lease *lease)
{
    if (lease->buffer) {
        buffer_count_lease(lease->buffer, 1);
        session_remember(lease->session, lease->buffer->id);
    } else {
        lease->model->n_leases++;
    }
}

int readopt_lease(struct readopt *readopt, struct ledger_row *row)
{
    struct core *core = readopt->core;
    struct unpack *in = &row->payload;
    struct session *session = session_get(core, unpack_u64(in));
    struct buffer *buffer = buffer_get(core, unpack_u64(in));
    struct model *model = model_get(core, unpack_u64(in));
    uint32_t access = unpack_u32(in), builder = unpack_u32(in), n = unpack_u32(in);

    if (in->failed || n > LOCKWORD_SLOTS || !session || (!buffer && !model))
        return drop_row(readopt, row, "its session, or what it is on, does not either");
    struct lease *lease = calloc(1, sizeof(*lease) + n * sizeof(lease->mappings[0]));
    if (!lease || idmap_put(&core->ids, row->id, lease) < 0) {
        free(lease);
        return -ENOMEM;
    }
    lease->id = row->id;
    lease->session = session;
    lease->buffer = buffer;
    lease->model = buffer ? NULL : model;
    lease->access = access;
    lease->builder = builder && lease->model;
    lease->since_ms = core_now(core);
    list_append(&session->leases, &lease->node);
    account_charge_anyway(session->account, ACCOUNT_LEASES, 1);
    core->n_leases++;
    count(lease);
    while (lease->n_mappings < n) {
        struct mapping *mapping = NULL;
        int error = read_mapping(readopt, session, in, &mapping);
        if (error == -ENOMEM)
            return error;
        if (error) {
            log_warning("ledger: a lease of pid %d maps memory that did not come back", session->pid);
            lease_free(lease);
            return 0;
        }
        mapping->n_leases++;
        lease->mappings[lease->n_mappings++] = mapping;
    }
    lease->in_place = unpack_later_u32(in); /* since version 4 */
    for (uint32_t i = 0; i < n; i++)
        lease->mappings[i]->in_place = lease->in_place;
    return 0;
}
