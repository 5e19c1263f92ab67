/* hbm.ls, hbm.show and hbm.why_not_free. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "daemon/core/pressure.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/listing.h"
#include "daemon/rpc/rows.h"

static const char *handle_text(const struct arena *arena)
{
    if (arena->handle == HBM_HANDLE_FD)
        return arena->device->is_cuda ? "vmm-fd" : "memfd";
    return hbm_handle_name(arena->handle);
}

static const char *state_text(const struct buffer *buffer)
{
    if (buffer->arena->extent->lost)
        return "lost";
    if (buffer->model && buffer->model->state == MODEL_BUILDING)
        return "building";
    if (buffer->model && !buffer->model->listed)
        return "replaced";
    return buffer->arena->transition ? "moving" : "ready";
}

void write_priority(struct writer *writer, const struct arena *arena)
{
    if (arena->priority == PRIORITY_NEVER)
        write_string(writer, "priority", "never");
    else
        write_text(writer, "priority", "%u", arena->priority);
}

static void write_pressure(struct writer *writer, const struct arena *arena)
{
    char text[160];

    write_number(writer, "evictions", arena->eviction.n);
    write_number(writer, "bounces", arena->eviction.bounces);
    write_string(writer, "pressure", pressure_tells(arena, text, sizeof(text)) ? text : NULL);
}

static void write_receipt(struct writer *writer, const struct buffer *buffer)
{
    const struct hbm_receipt *receipt = &buffer->receipt;

    if (!buffer->has_receipt) {
        write_null(writer, "receipt");
        return;
    }
    write_open(writer, "receipt", '{');
    write_number(writer, "bytes_before", receipt->bytes_before);
    write_number(writer, "bytes_after", receipt->bytes_after);
    write_quality(writer, receipt, &buffer->quality);
    write_bool(writer, "lossless", buffer->quality.lossless);
    write_close(writer, '}');
}

static void write_optional(struct writer *writer, const char *key, const char *text)
{
    write_string(writer, key, *text ? text : NULL);
}

static void write_members(struct writer *writer, struct lease_index *index, const struct principal *who,
                          const struct buffer *buffer)
{
    const struct arena *arena = buffer->arena;
    const struct packed *packed = buffer_packed(buffer);
    char name[NAME_FOR_MAX], encoding[64];

    buffer_name_for(buffer, who, name, sizeof(name));
    hbm_encoding_text(&buffer->encoding, encoding, sizeof(encoding));
    write_id(writer, "id", buffer->id);
    write_optional(writer, "name", name);
    write_optional(writer, "group", arena->group);
    write_string(writer, "model", buffer->model ? buffer->model->name : NULL);
    write_number(writer, "owner", arena->owner.uid);
    write_listener(writer, buffer->core, arena->owner.listener);
    write_number(writer, "size", buffer_raw_size(buffer));
    write_number(writer, "stored_size", buffer_stored_size(buffer));
    write_string(writer, "dtype", hbm_dtype_name(buffer->dtype));
    write_open(writer, "shape", '[');
    for (uint32_t i = 0; i < buffer->rank; i++)
        write_number(writer, NULL, buffer->dims[i]);
    write_close(writer, ']');
    write_string(writer, "tier", hbm_tier_name(arena_tier(arena)));
    write_bool(writer, "live", arena->live);
    write_string(writer, "encoding", encoding);
    write_park(writer, "parks_as", &buffer->park.encoding);
    write_park(writer, "parked", packed ? &packed->encoding : &(struct hbm_encoding){0});
    write_string(writer, "handle", handle_text(arena));
    write_string(writer, "device", arena->device->uuid);
    write_string(writer, "peer", arena_peer(arena) ? arena_peer(arena)->uuid : NULL);
    write_number(writer, "version", buffer->version);
    write_string(writer, "state", state_text(buffer));
    write_bool(writer, "keep", buffer->keep);
    write_text(writer, "mode", "%04o", arena->mode);
    write_priority(writer, arena);
    write_buffer_leases(writer, index, buffer);
    write_receipt(writer, buffer);
}

void write_buffer(struct writer *writer, struct lease_index *index, const struct principal *who,
                  const struct buffer *buffer)
{
    write_open(writer, NULL, '{');
    write_members(writer, index, who, buffer);
    write_close(writer, '}');
}

/* Its group's place in the declared order, from 1 on, and who has it in a window of that. */
static void write_turn(struct writer *writer, const struct buffer *buffer)
{
    const struct model *model = buffer->model;
    const struct arena *arena = buffer->arena;
    uint32_t turn = 0;

    while (model && turn < model->n_order && model->order[turn] != arena->id)
        turn++;
    if (model && turn < model->n_order)
        write_number(writer, "turn", turn + 1);
    else
        write_null(writer, "turn");
    write_open(writer, "in_window_of", '[');
    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping_is_wanted(mapping))
            write_integer(writer, NULL, mapping->session->pid);
    }
    write_close(writer, ']');
}

static void write_everything(struct writer *writer, struct lease_index *index, const struct principal *who,
                             const struct buffer *buffer)
{
    write_open(writer, NULL, '{');
    write_members(writer, index, who, buffer);
    write_observed(writer, buffer);
    write_pressure(writer, buffer->arena);
    write_turn(writer, buffer);
    write_lock_waits(writer, &buffer->arena->lock_waits);
    write_keepers(writer, "kept_by", index, who, buffer);
    write_close(writer, '}');
}

static void write_why(struct writer *writer, struct lease_index *index, const struct principal *who,
                      const struct buffer *buffer)
{
    char name[NAME_FOR_MAX];

    buffer_name_for(buffer, who, name, sizeof(name));
    write_open(writer, NULL, '{');
    write_id(writer, "id", buffer->id);
    write_optional(writer, "name", name);
    write_number(writer, "size", buffer->size);
    write_string(writer, "tier", hbm_tier_name(arena_tier(buffer->arena)));
    write_string(writer, "device", buffer->arena->device->uuid);
    write_keepers(writer, "kept_by", index, who, buffer);
    write_close(writer, '}');
}

static bool wanted(const struct buffer *buffer, const struct principal *who, const char *glob)
{
    char name[NAME_FOR_MAX];

    if (!glob)
        return true;
    buffer_name_for(buffer, who, name, sizeof(name));
    return *name && (!strcmp(name, glob) || !fnmatch(glob, name, 0));
}

/* Everything, the nameless included, which no selector names. */
static void list_all(struct request *request)
{
    struct listing *listing = listing_new(request, request->core->n_buffers, write_buffer);

    if (!listing)
        return;
    list_for_each (node, &request->core->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        if (!buffer->parent && buffer_visible(buffer, &request->connection->who))
            listing_add(listing, buffer);
    }
    listing_start(listing);
}

static void list_selection(struct request *request, const struct selection *selection, const char *glob,
                           listing_row row)
{
    struct listing *listing = listing_new(request, selection->n, row);

    if (!listing)
        return;
    for (size_t i = 0; i < selection->n; i++)
        if (wanted(selection->buffers[i], &request->connection->who, glob))
            listing_add(listing, selection->buffers[i]);
    listing_start(listing);
}

void handle_LS(struct request *request, const struct LS_args *args)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "", group[HBM_NAME_MAX + 8];
    int error;

    if (!args->glob && !args->group)
        return list_all(request);
    snprintf(group, sizeof(group), "group:%s", args->group ? args->group : "");
    error = select_buffers(request->core, &request->connection->who, args->group ? group : args->glob, &selection,
                           detail);
    /* A list of nothing is an answer, not an error. */
    if (error && error != HBM_E_NOT_FOUND)
        return answer_refuse(request, error, "%s", detail);
    list_selection(request, &selection, args->group ? args->glob : NULL, write_buffer);
}

/* A row of `row` for each buffer of the selector. */
static void list_each(struct request *request, const char *sel, listing_row row)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(request->core, &request->connection->who, sel, &selection, detail);

    if (error)
        return answer_refuse(request, error, "%s", detail);
    list_selection(request, &selection, NULL, row);
}

void handle_SHOW(struct request *request, const struct SHOW_args *args)
{
    list_each(request, args->sel, write_everything);
}

static bool awaited(struct lease_index *index, uint64_t held)
{
    struct lease_entry *entry = lease_index_find(index, held);

    while (entry && entry->lease->session->state != SESSION_QUARANTINED)
        entry = lease_index_next(index, entry);
    return entry;
}

static bool is_awaited(struct lease_index *index, const struct buffer *buffer)
{
    FOR_EACH_PART(part, buffer)
        if (awaited(index, part->id))
            return true;
    return awaited(index, buffer->id) || (buffer->model && awaited(index, buffer->model->id));
}

/* What a client that has ended still holds. */
static void list_awaited(struct request *request)
{
    _cleanup_(lease_index_clear) struct lease_index index = {0};
    bool anybody = request->core->n_quarantined;

    if (anybody && !lease_index_make(&index, request->core))
        return answer_refuse(request, INTERNAL_ERROR, "no memory for the answer");
    struct listing *listing = listing_new(request, anybody ? request->core->n_buffers : 0, write_why);
    if (!listing)
        return;
    list_for_each (node, &request->core->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        if (!anybody)
            break;
        if (!buffer->parent && buffer_visible(buffer, &request->connection->who) && is_awaited(&index, buffer))
            listing_add(listing, buffer);
    }
    listing_start(listing);
}

void handle_WHY_NOT_FREE(struct request *request, const struct WHY_NOT_FREE_args *args)
{
    if (!args->sel)
        return list_awaited(request);
    list_each(request, args->sel, write_why);
}
