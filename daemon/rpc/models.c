/* hbm.models and hbm.sessions. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

static bool is_lost(const struct model *model)
{
    list_for_each (node, &model->buffers)
        if (list_entry(node, struct buffer, model_node)->arena->extent->lost)
            return true;
    return false;
}

static const char *state_text(const struct model *model)
{
    if (is_lost(model))
        return "lost";
    return model->state == MODEL_SEALED && !model->listed ? "replaced" : model_state_name(model->state);
}

static void write_by_tier(struct writer *writer, const char *name, const uint64_t bytes[HBM_PLACES])
{
    write_open(writer, name, '{');
    for (unsigned tier = 0; tier < HBM_PLACES; tier++)
        write_number(writer, hbm_tier_name(tier), bytes[tier]);
    write_close(writer, '}');
}

static void write_sizes(struct writer *writer, const struct model *model)
{
    uint64_t bytes[HBM_PLACES], total = 0;

    model_bytes(model, bytes);
    for (unsigned tier = 0; tier < HBM_PLACES; tier++)
        total += bytes[tier];
    write_number(writer, "bytes", total);
    write_by_tier(writer, "bytes_by_tier", bytes);
    model_stored_bytes(model, bytes);
    write_by_tier(writer, "stored_by_tier", bytes);
}

/* As a client declared it last. */
static void write_order(struct writer *writer, const struct model *model)
{
    if (!model->n_order) {
        write_null(writer, "order");
        return;
    }
    write_open(writer, "order", '[');
    for (uint32_t i = 0; i < model->n_order; i++) {
        const struct arena *arena = arena_get(model->core, model->order[i]);
        if (arena)
            write_string(writer, NULL, arena->group);
    }
    write_close(writer, ']');
}

static bool has_window(const struct lease *lease)
{
    for (uint32_t i = 0; i < lease->n_mappings; i++)
        if (mapping_is_wanted(lease->mappings[i]))
            return true;
    return false;
}

/* Of each lease that has one, where it stands now. */
static void write_windows(struct writer *writer, struct lease_index *index, const struct model *model)
{
    struct lease_entry *entry = lease_index_find(index, model->id);

    write_open(writer, "windows", '[');
    for (; entry && !writer_has_failed(writer); entry = lease_index_next(index, entry)) {
        const struct lease *lease = entry->lease;
        if (!has_window(lease))
            continue;
        write_open(writer, NULL, '{');
        write_integer(writer, "pid", lease->session->pid);
        write_id(writer, "session", lease->session->id);
        write_open(writer, "groups", '[');
        for (uint32_t i = 0; i < lease->n_mappings; i++)
            if (mapping_is_wanted(lease->mappings[i]))
                write_string(writer, NULL, lease->mappings[i]->arena->group);
        write_close(writer, ']');
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

void write_model(struct writer *writer, struct lease_index *index, const struct principal *who,
                 const struct model *model)
{
    const struct lease *builder = model->builder_lease ? lease_get(model->core, model->builder_lease) : NULL;
    struct list *first = list_first(&model->buffers);
    char name[NAME_FOR_MAX];

    model_name_for(model, who, name, sizeof(name));
    write_open(writer, NULL, '{');
    write_id(writer, "id", model->id);
    write_string(writer, "name", name);
    write_string(writer, "key", model->key);
    write_string(writer, "state", state_text(model));
    write_number(writer, "owner", model->owner.uid);
    write_listener(writer, model->core, model->owner.listener);
    if (builder)
        write_integer(writer, "builder_pid", builder->session->pid);
    else
        write_null(writer, "builder_pid");
    write_number(writer, "buffers", model->n_buffers);
    write_number(writer, "groups", model->n_arenas);
    write_sizes(writer, model);
    write_text(writer, "layout_hash", "%016" PRIx64, model->layout_hash);
    write_string(writer, "device",
                 first ? list_entry(first, struct buffer, model_node)->arena->device->uuid : NULL);
    write_model_leases(writer, index, model);
    write_order(writer, model);
    write_windows(writer, index, model);
    write_lock_waits(writer, &model->lock_waits);
    write_close(writer, '}');
}

void handle_MODELS(struct request *request, const struct MODELS_args *args)
{
    const struct principal *who = &request->connection->who;
    _cleanup_(lease_index_clear) struct lease_index index = {0};
    const struct model *only = args->model ? names_resolve(&request->core->model_names, who, args->model) : NULL;

    if (args->model && (!only || !model_visible(only, who)))
        return answer_refuse(request, HBM_E_NOT_FOUND, "model %.200s", args->model);
    if (!lease_index_make(&index, request->core))
        return answer_refuse(request, INTERNAL_ERROR, "no memory for the answer");
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '[');
    list_for_each (node, &request->core->models) {
        const struct model *model = list_entry(node, struct model, node);
        if ((!only || model == only) && model_visible(model, who))
            write_model(writer, &index, who, model);
    }
    write_close(writer, ']');
    answer_end(request);
}

void write_origin(struct writer *writer, const struct session *session)
{
    const struct origin *origin = &session->origin;

    write_string(writer, "pod_uid", *origin->pod ? origin->pod : NULL);
    write_string(writer, "container_id", *origin->container ? origin->container : NULL);
}

void write_session(struct writer *writer, const struct session *session)
{
    struct awaiting awaiting;
    uint64_t bytes = 0;
    uint32_t n_leases = 0;

    list_for_each (node, &session->leases)
        n_leases++;
    list_for_each (node, &session->mappings)
        bytes += list_entry(node, struct mapping, session_node)->extent->size;
    write_open(writer, NULL, '{');
    write_id(writer, "session", session->id);
    write_integer(writer, "pid", session->pid);
    write_number(writer, "uid", session->who.owner.uid);
    write_listener(writer, session->core, session->who.owner.listener);
    write_string(writer, "client", session->client);
    write_origin(writer, session);
    write_string(writer, "state", session_state_name(session->state));
    write_number(writer, "leases", n_leases);
    write_number(writer, "bytes", bytes);
    write_real(writer, "seconds", (double)(core_now(session->core) - session->since_ms) / 1e3);
    if (session_awaiting(session, &awaiting)) {
        write_string(writer, "awaiting", awaiting.what);
        write_real(writer, "awaiting_seconds", (double)(core_now(session->core) - awaiting.since_ms) / 1e3);
        write_string(writer, "remedy", awaiting.remedy);
    } else {
        write_null(writer, "awaiting");
    }
    write_close(writer, '}');
}

void handle_SESSIONS(struct request *request, const struct SESSIONS_args *args)
{
    const struct principal *who = &request->connection->who;
    struct writer *writer = answer_begin(request);

    (void)args;
    write_open(writer, "result", '[');
    list_for_each (node, &request->core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        if (who->admin || owner_equal(session->who.owner, who->owner))
            write_session(writer, session);
    }
    write_close(writer, ']');
    answer_end(request);
}
