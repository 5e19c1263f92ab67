/* Models: a table and its arenas, attached in one round trip. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/error.h"
#include "client/lib/fetch.h"
#include "client/lib/lease.h"
#include "client/lib/residency.h"
#include "proto/memfd.h"

uint64_t model_free(hbm_model *model)
{
    if (model->holds && !model->session->inert)
        ahead_end(model);
    for (uint32_t i = 0; model->holds && !model->session->inert && i < model->table.header->n_arenas; i++)
        mapping_leave(model->session, &model->holds[i]);
    uint64_t life = session_remove(model->session, &model->node);
    if (model->bytes)
        munmap(model->bytes, model->size);
    free(model->holds);
    free(model->each);
    free(model->names.rows);
    ahead_clear(&model->ahead);
    free(model);
    return life;
}

static int check_rows(const struct table *table)
{
    for (uint32_t i = 0; i < table->header->n_buffers; i++) {
        const struct table_buffer *row = &table->buffers[i];
        uint64_t size = table->arenas[row->arena].size;
        if (row->offset > size || row->size > size - row->offset)
            return set_error(HBM_E_BAD_REQUEST, "the model's buffer %u lies outside its arena", i);
    }
    return 0;
}

static int open_table(hbm_model *model, int fd)
{
    const char *why = "it is not a sealed memfd";

    model->bytes = fd < 0 ? NULL : memfd_map_sealed(fd, TABLE_BYTES_MAX, &model->size);
    if (!model->bytes || !table_open(&model->table, model->bytes, model->size, &why))
        return set_error(HBM_E_BAD_REQUEST, "the model's table: %s", why);
    int error = check_rows(&model->table);
    uint32_t n = model->table.header->n_buffers;
    if (!error)
        error = name_index_init(&model->names, n);
    for (uint32_t i = 0; i < n && !error; i++)
        name_index_add(&model->names, model->table.strings + model->table.buffers[i].name, i);
    return error;
}

int model_lock_holds(hbm_model *model, struct hold *const *holds, unsigned n, uint32_t timeout_ms)
{
    unsigned at = 0;

    while (at < n) {
        unsigned some = n - at < WIRE_SLOTS_MAX ? n - at : WIRE_SLOTS_MAX;
        int error = residency_lock(model->session, holds + at, some, timeout_ms);
        if (error) {
            struct error_kept kept;
            error_keep(&kept);
            while (at--)
                residency_unlock(model->session, holds[at], NULL, 0);
            error_restore(&kept);
            return error;
        }
        at += some;
    }
    return 0;
}

static int join_arenas(hbm_model *model, struct conn_fds *fds, uint64_t before, unsigned flags, uint32_t timeout_ms)
{
    bool lock = !(flags & HBM_UNLOCKED);
    uint32_t n = model->table.header->n_arenas;
    FREE struct hold **rest = calloc(n + 1, sizeof(*rest));
    unsigned next_fd = 1, n_rest = 0;
    int error = 0;

    model->holds = calloc(n + 1, sizeof(*model->holds));
    model->each = calloc(n + 1, sizeof(*model->each));
    if (!rest || !model->holds || !model->each)
        return set_system_error("malloc", ENOMEM);
    for (uint32_t i = 0; i < n && !error; i++) {
        const struct table_arena *row = &model->table.arenas[i];
        bool has_fd = row->present && row->handle == HBM_HANDLE_FD;
        int CLOSE_FD fd = has_fd ? conn_take_fd(fds, next_fd++) : -1;
        struct arena_grant arena = {
            .arena = row->arena,
            .size = row->size,
            .slot = row->slot,
            .device = row->device,
            .handle = row->handle,
            .access = model->access,
            .present = row->present,
            .in_place = flags & HBM_IN_PLACE,
            .ipc_handle = row->ipc_handle,
            .life = fds->life,
        };
        error = mapping_join(model->session, &arena, fd, before, lock, &model->holds[i]);
        model->each[i] = &model->holds[i];
        if (!error && lock && !model->holds[i].locks)
            rest[n_rest++] = &model->holds[i];
    }
    return error ? error : model_lock_holds(model, rest, n_rest, timeout_ms);
}

int model_take(hbm_session *session, uint64_t lease, uint32_t access, bool building, unsigned flags, uint32_t n_fds,
               struct conn_fds *fds, uint64_t before, uint32_t timeout_ms, hbm_model **ret)
{
    int CLOSE_FD table = conn_take_fd(fds, 0);
    hbm_model *model = calloc(1, sizeof(*model));
    int error;

    if (!model) {
        error = set_system_error("malloc", ENOMEM);
        lease_give_back(session, lease, fds->life);
        return error;
    }
    *model = (struct hbm_model){
        .session = session, .lease = lease, .access = access, .building = building, .life = fds->life};
    ahead_init(&model->ahead);
    if (!session_add(session, &session->models, &model->node, fds->life)) {
        ahead_clear(&model->ahead);
        free(model);
        return CONN_CUT;
    }
    if (fds->n != n_fds)
        error = set_error(HBM_E_BAD_REQUEST, "%u of the model's %u descriptors came", fds->n, n_fds);
    else
        error = open_table(model, table);
    if (!error)
        error = join_arenas(model, fds, before, flags, timeout_ms);
    if (error) {
        uint64_t life = model_free(model);
        lease_give_back(session, lease, life);
        return building && life != fds->life ? CONN_CUT : error; /* discarded: that is why */
    }
    model->whole = true;
    *ret = model;
    return 0;
}

int hbm_model_attach(hbm_session *session, const char *name, unsigned access, unsigned flags, uint32_t timeout_ms,
                     hbm_model **ret)
{
    struct wire_attach_model_request request = {.access = access, .flags = flags, .timeout_ms = timeout_ms};
    int error = session_check(session);

    if (!error)
        error = check_text("name", name, HBM_NAME_MAX);
    if (error)
        return error;
    if (!ret || access > HBM_RW || flags & ~(unsigned)(HBM_WAIT | HBM_UNLOCKED | HBM_IN_PLACE))
        return set_error(HBM_E_INVALID, "%s", !ret ? "ret is NULL" : access > HBM_RW ? "access" : "flags");
    strcpy(request.name, name);
    do {
        struct wire_attach_model_reply reply;
        CONN_FDS fds = {0};
        uint64_t before = mapping_epoch(session);
        error = conn_call_again(&session->conn, WIRE_ATTACH_MODEL, &request, &request.timeout_ms, &reply, &fds);
        if (!error)
            error = model_take(session, reply.lease, access, false, flags, reply.n_fds_total,
                               &fds, before, timeout_ms, ret);
        else if (reply.lease)
            lease_give_back(session, reply.lease, fds.life);
    } while (error == CONN_CUT);
    return error;
}

static int model_check(const hbm_model *model)
{
    return model ? session_check(model->session) : set_error(HBM_E_INVALID, "the model is NULL");
}

int hbm_model_detach(hbm_model *model)
{
    int error = model_check(model);

    if (error)
        return error;
    if (model->building)
        return hbm_publish_abort(model);
    hbm_session *session = model->session;
    uint64_t lease = model->lease;
    bool lost = model->lost;
    uint64_t life = model_free(model);
    return lost ? 0 : lease_end(session, lease, life);
}

unsigned hbm_model_count(const hbm_model *model)
{
    return model->table.header->n_buffers;
}

void hbm_model_buffer(const hbm_model *model, unsigned i, struct hbm_info *ret)
{
    const struct table_buffer *row = &model->table.buffers[i];
    const struct table_arena *arena = &model->table.arenas[row->arena];
    const struct mapping *mapping = model->holds[row->arena].mapping;
    const char *group = model->table.strings + arena->group;
    uint64_t word = mapping_word(model->session, mapping);

    *ret = (struct hbm_info){
        .id = row->buffer,
        .pointer = word & LOCKWORD_AWAY ? NULL : (char *)mapping->place.address + row->offset,
        .size = row->size,
        .name = model->table.strings + row->name,
        .group = *group ? group : NULL,
        .device = arena->device,
        .dtype = row->dtype,
        .rank = row->rank,
        .version = row->version,
        .access = model->access,
        .handle = arena->handle,
        .encoding = row->encoding,
        .tier = word & LOCKWORD_HOST ? HBM_TIER_HOST : HBM_TIER_DEVICE,
    };
    memcpy(ret->dims, row->dims, sizeof(ret->dims));
}

int hbm_model_find(const hbm_model *model, const char *tensor)
{
    int64_t found = tensor ? name_index_find(&model->names, tensor) : -1;

    return found < 0 ? set_error(HBM_E_NOT_FOUND, "tensor %s", tensor ? tensor : "NULL") : (int)found;
}

const void *hbm_model_metadata(const hbm_model *model, size_t *size)
{
    *size = model->table.header->metadata_bytes;
    return model->table.metadata;
}

/* The hold of a group, or all. */
static int pick(hbm_model *model, const char *group, struct hold *const **ret, unsigned *n)
{
    int error = model_check(model);
    uint32_t i = 0;

    if (error)
        return error;
    *ret = model->each;
    *n = model->table.header->n_arenas;
    if (!group)
        return 0;
    while (i < *n && strcmp(group, model->table.strings + model->table.arenas[i].group) != 0)
        i++;
    if (i == *n)
        return set_error(HBM_E_NOT_FOUND, "group %s", group);
    *ret += i;
    *n = 1;
    return 0;
}

int hbm_model_unlock(hbm_model *model, const char *group, void *const *streams, unsigned n)
{
    struct hold *const *holds = NULL;
    unsigned n_holds = 0;
    int first = pick(model, group, &holds, &n_holds);

    if (!first && n && !streams)
        first = set_error(HBM_E_INVALID, "streams is NULL");
    if (first)
        return first;
    for (unsigned i = 0; i < n_holds; i++) {
        int error = residency_unlock(model->session, holds[i], streams, n);
        if (!error)
            ahead_leaves(model, holds[i]);
        first = first ? first : error;
    }
    return first;
}

/* One after the other; all or nothing. */
static int lock_holds_on(hbm_model *model, struct hold *const *holds, unsigned n, void *stream, uint32_t timeout_ms)
{
    for (unsigned i = 0; i < n; i++) {
        int error = residency_lock_on(model->session, holds[i], stream, timeout_ms);
        if (!error)
            continue;
        struct error_kept kept;
        error_keep(&kept);
        while (i--)
            residency_unlock(model->session, holds[i], NULL, 0);
        error_restore(&kept);
        return error;
    }
    return 0;
}

static int lock(hbm_model *model, const char *group, bool by_stream, void *stream, uint32_t timeout_ms)
{
    struct hold *const *holds = NULL;
    unsigned n = 0;
    int error = pick(model, group, &holds, &n);

    if (!error && model->lost)
        error = lease_set_lost();
    if (error)
        return error;
    if (group)
        ahead_moves_to(model, holds[0]);
    error = by_stream ? lock_holds_on(model, holds, n, stream, timeout_ms) : model_lock_holds(model, holds, n, timeout_ms);
    if (!error && group)
        ahead_of(model, holds, n);
    /* Its arenas are none of the next daemon's. */
    return error && model->building && model->session->conn.life != model->life ? model_set_discarded() : error;
}

int hbm_model_lock(hbm_model *model, const char *group, uint32_t timeout_ms)
{
    return lock(model, group, false, NULL, timeout_ms);
}

int hbm_model_lock_on(hbm_model *model, const char *group, void *stream, uint32_t timeout_ms)
{
    return lock(model, group, true, stream, timeout_ms);
}
