#include "daemon/wire/grant.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "proto/memfd.h"

int grant_fd(const struct mapping *mapping, int *fd)
{
    const struct extent *extent = mapping->extent;

    *fd = -1;
    if (!mapping->present || extent->fd < 0)
        return 0;
    /* A GPU's extent is read-only by how it is mapped; a memfd by how it was opened. */
    if (mapping->access == HBM_RO && !extent->device->is_cuda) {
        int again = memfd_reopen_read_only(extent->fd);
        if (again < 0)
            return again;
        *fd = again;
        return 0;
    }
    *fd = fcntl(extent->fd, F_DUPFD_CLOEXEC, 3);
    return *fd < 0 ? -errno : 0;
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
        .arena_size = extent->size,
        .offset = buffer->offset,
        .size = buffer->size,
        .encoding = buffer->encoding,
        .slot = mapping->slot,
        .device = listener_device_index(buffer->core, who, extent->device),
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
    _cleanup_fd_ int fd = -1;
    int error = grant_fd(lease->mappings[0], &fd);

    if (error) {
        link_refuse(pending->link, pending->opcode, pending->serial, HBM_E_SYSTEM,
                    "the memory's fd cannot be opened again: %s", strerror(-error));
        lease_free(lease);
        return;
    }
    fill(&reply.attach.grant, lease, &pending->call.who);
    pending_reply(pending, &reply, sizeof(reply), fd);
}
