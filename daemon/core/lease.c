#include "daemon/core/lease.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/usdt.h"
#include "daemon/core/coming.h"
#include "daemon/core/health.h"
#include "daemon/core/ledger.h"
#include "daemon/core/recency.h"
#include "daemon/core/reclaim.h"
#include "proto/messages.h"

static struct mapping *mapping_find(struct session *session, struct arena *arena, enum hbm_access access, bool in_place)
{
    list_for_each(node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping->session == session && mapping->access == access && mapping->in_place == in_place)
            return mapping;
    }
    return NULL;
}

static bool take_slot(struct session *session, uint32_t *slot)
{
    for (uint32_t i = 0; i < LOCKWORD_SLOTS; i++) {
        uint32_t at = (session->slot_hint + i) % LOCKWORD_SLOTS;
        if (session->slots[at] || (session->reserved[at / 64] >> (at % 64) & 1))
            continue;
        session->slot_hint = at + 1;
        *slot = at;
        atomic_store(&session->words[at], 0);
        return true;
    }
    return false;
}

static struct mapping *mapping_new(struct session *session, struct arena *arena, enum hbm_access access, bool in_place,
                                   int *error, char *detail)
{
    _cleanup_free_ struct mapping *mapping = calloc(1, sizeof(*mapping));

    if (!mapping) {
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    if (!take_slot(session, &mapping->slot)) {
        snprintf(detail, HBM_DETAIL_MAX, "a session can map %d arenas at once", LOCKWORD_SLOTS);
        *error = HBM_E_LIMIT;
        return NULL;
    }
    mapping->session = session;
    mapping->arena = arena;
    mapping->access = access;
    mapping->in_place = in_place;
    mapping->extent = extent_ref(arena->extent);
    session->slots[mapping->slot] = mapping;
    list_append(&session->mappings, &mapping->session_node);
    list_append(&arena->mappings, &mapping->arena_node);
    return TAKE_PTR(mapping);
}

/* The session's mapping of the arena, counted for one more lease. */
static struct mapping *mapping_use(struct session *session, struct arena *arena, enum hbm_access access, uint32_t flags,
                                   int *error, char *detail)
{
    bool in_place = flags & WIRE_IN_PLACE;
    struct mapping *mapping = mapping_find(session, arena, access, in_place);

    if (!mapping)
        mapping = mapping_new(session, arena, access, in_place, error, detail);
    if (!mapping)
        return NULL;
    mapping->n_leases++;
    if (!(flags & WIRE_UNLOCKED))
        mapping_arrives(mapping);
    recency_note(arena);
    return mapping;
}

void mapping_arrives(struct mapping *mapping)
{
    if (mapping->arena && mapping->extent != mapping->arena->extent) {
        extent_ref(mapping->arena->extent);
        extent_unref(mapping->extent);
        mapping->extent = mapping->arena->extent;
    }
    coming_forget(mapping);
    mapping->present = true;
    extent_export(mapping->extent, mapping->access);
    lockword_place(&mapping->session->words[mapping->slot], mapping->extent->tier == HBM_TIER_HOST);
}

static void mapping_unuse(struct mapping *mapping)
{
    struct arena *arena = mapping->arena;

    if (--mapping->n_leases)
        return;
    mapping->session->slots[mapping->slot] = NULL;
    list_unlink(&mapping->session_node);
    list_unlink(&mapping->arena_node);
    coming_forget(mapping);
    extent_unref(mapping->extent);
    free(mapping);
    if (!arena)
        return;
    recency_note(arena); /* it was in use until now, for all that is known */
    if (list_empty(&arena->mappings))
        arena_unmapped(arena);
    reclaim_check(arena);
}

void mapping_retire(struct mapping *mapping)
{
    list_unlink(&mapping->arena_node);
    mapping->arena = NULL;
}

struct mapping *mapping_by_slot(struct session *session, uint32_t slot)
{
    return slot < LOCKWORD_SLOTS ? session->slots[slot] : NULL;
}

static struct lease *lease_alloc(struct session *session, enum hbm_access access, uint32_t n_arenas, int *error, char *detail)
{
    *error = health_check(session->core, detail);
    if (!*error)
        *error = account_charge(session->account, ACCOUNT_LEASES, 1, detail);
    if (*error)
        return NULL;
    struct lease *lease = calloc(1, sizeof(*lease) + n_arenas * sizeof(lease->mappings[0]));
    if (lease)
        lease->id = idmap_add(&session->core->ids, ID_LEASE, lease);
    if (!lease || !lease->id) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        account_release(session->account, ACCOUNT_LEASES, 1);
        free(lease);
        return NULL;
    }
    lease->session = session;
    lease->access = access;
    lease->since_ms = core_now(session->core);
    list_append(&session->leases, &lease->node);
    session->core->n_leases++;
    return lease;
}

static void drop_mappings(struct lease *lease)
{
    while (lease->n_mappings)
        mapping_unuse(lease->mappings[--lease->n_mappings]);
}

static void lease_forget(struct lease *lease)
{
    struct core *core = lease->session->core;

    list_unlink(&lease->node);
    account_release(lease->session->account, ACCOUNT_LEASES, 1);
    core->n_leases--;
    ledger_drop(core, lease->id);
    idmap_remove(&core->ids, lease->id);
    free(lease);
}

/* Nobody counts on it yet. */
static struct lease *lease_withdraw(struct lease *lease)
{
    drop_mappings(lease);
    lease_forget(lease);
    return NULL;
}

/* A lease whose row could not be written is one that a restart would not honour. */
static int lease_write_down(struct lease *lease, char *detail)
{
    struct core *core = lease->session->core;

    ledger_put_lease(core, lease);
    return ledger_trouble(core) ? health_check(core, detail) : 0;
}

struct lease *lease_new_buffer(struct session *session, struct buffer *buffer, enum hbm_access access, uint32_t flags,
                               int *error, char *detail)
{
    struct lease *lease = lease_alloc(session, access, 1, error, detail);

    if (!lease)
        return NULL;
    lease->mappings[0] = mapping_use(session, buffer->arena, access, flags, error, detail);
    if (!lease->mappings[0])
        return lease_withdraw(lease);
    lease->n_mappings = 1;
    lease->buffer = buffer;
    lease->in_place = flags & WIRE_IN_PLACE;
    *error = lease_write_down(lease, detail);
    if (*error)
        return lease_withdraw(lease);
    buffer_count_lease(buffer, 1);
    session_remember(session, buffer->id);
    USDT4(attach, session->pid, buffer->id, lease->id, lease->n_mappings);
    return lease;
}

struct lease *lease_new_model(struct session *session, struct model *model, enum hbm_access access, uint32_t flags,
                              int *error, char *detail)
{
    _cleanup_free_ struct arena **arenas = model_arenas(model);
    struct lease *lease = NULL;

    if (arenas)
        lease = lease_alloc(session, access, model->n_arenas, error, detail);
    else
        *error = HBM_E_NO_MEMORY;
    if (!lease)
        return NULL;
    for (uint32_t i = 0; i < model->n_arenas; i++) {
        struct mapping *mapping = mapping_use(session, arenas[i], access, flags, error, detail);
        if (!mapping)
            return lease_withdraw(lease);
        lease->mappings[lease->n_mappings++] = mapping;
    }
    lease->model = model;
    lease->in_place = flags & WIRE_IN_PLACE;
    *error = lease_write_down(lease, detail);
    if (*error)
        return lease_withdraw(lease);
    model->n_leases++;
    USDT4(attach, session->pid, model->id, lease->id, lease->n_mappings);
    return lease;
}

struct lease *lease_free(struct lease *lease)
{
    struct buffer *buffer = lease->buffer;
    struct model *model = lease->model;
    bool half_built = lease->builder && model && model->state == MODEL_BUILDING;

    USDT3(detach, lease->session->pid, buffer ? buffer->id : model ? model->id : 0, lease->id);
    drop_mappings(lease);
    lease_forget(lease);
    if (buffer) {
        struct buffer *keeper = buffer->parent ? buffer->parent : buffer;
        struct model *its_model = keeper->model;
        buffer_count_lease(buffer, -1);
        buffer_release(keeper);
        if (its_model)
            model_release(its_model);
    }
    if (model) {
        model->n_leases--;
        if (half_built)
            model_unlist(model);
        model_release(model);
    }
    return NULL;
}

struct lease *lease_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_LEASE);
}
