#include "daemon/core/commit.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/coming.h"
#include "daemon/core/ledger.h"
#include "daemon/core/pressure.h"
#include "daemon/core/part.h"
#include "daemon/core/receipt.h"
#include "daemon/core/weight.h"

static bool changes_form(const struct plan *plan)
{
    return plan->n_placements > 0;
}

int commit_check(struct transition *transition, const struct plan *plan, struct arena *arena)
{
    char pids[96];
    const char *why = NULL;

    arena_holders(arena, pids, sizeof(pids));
    /* Its handle is a bearer token that nobody can be asked to close. Away, it has given out none. */
    if (arena->handle == HBM_HANDLE_CUDA_IPC && arena_tier(arena) == HBM_TIER_DEVICE && arena_is_leased(arena))
        why = "cuda-ipc memory moves only while nobody has it attached";
    else if (!plan->reclaim && arena_has_writers(arena))
        why = "it is attached for writing";
    if (!why)
        return 0;
    snprintf(transition->detail, sizeof(transition->detail), "%s: %s", pids, why);
    return HBM_E_BUSY;
}

/* A part that is leased by itself has a holder who counts on it: it can't be taken away. */
static int check_placement(struct transition *transition, const struct placement *placement)
{
    struct buffer *buffer = buffer_get(transition->core, placement->buffer);

    for (unsigned i = 0; buffer && i < PARTS; i++) {
        const struct buffer *part = buffer->parts[i];
        if (!part || !part->n_leases || placement->parts[i].size)
            continue;
        snprintf(transition->detail, sizeof(transition->detail), "%.200s%s is attached",
                 part->name ? part->name : "its ", part->name ? "" : part_suffix(i));
        return HBM_E_BUSY;
    }
    return 0;
}

static int check_now(struct transition *transition, const struct plan *plan)
{
    struct arena *arena = arena_get(transition->core, plan->arena);
    int error = 0;

    if (!arena) /* freed meanwhile: nothing is left to do for it */
        return 0;
    error = commit_check(transition, plan, arena);
    /* Whoever was asked to let go has; a mapping that came since would go on reading and writing the old extent. */
    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (error || !plan->reclaim || !mapping->present)
            continue;
        snprintf(transition->detail, sizeof(transition->detail), "pid %d attached it meanwhile",
                 mapping->session->pid);
        error = HBM_E_BUSY;
    }
    for (size_t i = 0; i < plan->n_placements && !error; i++)
        error = check_placement(transition, &plan->placements[i]);
    return error;
}

/* Everything that can fail, first. */
static int prepare(struct transition *transition, struct plan *plan)
{
    for (size_t i = 0; i < plan->n_placements; i++) {
        struct placement *placement = &plan->placements[i];
        struct buffer *buffer = buffer_get(transition->core, placement->buffer);
        int error = 0;

        for (unsigned part = 0; buffer && part < PARTS; part++) {
            if (!placement->parts[part].size || buffer->parts[part])
                continue;
            if (!part_new(buffer, part, placement, &error, transition->detail))
                return error;
            placement->made[part] = true;
        }
    }
    return 0;
}

static void undo_prepare(struct transition *transition, struct plan *plan)
{
    for (size_t i = 0; i < plan->n_placements; i++) {
        struct placement *placement = &plan->placements[i];
        struct buffer *buffer = buffer_get(transition->core, placement->buffer);
        for (unsigned part = 0; part < PARTS; part++) {
            if (placement->made[part] && buffer && buffer->parts[part])
                buffer_free(buffer->parts[part]);
            placement->made[part] = false;
        }
    }
}

static void place(struct core *core, const struct placement *placement)
{
    struct buffer *buffer = buffer_get(core, placement->buffer);

    if (!buffer)
        return;
    if (memcmp(&buffer->encoding, &placement->encoding, sizeof(buffer->encoding)))
        buffer->version++;
    if (placement->encoding.codec != HBM_CODEC_RAW)
        buffer->park = (struct parking){0}; /* encoded wherever it lies */
    buffer->offset = placement->offset;
    bool weighed = buffer->weighed;
    weight_remove(buffer);
    buffer->size = placement->size;
    if (weighed)
        weight_add(buffer);
    buffer->encoding = placement->encoding;
    if (placement->has_receipt) {
        receipt_take(buffer, placement->encoding.codec, &placement->receipt, &placement->quality);
        receipt_tell(buffer);
    }
    FOR_EACH_PART(part, buffer)
        if (!placement->parts[part_number].size)
            buffer_free(part);
    parts_place(buffer, placement);
    ledger_put_buffer(core, buffer);
}

static bool has_retired(const struct lease *lease)
{
    for (uint32_t i = 0; i < lease->n_mappings; i++)
        if (lease->mappings[i]->retired)
            return true;
    return false;
}

/* A mapping's extent is its arena's: after a move the lease rows need not be written again. After a retirement they
 * are all that tells it. Each is written once, however many of its arenas were swapped. */
static void put_leases(struct session *session)
{
    if (!session->retired)
        return;
    session->retired = false;
    list_for_each (node, &session->leases) {
        const struct lease *lease = list_entry(node, struct lease, node);
        if (has_retired(lease))
            ledger_put_lease(session->core, lease);
    }
    list_for_each (node, &session->mappings)
        list_entry(node, struct mapping, session_node)->retired = false;
}

static void point_at(struct mapping *mapping, struct extent *extent)
{
    extent_ref(extent);
    extent_unref(mapping->extent);
    mapping->extent = extent;
}

/* Measured before the original goes. */
static void keep_receipts(struct core *core, const struct plan *plan)
{
    const struct buffer *worst = NULL;

    for (uint32_t i = 0; plan->receipts && i < plan->packing->n_packed; i++) {
        struct buffer *buffer = buffer_get(core, plan->packing->packed[i].buffer);
        if (!buffer)
            continue;
        receipt_take(buffer, plan->packing->packed[i].encoding.codec, &plan->receipts[i].receipt,
                     &plan->receipts[i].quality);
        ledger_put_buffer(core, buffer);
        if (!worst || buffer->receipt.sqnr_db < worst->receipt.sqnr_db)
            worst = buffer;
    }
    if (worst) /* one event an arena: a model that is parked has as many buffers as the ring has events */
        receipt_tell(worst);
}

static void swap_arena(struct core *core, struct plan *plan, bool live)
{
    struct arena *arena = arena_get(core, plan->arena);

    if (!arena)
        return;
    struct extent *old = arena->extent;
    arena->extent = TAKE_PTR(plan->target);
    arena->parked_size = 0;
    arena->prefetched &= arena_tier(arena) == HBM_TIER_DEVICE;
    arena->live = live && arena_tier(arena) == HBM_TIER_HOST && !arena->extent->packing && arena_is_leased(arena);
    pressure_moved(arena, old->tier);
    weight_moved(arena);
    list_for_each_safe (node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        /* Another form under an address that is held would be read as the old one: those who have it keep the old
         * extent, away or not. A mere move leaves them to fetch the new extent at their next lock. */
        point_at(mapping, changes_form(plan) ? old : arena->extent);
        if (changes_form(plan)) {
            mapping_retire(mapping);
            mapping->retired = mapping->session->retired = true;
        }
        if (arena->live)
            extent_export(arena->extent, mapping->access);
    }
    coming_is_here(arena);
    ledger_put_extent(core, arena->extent); /* again: now it has a checksum */
    ledger_put_arena(core, arena);
    for (size_t i = 0; i < plan->n_placements; i++)
        place(core, &plan->placements[i]);
    keep_receipts(core, plan);
    extent_unref(old);
}

int commit_swap(struct transition *transition, struct plan *plans, size_t n)
{
    struct core *core = transition->core;
    int error = 0;

    for (size_t i = 0; i < n && !error; i++)
        error = check_now(transition, &plans[i]);
    for (size_t i = 0; i < n && !error; i++)
        error = prepare(transition, &plans[i]);
    if (error) {
        for (size_t i = 0; i < n; i++)
            undo_prepare(transition, &plans[i]);
        return error;
    }
    /* One record: a crash finds all of it or nothing. plan->source still holds the old extents, whose tombstones
     * and removal from the store come after it. */
    ledger_begin(core);
    for (size_t i = 0; i < n; i++)
        swap_arena(core, &plans[i], transition->live);
    list_for_each (node, &core->sessions)
        put_leases(list_entry(node, struct session, node));
    ledger_end(core);
    return 0;
}
