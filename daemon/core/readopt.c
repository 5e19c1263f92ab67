#include "daemon/core/readopt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/base/usdt.h"

struct rows {
    struct ledger_row *at;
    size_t n;
};

static enum id_kind kind_of(enum ledger_type type)
{
    switch (type) {
    case LEDGER_EXTENT:
        return ID_EXTENT;
    case LEDGER_ARENA:
        return ID_ARENA;
    case LEDGER_MODEL:
        return ID_MODEL;
    case LEDGER_BUFFER:
        return ID_BUFFER;
    case LEDGER_SESSION:
        return ID_SESSION;
    case LEDGER_OBSERVATION:
        return ID_OBSERVATION;
    default:
        return ID_LEASE;
    }
}

/* An object under an id of another kind or epoch would be found by nobody, or hide all that are. */
static bool has_sound_id(struct readopt *readopt, const struct ledger_row *row)
{
    if (idmap_could_put(&readopt->core->ids, row->id, kind_of(row->type)))
        return true;
    log_warning("ledger: a row of type %u does not come back: 0x%016" PRIx64 " is no id for it", row->type,
                row->id);
    ledger_drop(readopt->core, row->id);
    return false;
}

static int each(struct readopt *readopt, struct rows rows, enum ledger_type type,
                int (*adopt)(struct readopt *, struct ledger_row *))
{
    int error = 0;

    for (size_t i = 0; i < rows.n && !error; i++) {
        struct ledger_row row = rows.at[i]; /* a copy: rows are read more than once */
        if (row.type == type && has_sound_id(readopt, &row))
            error = adopt(readopt, &row);
    }
    return error;
}

static int each_again(struct readopt *readopt, struct rows rows, enum ledger_type type,
                      int (*link)(struct readopt *, struct ledger_row *))
{
    int error = 0;

    for (size_t i = 0; i < rows.n && !error; i++) {
        struct ledger_row row = rows.at[i];
        if (row.type == type)
            error = link(readopt, &row);
    }
    return error;
}

static void say_lost(struct core *core, const struct arena *arena)
{
    char names[128];

    arena_names(arena, names, sizeof(names));
    const struct list *first = list_first(&arena->buffers);
    const char *name = first ? list_entry(first, struct buffer, arena_node)->name : NULL;
    core->counters.lost++;
    log_write(LOG_LEVEL_ERROR, MESSAGE_LOST,
              "LOST: the contents of %s did not come back (%s tier of device %s)", names,
              hbm_tier_name(arena_tier(arena)), arena->extent->device->uuid);
    event_emit(&core->events, "arena.lost", arena->id, name, arena->owner.listener, arena->owner.uid, 0,
               "after a restart, the contents of %s did not come back", names);
}

static bool has_no_arena(const struct lease *lease)
{
    for (uint32_t i = 0; i < lease->n_mappings; i++)
        if (!lease->mappings[i]->arena)
            return true;
    return false;
}

/* What they map is told by their rows alone from now on. */
static void put_leases_without_arena(struct core *core)
{
    list_for_each (node, &core->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->leases)
            if (has_no_arena(list_entry(inner, struct lease, node)))
                ledger_put_lease(core, list_entry(inner, struct lease, node));
}

/* While all models are there still. */
static void free_unlisted(struct core *core)
{
    list_for_each (node, &core->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, node);
        if (!buffer->model || !list_empty(&buffer->model_node))
            continue;
        log_warning("ledger: the model of %s does not list it: it is a buffer of its own",
                    buffer->name ? buffer->name : "an unnamed buffer");
        if (!buffer->parent)
            buffer->model->n_buffer_leases -= buffer->n_leases;
        FOR_EACH_PART(part, buffer)
            buffer->model->n_buffer_leases -= part->n_leases;
        buffer->model = NULL;
        buffer->keep = true;
        ledger_put_buffer(core, buffer);
    }
}

/* What was kept by nothing but what did not come back, and arenas that no buffer came back for. */
static void release_unkept(struct core *core, struct rows rows)
{
    free_unlisted(core);
    for (size_t i = 0; i < rows.n; i++) {
        struct buffer *buffer = rows.at[i].type == LEDGER_BUFFER ? buffer_get(core, rows.at[i].id) : NULL;
        struct model *model = rows.at[i].type == LEDGER_MODEL ? model_get(core, rows.at[i].id) : NULL;
        if (buffer)
            buffer_release(buffer);
        if (model)
            model_release(model);
    }
    bool retired = false;
    list_for_each_safe (node, &core->arenas) {
        struct arena *arena = list_entry(node, struct arena, node);
        retired |= list_empty(&arena->buffers) && arena_is_leased(arena);
        if (list_empty(&arena->buffers)) {
            arena_free(arena);
            continue;
        }
        if (arena->extent->lost)
            say_lost(core, arena);
        if (!arena_is_leased(arena))
            arena_unmapped(arena);
    }
    if (retired)
        put_leases_without_arena(core);
    /* Each extent was adopted with a ref of nobody's: now it is a lease's or an arena's, or it goes. */
    for (size_t i = 0; i < rows.n; i++)
        if (rows.at[i].type == LEDGER_EXTENT)
            extent_unref(idmap_get(&core->ids, rows.at[i].id, ID_EXTENT));
}

static int adopt_all(struct readopt *readopt, struct rows rows)
{
    int error = each(readopt, rows, LEDGER_EXTENT, readopt_extent);

    if (!error)
        error = each(readopt, rows, LEDGER_ARENA, readopt_arena);
    if (!error)
        error = each(readopt, rows, LEDGER_MODEL, readopt_model);
    ledger_begin(readopt->core);
    if (!error)
        error = each(readopt, rows, LEDGER_BUFFER, readopt_buffer);
    ledger_end(readopt->core);
    if (!error)
        error = each_again(readopt, rows, LEDGER_BUFFER, readopt_part);
    if (!error)
        error = each_again(readopt, rows, LEDGER_MODEL, readopt_model_order);
    if (!error)
        error = each(readopt, rows, LEDGER_OBSERVATION, readopt_observation);
    if (!error)
        error = each(readopt, rows, LEDGER_SESSION, readopt_session);
    if (!error)
        error = each(readopt, rows, LEDGER_LEASE, readopt_lease);
    return error;
}

/* True if the ledger speaks of anything else. */
static bool read_ids(struct core *core, struct rows rows)
{
    struct idmap_bounds *bounds = &core->ids.bounds;
    bool alive = false;

    for (size_t i = 0; i < rows.n; i++) {
        struct unpack payload = rows.at[i].payload;
        if (rows.at[i].type != LEDGER_IDS) {
            alive = true;
            continue;
        }
        bounds->generation = unpack_u32(&payload);
        bounds->slots = unpack_later_u32(&payload);
        bounds->first = unpack_later_u32(&payload);
    }
    return alive;
}

/* Ids given from now on are none that were given before, whatever became of them. */
static int go_on_counting(struct core *core, bool alive)
{
    if (!alive) {
        int error = ledger_renew(core->ledger);
        idmap_init(&core->ids, ledger_epoch(core->ledger), core->ids.raised);
        return error;
    }
    idmap_seal_holes(&core->ids);
    ledger_put_ids(core);
    return 0;
}

int ledger_readopt(struct core *core, struct kept_fd *kept, size_t n)
{
    struct readopt readopt = {.core = core, .kept = kept, .n_kept = n};
    _cleanup_free_ struct ledger_row *at = NULL;
    _cleanup_free_ void *bytes = NULL;
    struct rows rows = {0};

    if (!core->ledger)
        return 0;
    int error = ledger_load(core->ledger, &at, &rows.n, &bytes);
    rows.at = at;
    if (error)
        return error;
    core->ids.epoch = ledger_epoch(core->ledger);
    bool alive = read_ids(core, rows);
    error = adopt_all(&readopt, rows);
    if (!error)
        release_unkept(core, rows);
    if (!error)
        error = go_on_counting(core, alive);
    USDT3(restart, core->n_buffers, core->n_models, core->n_sessions);
    if (rows.n)
        log_info("re-adopted %u buffers, %u models and %u sessions", core->n_buffers, core->n_models,
                 core->n_sessions);
    return error;
}
