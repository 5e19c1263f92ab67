#include "daemon/core/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/names.h"

const char *model_state_name(enum model_state state)
{
    return state == MODEL_BUILDING ? "building" : "sealed";
}

struct model *model_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_MODEL);
}

struct model *model_new(struct core *core, struct owner owner, bool shared, uint32_t mode, const char *name, const char *key)
{
    struct model *model = calloc(1, sizeof(*model));
    uint64_t id = model ? idmap_add(&core->ids, ID_MODEL, model) : 0;

    if (!id) {
        free(model);
        return NULL;
    }
    model->id = id;
    model->core = core;
    model->owner = owner;
    model->shared = shared;
    model->mode = mode;
    model->metadata_fd = -1;
    snprintf(model->name, sizeof(model->name), "%s", name);
    snprintf(model->key, sizeof(model->key), "%s", key);
    list_init(&model->buffers);
    list_init(&model->waiters);
    list_append(&core->models, &model->node);
    core->n_models++;
    return model;
}

void model_wake_waiters(struct model *model)
{
    struct list *node, woken;

    list_move_all(&woken, &model->waiters); /* as arena_settled does */
    while ((node = list_first(&woken))) {
        list_unlink(node);
        struct model_wait *wait = list_entry(node, struct model_wait, node);
        wait->ready(wait);
    }
}

void model_unlist(struct model *model)
{
    if (!model->listed)
        return;
    names_remove(&model->core->model_names, owner_scope(model->owner, model->shared), model->name);
    model->listed = false;
    list_for_each(node, &model->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, model_node);
        buffer_unlist(buffer);
        FOR_EACH_PART(part, buffer)
            buffer_unlist(part);
    }
    model_wake_waiters(model);
}

int model_list(struct model *model, char *detail)
{
    int error = names_add(&model->core->model_names, owner_scope(model->owner, model->shared), model->name, model);

    if (error) {
        snprintf(detail, HBM_DETAIL_MAX, "model %.200s", model->name);
        return error == -EEXIST ? HBM_E_EXISTS : HBM_E_NO_MEMORY;
    }
    model->listed = true;
    list_for_each(node, &model->buffers) {
        struct buffer *buffer = list_entry(node, struct buffer, model_node);
        error = buffer_list(buffer, detail);
        FOR_EACH_PART(part, buffer)
            error = error ? error : buffer_list(part, detail);
        if (error) {
            model_unlist(model);
            return error;
        }
    }
    return 0;
}

static void drop_metadata(struct model *model)
{
    char name[STORE_NAME_MAX];

    if (model->is_object)
        account_release(account_of(model->core, model->owner), ACCOUNT_OBJECTS, 1);
    model->is_object = false;
    if (model->metadata_fd < 0)
        return;
    snprintf(name, sizeof(name), "m-%016" PRIx64, model->id);
    if (model->core->env.unstore)
        model->core->env.unstore(model->core->env.context, name);
    model->metadata_fd = fd_close(model->metadata_fd);
}

struct model *model_free(struct model *model)
{
    struct core *core = model->core;

    ledger_begin(core);
    ledger_drop(core, model->id); /* first: without it, none of its buffers comes back */
    list_for_each (node, &model->buffers)
        ledger_drop(core, list_entry(node, struct buffer, model_node)->id);
    ledger_end(core);
    model_unlist(model);
    while (!list_empty(&model->buffers))
        buffer_free(list_entry(list_first(&model->buffers), struct buffer, model_node));
    drop_metadata(model);
    list_unlink(&model->node);
    core->n_models--;
    ledger_drop(core, model->id); /* again: a ledger made anew meanwhile, after want of memory, has a row of it */
    idmap_remove(&core->ids, model->id);
    model_wake_waiters(model);
    free(model->order);
    free(model);
    return NULL;
}

void model_release(struct model *model)
{
    /* All of them keep an unlisted model. */
    if (!model->listed && !model->n_leases && !model->n_buffer_leases)
        model_free(model);
}

struct arena **model_arenas(const struct model *model)
{
    struct arena **arenas = calloc(model->n_arenas + 1, sizeof(*arenas));
    uint64_t visit = ++model->core->visits;
    uint32_t n = 0;

    if (!arenas)
        return NULL;
    list_for_each(node, &model->buffers) {
        struct arena *arena = list_entry(node, struct buffer, model_node)->arena;
        if (arena->visit != visit && n < model->n_arenas)
            arenas[n++] = arena;
        arena->visit = visit;
    }
    return arenas;
}

struct arena **model_arenas_by_use(const struct model *model)
{
    struct arena **arenas = model_arenas(model);
    _cleanup_free_ struct arena **rest = model->n_order && arenas ? model_arenas(model) : NULL;
    uint64_t visit = ++model->core->visits;
    uint32_t n = 0;

    if (!rest)
        return arenas;
    for (uint32_t i = 0; i < model->n_order; i++) {
        struct arena *arena = arena_get(model->core, model->order[i]);
        if (!arena || arena->visit == visit)
            continue;
        arena->visit = visit;
        arenas[n++] = arena;
    }
    for (uint32_t i = 0; i < model->n_arenas; i++)
        if (rest[i]->visit != visit)
            arenas[n++] = rest[i];
    return arenas;
}

void model_stored_bytes(const struct model *model, uint64_t bytes[HBM_PLACES])
{
    memset(bytes, 0, HBM_PLACES * sizeof(*bytes));
    list_for_each(node, &model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        bytes[arena_tier(buffer->arena)] += buffer_stored_size(buffer);
    }
}

void model_bytes(const struct model *model, uint64_t bytes[HBM_PLACES])
{
    memset(bytes, 0, HBM_PLACES * sizeof(*bytes));
    list_for_each(node, &model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        bytes[arena_tier(buffer->arena)] += buffer->size + buffer_parts_size(buffer);
    }
}
