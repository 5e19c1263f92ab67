/* Publishing a model: the caller's list becomes a table; the first asker gets arenas to fill. */
#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/lease.h"

#define TABLE_BUILDER __attribute__((cleanup(table_builder_clear))) struct table_builder
#define NAME_INDEX __attribute__((cleanup(name_index_clear))) struct name_index

static void name_index_clear(struct name_index *index)
{
    free(index->rows);
}

static int check_buffer(const struct hbm_publish_buffer *buffer, uint64_t *size)
{
    int error = check_text("a buffer's name", buffer->name, HBM_NAME_MAX);

    if (!error && buffer->group)
        error = check_text("a buffer's group", buffer->group, HBM_GROUP_MAX);
    if (error)
        return error;
    if (!hbm_dtype_name(buffer->dtype))
        return set_error(HBM_E_INVALID, "%s has dtype %u, which is none", buffer->name, buffer->dtype);
    if (!hbm_shape_bytes(buffer->dims, buffer->rank, buffer->dtype, size))
        return set_error(HBM_E_INVALID, "the shape of %s overflows or has more than %d dimensions", buffer->name,
                         HBM_RANK_MAX);
    return 0;
}

/* Groups in the order of their first buffer. */
static int group_index(struct table_builder *builder, struct name_index *groups, const char *group, uint32_t *ret)
{
    int64_t found = name_index_find(groups, group);

    if (found >= 0) {
        *ret = (uint32_t)found;
        return 0;
    }
    if (builder->header.n_arenas == TABLE_ARENAS_MAX)
        return set_error(HBM_E_INVALID, "more than %u groups", TABLE_ARENAS_MAX);
    *ret = builder->header.n_arenas;
    if (table_add_arena(builder, &(struct table_arena){0}, group))
        return set_system_error("malloc", ENOMEM);
    name_index_add(groups, group, *ret);
    return 0;
}

static int add_buffer(struct table_builder *builder, struct name_index *names, struct name_index *groups,
                      const struct hbm_publish_buffer *buffer)
{
    struct table_buffer row = {.dtype = buffer->dtype, .rank = buffer->rank};
    int error = check_buffer(buffer, &row.size);

    if (!error && !name_index_add(names, buffer->name, 0))
        error = set_error(HBM_E_INVALID, "%s is listed twice", buffer->name);
    if (!error)
        error = group_index(builder, groups, buffer->group ? buffer->group : "", &row.arena);
    if (error)
        return error;
    memcpy(row.dims, buffer->dims, buffer->rank * sizeof(row.dims[0]));
    return table_add_buffer(builder, &row, buffer->name) ? set_system_error("malloc", ENOMEM) : 0;
}

/* *ret is a sealed memfd. */
static int build_table(const struct hbm_publish *spec, int *ret)
{
    TABLE_BUILDER builder = {0};
    NAME_INDEX names = {0}, groups = {0};
    int error = name_index_init(&names, spec->n_buffers);

    if (!error)
        error = name_index_init(&groups, spec->n_buffers);
    for (unsigned i = 0; i < spec->n_buffers && !error; i++)
        error = add_buffer(&builder, &names, &groups, &spec->buffers[i]);
    if (!error && spec->metadata_size && table_set_metadata(&builder, spec->metadata, spec->metadata_size))
        error = set_system_error("malloc", ENOMEM);
    if (error)
        return error;
    *ret = table_finish(&builder, "hbm-table");
    return *ret < 0 ? set_system_error("memfd of the table", -*ret) : 0;
}

static int check_publish(const struct hbm_publish *spec, struct wire_publish_request *request)
{
    int error = spec ? check_text("name", spec->name, HBM_NAME_MAX) : set_error(HBM_E_INVALID, "spec is NULL");
    uint32_t priority;

    if (error)
        return error;
    if (spec->key && strlen(spec->key) >= sizeof(request->key))
        return set_error(HBM_E_INVALID, "key is longer than %zu bytes", sizeof(request->key) - 1);
    if (!wire_priority(spec->flags, 0, &priority))
        return set_error(HBM_E_INVALID, "priority %u is above HBM_NEVER", priority);
    if (spec->flags & ~(uint32_t)(HBM_SHARED | HBM_REPLACE | HBM_WAIT | HBM_UNLOCKED | WIRE_PRIORITY_MASK))
        return set_error(HBM_E_INVALID, "flags has bits that publishing does not take (0x%x)", spec->flags);
    if (!spec->buffers || spec->n_buffers == 0 || spec->n_buffers > TABLE_BUFFERS_MAX)
        return set_error(HBM_E_INVALID, "a model has 1 to %u buffers, not %u", TABLE_BUFFERS_MAX, spec->n_buffers);
    if ((spec->metadata_size && !spec->metadata) || spec->metadata_size > TABLE_BYTES_MAX / 2)
        return set_error(HBM_E_INVALID, "metadata is NULL or larger than %zu bytes", TABLE_BYTES_MAX / 2);
    request->device = spec->device;
    request->mode = spec->mode ? spec->mode : 0600;
    request->flags = spec->flags;
    strcpy(request->name, spec->name);
    if (spec->key)
        strcpy(request->key, spec->key);
    return 0;
}

int hbm_publish_begin(hbm_session *session, const struct hbm_publish *spec, uint32_t timeout_ms, hbm_model **ret,
                      int *must_build)
{
    struct wire_publish_request request = {.timeout_ms = timeout_ms};
    struct wire_publish_reply reply;
    CONN_FDS fds = {0};
    int CLOSE_FD table = -1;
    int error = session_check(session);

    if (!error && (!ret || !must_build))
        error = set_error(HBM_E_INVALID, "ret or must_build is NULL");
    if (!error)
        error = check_publish(spec, &request);
    if (!error)
        error = build_table(spec, &table);
    if (error)
        return error;
    uint64_t before = mapping_epoch(session);
    error = conn_call(&session->conn, WIRE_PUBLISH, &request, &reply, &table, 1, &fds);
    if (error) {
        if (reply.lease)
            lease_give_back(session, reply.lease, fds.life);
        return error;
    }
    *must_build = reply.must_build != 0;
    error = model_take(session, reply.lease, *must_build ? HBM_RW : HBM_RO, *must_build,
                       spec->flags & HBM_UNLOCKED, reply.n_fds_total, &fds, before, timeout_ms, ret);
    return error == CONN_CUT ? conn_retry() : error;
}

int model_set_discarded(void)
{
    return set_error(HBM_E_BUILDER_DIED, "the daemon restarted meanwhile, and discarded what was half-built");
}

static bool has_buffer(const hbm_model *model, uint64_t buffer)
{
    for (uint32_t i = 0; i < model->table.header->n_buffers; i++)
        if (model->table.buffers[i].buffer == buffer)
            return true;
    return false;
}

bool model_was_discarded(hbm_session *session, uint64_t buffer)
{
    bool found = false;

    pthread_mutex_lock(&session->mutex);
    for (struct node *node = session->models.next; node != &session->models && !found; node = node->next) {
        const hbm_model *model = CONTAINER(node, hbm_model, node);
        found = model->whole && model->building && model->life != session->conn.life && has_buffer(model, buffer);
    }
    pthread_mutex_unlock(&session->mutex);
    return found;
}

static int end_building(hbm_model *model, uint32_t commit)
{
    struct wire_commit_reply reply;

    if (!model)
        return set_error(HBM_E_INVALID, "the model is NULL");
    hbm_session *session = model->session;
    struct wire_commit_request request = {.lease = model->lease, .commit = commit};
    int error = session_check(session);
    if (!error && !model->building)
        error = set_error(HBM_E_INVALID, "the model was attached, not built, by this process");
    if (error)
        return error;
    uint64_t life = model->life;
    model_free(model);
    error = conn_call_in(&session->conn, life, WIRE_COMMIT, &request, &reply);
    if (error <= 0)
        return error;
    if (!commit) /* what a daemon was building, the next one has not */
        return 0;
    return error == CONN_CUT ? conn_retry() : model_set_discarded();
}

int hbm_publish_commit(hbm_model *model)
{
    return end_building(model, 1);
}

int hbm_publish_abort(hbm_model *model)
{
    return end_building(model, 0);
}
