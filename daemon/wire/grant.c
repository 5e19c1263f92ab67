#include "daemon/wire/grant.h"

#include <string.h>

#include "daemon/base/fd_reserve.h"
#include "daemon/core/names.h"

int grant_fd(const struct mapping *mapping, int *fd)
{
    *fd = -1;
    return mapping->present ? extent_fd_for(mapping->extent, mapping->access, fd) : 0;
}

static void fill(struct wire_grant *grant, const struct lease *lease, const struct principal *who)
{
    const struct buffer *buffer = lease->buffer;
    const struct mapping *mapping = lease->mappings[0];
    const struct extent *extent = mapping->extent;

    *grant = (struct wire_grant){
        .lease = lease->id,
        .buffer = buffer->id,
        .arena = buffer->arena->id,
        .arena_size = extent_raw_size(extent),
        .offset = buffer->offset,
        .size = buffer->size,
        .encoding = buffer->encoding,
        .slot = mapping->slot,
        .device = listener_device_index(buffer->core, who, buffer->arena->device),
        .handle = buffer->arena->handle,
        .access = lease->access,
        .dtype = buffer->dtype,
        .rank = buffer->rank,
        .version = buffer->version,
        .present = mapping->present,
    };
    memcpy(grant->dims, buffer->dims, sizeof(grant->dims));
    memcpy(grant->ipc_handle, extent->ipc_handle, sizeof(grant->ipc_handle));
    buffer_name_for(buffer, who, grant->name, sizeof(grant->name));
}

void grant_buffer(struct pending *pending, struct lease *lease)
{
    union {
        struct wire_alloc_reply alloc;
        struct wire_attach_reply attach; /* the same, a grant */
    } reply;
    int fd, error = grant_fd(lease->mappings[0], &fd);

    if (error) {
        link_refuse(pending->link, pending->opcode, pending->serial, fd_ran_out(-error) ? HBM_E_LIMIT : HBM_E_SYSTEM,
                    "the memory's fd cannot be opened again: %s", strerror(-error));
        lease_free(lease);
        return;
    }
    fill(&reply.attach.grant, lease, &pending->call.who);
    pending_reply(pending, &reply, sizeof(reply), fd);
}
