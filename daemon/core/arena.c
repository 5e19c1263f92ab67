#include "daemon/core/arena.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/host_ahead.h"
#include "daemon/core/ledger.h"
#include "daemon/core/lease.h"
#include "daemon/core/recency.h"
#include "daemon/core/session.h"
#include "daemon/core/weight.h"
#include "proto/messages.h"

struct arena *arena_new(struct core *core, struct owner owner, bool shared, uint32_t mode, enum hbm_handle handle,
                        const char *group, struct extent *extent)
{
    struct arena *arena = calloc(1, sizeof(*arena));

    if (!arena)
        return NULL;
    arena->id = idmap_add(&core->ids, ID_ARENA, arena);
    if (!arena->id) {
        free(arena);
        return NULL;
    }
    arena->core = core;
    arena->owner = owner;
    arena->shared = shared;
    arena->mode = mode;
    arena->handle = handle;
    snprintf(arena->group, sizeof(arena->group), "%s", group);
    arena->device = extent->device;
    arena->extent = extent;
    list_init(&arena->buffers);
    list_init(&arena->mappings);
    list_init(&arena->waiters);
    list_init(&arena->early_waiters);
    list_append(&core->arenas, &arena->node);
    arena->priority = PRIORITY_NORMAL;
    list_init(&arena->recent_node);
    recency_note(arena);
    host_ahead_wake(arena->device);
    return arena;
}

void arena_prefer(struct arena *arena, uint32_t wire_flags)
{
    if (wire_priority(wire_flags, PRIORITY_NORMAL, &arena->priority))
        recency_place(arena);
    else
        arena->priority = PRIORITY_NORMAL;
}

struct arena *arena_free(struct arena *arena)
{
    struct core *core = arena->core;

    list_for_each_safe(node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        mapping_retire(mapping);
        mapping->arena = NULL;
    }
    list_unlink(&arena->node);
    recency_forget(arena);
    ledger_drop(core, arena->id);
    idmap_remove(&core->ids, arena->id);
    list_for_each_safe (node, &arena->early_waiters)
        list_unlink(node);
    arena_settled(arena); /* who waited for it looks it up again and finds it gone */
    extent_unref(arena->extent);
    free(arena);
    return NULL;
}

struct arena *arena_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_ARENA);
}

bool arena_is_resident(const struct arena *arena, bool in_place)
{
    if (arena_tier(arena) == HBM_TIER_HOST)
        return (arena->live || in_place) && !arena->extent->packing && arena->handle == HBM_HANDLE_FD &&
               extent_is_shareable(arena->extent);
    return arena_tier(arena) == HBM_TIER_DEVICE;
}

bool arena_may_read(const struct arena *arena, const struct principal *who)
{
    if (who->admin || owner_equal(arena->owner, who->owner))
        return true;
    return arena->owner.listener == who->owner.listener && (arena->shared || (arena->mode & 0004));
}

bool arena_may_write(const struct arena *arena, const struct principal *who)
{
    if (who->admin)
        return true;
    if (owner_equal(arena->owner, who->owner))
        return arena->mode & 0200;
    return arena->owner.listener == who->owner.listener && (arena->mode & 0002);
}

bool arena_trusts(const struct arena *arena, const struct principal *who)
{
    /* A reader that holds the fd can raise its own rights: sharing memory means trusting. */
    return who->admin || owner_equal(arena->owner, who->owner) || arena_may_write(arena, who) ||
           (arena->shared && arena->owner.listener == who->owner.listener);
}

bool arena_is_leased(const struct arena *arena)
{
    return !list_empty(&arena->mappings);
}

void arena_demoted(struct arena *arena)
{
    if (arena->live || arena_tier(arena) != HBM_TIER_HOST || arena->extent->packing || !arena_is_leased(arena))
        return;
    arena->live = true;
    ledger_put_arena(arena->core, arena);
}

void arena_unmapped(struct arena *arena)
{
    if (!arena->live)
        return;
    arena->live = false;
    ledger_put_arena(arena->core, arena);
}

bool arena_has_writers(const struct arena *arena)
{
    list_for_each(node, &arena->mappings)
        if (list_entry(node, struct mapping, arena_node)->access == HBM_RW)
            return true;
    return false;
}

static void name_pids(const struct arena *arena, bool mapped, char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    list_for_each(node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapped && !mapping->present)
            continue;
        int n = snprintf(text + used, size - used, "%spid %d", used ? ", " : "", mapping->session->pid);
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

void arena_holders(const struct arena *arena, char *text, size_t size)
{
    name_pids(arena, false, text, size);
}

void arena_mappers(const struct arena *arena, char *text, size_t size)
{
    name_pids(arena, true, text, size);
}

void arena_names(const struct arena *arena, char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    list_for_each(node, &arena->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
        int n = snprintf(text + used, size - used, "%s%s", used ? ", " : "", buffer->name ? buffer->name : "an unnamed buffer");
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

void arena_settled(struct arena *arena)
{
    struct list *node, woken;

    arena->transition = NULL;
    weight_moved(arena);
    host_ahead_wake(arena->device);
    /* Moved aside first: one may start a move for which the next has to wait again, in this arena's list. */
    list_move_all(&woken, &arena->waiters);
    while ((node = list_first(&woken))) {
        struct arena_wait *wait = list_entry(node, struct arena_wait, node);
        list_unlink(node);
        wait->ready(wait);
    }
}
