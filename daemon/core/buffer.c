#include "daemon/core/buffer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/model.h"
#include "daemon/core/names.h"
#include "daemon/core/observation.h"
#include "daemon/core/weight.h"

static struct owner name_scope(const struct arena *arena)
{
    return owner_scope(arena->owner, arena->shared);
}

static int enter(struct buffer *buffer, const char *name, char *detail)
{
    int error = name ? names_add(&buffer->core->buffer_names, name_scope(buffer->arena), name, buffer) : -ENOMEM;

    if (error == -EEXIST) {
        snprintf(detail, HBM_DETAIL_MAX, "%.200s", name);
        return HBM_E_EXISTS;
    }
    if (error) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    return 0;
}

int buffer_list(struct buffer *buffer, char *detail)
{
    int error = enter(buffer, buffer->name, detail);

    buffer->listed |= !error;
    return error;
}

void buffer_unlist(struct buffer *buffer)
{
    if (buffer->listed)
        names_remove(&buffer->core->buffer_names, name_scope(buffer->arena), buffer->name);
    buffer->listed = false;
}

int buffer_add_name(struct buffer *buffer, const char *name, char *detail)
{
    _cleanup_free_ char *copy = strdup(name);
    int error = enter(buffer, copy, detail);

    buffer->second_name = error ? NULL : TAKE_PTR(copy);
    return error;
}

void buffer_settle_name(struct buffer *buffer, bool second)
{
    char *name = TAKE_PTR(buffer->second_name);

    if (!name)
        return;
    if (!second) {
        names_remove(&buffer->core->buffer_names, name_scope(buffer->arena), name);
        free(name);
        return;
    }
    buffer_unlist(buffer);
    free(buffer->name);
    buffer->name = name;
    buffer->listed = true;
    ledger_put_buffer(buffer->core, buffer);
}

int buffer_rename(struct buffer *buffer, const char *name, char *detail)
{
    if (buffer->listed && !strcmp(buffer->name, name))
        return 0;
    int error = buffer_add_name(buffer, name, detail);
    buffer_settle_name(buffer, true);
    return error;
}

/* Name and charge, both or neither. */
static int take_identity(struct buffer *buffer, struct account *account, const struct buffer_spec *spec, char *detail)
{
    int error = account_charge(account, ACCOUNT_BUFFERS, 1, detail);

    if (error || !spec->name)
        return error;
    buffer->name = strdup(spec->name);
    if (!buffer->name) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        error = HBM_E_NO_MEMORY;
    } else if (!spec->unlisted) {
        error = buffer_list(buffer, detail);
    }
    if (error)
        account_release(account, ACCOUNT_BUFFERS, 1);
    return error;
}

struct buffer *buffer_new(struct arena *arena, const struct buffer_spec *spec, int *error, char *detail)
{
    struct core *core = arena->core;
    struct account *account = account_of(core, arena->owner);
    _cleanup_free_ struct buffer *buffer = calloc(1, sizeof(*buffer));
    uint64_t id = buffer && account ? idmap_add(&core->ids, ID_BUFFER, buffer) : 0;

    if (!id) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    buffer->id = id;
    buffer->core = core;
    buffer->arena = arena;
    buffer->dtype = spec->dtype;
    buffer->rank = spec->rank;
    if (spec->rank)
        memcpy(buffer->dims, spec->dims, spec->rank * sizeof(buffer->dims[0]));
    buffer->offset = spec->offset;
    buffer->size = spec->size;
    buffer->keep = spec->keep;
    buffer->version = 1;
    buffer->encoding.stored = (uint8_t)spec->dtype;
    list_init(&buffer->model_node);
    *error = take_identity(buffer, account, spec, detail);
    if (*error) {
        idmap_remove(&core->ids, id);
        free(buffer->name);
        return NULL;
    }
    list_append(&core->buffers, &buffer->node);
    list_append(&arena->buffers, &buffer->arena_node);
    core->n_buffers++;
    return TAKE_PTR(buffer);
}

struct buffer *buffer_free(struct buffer *buffer)
{
    struct core *core = buffer->core;
    struct arena *arena = buffer->arena;

    ledger_drop(core, buffer->id); /* first: it must not come back without its parts */
    observation_free(buffer->observation);
    FOR_EACH_PART(part, buffer)
        buffer_free(part);
    for (unsigned i = 0; buffer->parent && i < PARTS; i++)
        if (buffer->parent->parts[i] == buffer)
            buffer->parent->parts[i] = NULL;
    if (buffer->model)
        buffer->model->n_buffers--;
    weight_remove(buffer);
    buffer_unlist(buffer);
    list_unlink(&buffer->node);
    list_unlink(&buffer->arena_node);
    buffer->arena->parked_size = 0;
    list_unlink(&buffer->model_node);
    account_release(account_of(core, arena->owner), ACCOUNT_BUFFERS, 1);
    core->n_buffers--;
    idmap_remove(&core->ids, buffer->id);
    free(buffer->name);
    free(buffer);
    if (list_empty(&arena->buffers))
        arena_free(arena);
    return NULL;
}

struct buffer *buffer_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_BUFFER);
}

bool buffer_lacks_scales(const struct buffer *buffer)
{
    for (unsigned i = 0; i < PARTS; i++)
        if (part_has(i, buffer->encoding.codec) && !buffer->parts[i])
            return true;
    return false;
}

uint64_t buffer_raw_size(const struct buffer *buffer)
{
    uint64_t bytes = 0;

    hbm_shape_bytes(buffer->dims, buffer->rank, buffer->dtype, &bytes);
    return bytes;
}

void buffer_count_lease(struct buffer *buffer, int n)
{
    struct model *model = buffer->parent ? buffer->parent->model : buffer->model;

    buffer->n_leases += (uint32_t)n;
    if (model)
        model->n_buffer_leases += (uint32_t)n;
}

bool buffer_parts_are_leased(const struct buffer *buffer)
{
    bool leased = false;

    FOR_EACH_PART(part, buffer)
        leased |= part->n_leases != 0;
    return leased;
}

bool buffer_is_leased(const struct buffer *buffer)
{
    return buffer->n_leases || (buffer->model && buffer->model->n_leases) || buffer_parts_are_leased(buffer);
}

const struct packed *buffer_packed(const struct buffer *buffer)
{
    return packing_find(buffer->arena->extent->packing, buffer->id);
}

uint64_t buffer_parts_size(const struct buffer *buffer)
{
    uint64_t bytes = 0;

    FOR_EACH_PART(part, buffer)
        bytes += part->size;
    return bytes;
}

uint64_t buffer_stored_size(const struct buffer *buffer)
{
    const struct packed *packed = buffer_packed(buffer);

    return packed ? packed->bytes : buffer->size + buffer_parts_size(buffer);
}

void buffer_release(struct buffer *buffer)
{
    if (!buffer_is_leased(buffer) && !buffer->keep && !buffer->model && !buffer->parent)
        buffer_free(buffer);
}
