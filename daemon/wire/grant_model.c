/* A model's lease as its client gets it: the table, then one fd an arena, over as many packets as it takes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/listener.h"
#include "daemon/wire/grant.h"
#include "proto/memfd.h"

#include <sys/mman.h>

/* Index of an arena in the table, by address: buffers name theirs by pointer. */
struct place {
    const struct arena *arena;
    uint32_t index;
};

static int by_address(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->arena < y->arena ? -1 : x->arena > y->arena;
}

static int add_arenas(struct table_builder *builder, const struct lease *lease, struct place *places)
{
    for (uint32_t i = 0; i < lease->n_mappings; i++) {
        const struct mapping *mapping = lease->mappings[i];
        const struct extent *extent = mapping->extent;
        struct table_arena row = {
            .arena = mapping->arena->id,
            .size = extent_raw_size(extent),
            .slot = mapping->slot,
            .device = listener_device_index(mapping->session->core, &mapping->session->who, mapping->arena->device),
            .handle = mapping->arena->handle,
            .present = mapping->present,
        };
        memcpy(row.ipc_handle, extent->ipc_handle, sizeof(row.ipc_handle));
        int error = table_add_arena(builder, &row, mapping->arena->group);
        if (error)
            return error;
        places[i] = (struct place){mapping->arena, i};
    }
    qsort(places, lease->n_mappings, sizeof(*places), by_address);
    return 0;
}

static int add_buffer(struct table_builder *builder, const struct buffer *buffer, uint32_t arena, size_t prefix)
{
    struct table_buffer row = {
        .buffer = buffer->id,
        .offset = buffer->offset,
        .size = buffer->size,
        .encoding = buffer->encoding,
        .arena = arena,
        .dtype = buffer->dtype,
        .rank = buffer->rank,
        .version = buffer->version,
    };

    memcpy(row.dims, buffer->dims, sizeof(row.dims));
    return table_add_buffer(builder, &row, buffer->name ? buffer->name + prefix : "");
}

/* An encoded buffer's parts follow it, as "TENSOR.scale" and "TENSOR.zero": what reads the one needs the others. */
static int add_buffers(struct table_builder *builder, const struct lease *lease, const struct place *places)
{
    size_t prefix = strlen(lease->model->name) + 1; /* "MODEL/" */

    list_for_each (node, &lease->model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        struct place key = {.arena = buffer->arena};
        const struct place *place = bsearch(&key, places, lease->n_mappings, sizeof(key), by_address);
        int error = place ? add_buffer(builder, buffer, place->index, prefix) : -ESTALE;
        FOR_EACH_PART(part, buffer)
            error = error ? error : add_buffer(builder, part, place->index, prefix);
        if (error)
            return error;
    }
    return 0;
}

static int add_metadata(struct table_builder *builder, const struct model *model)
{
    size_t size;

    if (model->metadata_fd < 0)
        return 0;
    void *bytes = memfd_map_sealed(model->metadata_fd, TABLE_BYTES_MAX, &size);
    if (!bytes)
        return -errno;
    int error = table_set_metadata(builder, bytes, size);
    munmap(bytes, size);
    return error;
}

/* The table as a sealed memfd, or -errno. */
static int table_of(const struct lease *lease)
{
    struct table_builder builder = {0};
    _cleanup_free_ struct place *places = calloc(lease->n_mappings + 1, sizeof(*places));
    int result = places ? add_arenas(&builder, lease, places) : -ENOMEM;

    if (!result)
        result = add_buffers(&builder, lease, places);
    if (!result)
        result = add_metadata(&builder, lease->model);
    if (!result)
        result = table_finish(&builder, "hbm-table");
    table_builder_clear(&builder);
    return result;
}

/* Every fd of the answer: the table, which is the caller's, then the arenas', which are not. Returns their number or
 * -errno. */
static int collect(const struct lease *lease, int *fds)
{
    unsigned n = 1;

    fds[0] = table_of(lease);
    if (fds[0] < 0)
        return fds[0];
    for (uint32_t i = 0; i < lease->n_mappings; i++) {
        int error = grant_fd(lease->mappings[i], &fds[n]);
        if (error) {
            fd_close(fds[0]);
            return error;
        }
        n += fds[n] >= 0;
    }
    return (int)n;
}

static void send_in_packets(struct pending *pending, const void *body, size_t size, const int *fds, unsigned n)
{
    struct packet_header header = {.opcode = pending->opcode, .serial = pending->serial};

    for (unsigned sent = 0; sent < n;) {
        unsigned now = n - sent < PACKET_FDS_MAX ? n - sent : PACKET_FDS_MAX;
        header.more = sent + now < n;
        link_send(pending->link, &header, body, size, fds + sent, now);
        sent += now;
    }
}

void grant_model(struct pending *pending, struct lease *lease)
{
    union {
        struct wire_attach_model_reply attach;
        struct wire_publish_reply publish; /* the same */
    } reply;
    _cleanup_free_ int *fds = calloc(lease->n_mappings + 1, sizeof(*fds));
    int n = fds ? collect(lease, fds) : -ENOMEM;

    if (n < 0) {
        link_refuse(pending->link, pending->opcode, pending->serial, fd_ran_out(-n) ? HBM_E_LIMIT : HBM_E_SYSTEM,
                    "the model's table or fds cannot be made: %s", strerror(-n));
        lease_free(lease);
        return;
    }
    reply.publish = (struct wire_publish_reply){
        .lease = lease->id, .model = lease->model->id, .n_fds_total = (uint32_t)n, .must_build = lease->builder};
    send_in_packets(pending, &reply, sizeof(reply), fds, (unsigned)n);
    fd_close(fds[0]);
}
