#include <string.h>

#include "daemon/wire/grant.h"
#include "daemon/wire/handlers.h"

static void lease_granted(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);

    if (!pending_goes_on(pending, error))
        return;
    grant_buffer(pending, result);
    pending_free(pending);
}

void handle_alloc(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(alloc);
    const struct wire_spec *spec = &request->spec;
    struct alloc_args args = {
        .size = spec->size,
        .device = spec->device,
        .dtype = spec->dtype,
        .rank = spec->rank,
        .handle = spec->handle,
        .mode = spec->mode,
        .flags = spec->flags,
    };
    uint32_t priority;

    if (!hbm_dtype_name(spec->dtype))
        REFUSE(HBM_E_INVALID, "dtype %u is none", spec->dtype);
    if (spec->rank > HBM_RANK_MAX)
        REFUSE(HBM_E_INVALID, "rank %u; at most %u dimensions", spec->rank, HBM_RANK_MAX);
    if (spec->handle > HBM_HANDLE_CUDA_IPC)
        REFUSE(HBM_E_INVALID, "handle kind %u is none", spec->handle);
    if (spec->mode & ~0666u)
        REFUSE(HBM_E_INVALID, "mode 0%o; permission bits are r and w only", spec->mode);
    if (spec->flags & ~(WIRE_KEEP | WIRE_SHARED | WIRE_PRIORITY_MASK) || !wire_priority(spec->flags, 0, &priority))
        REFUSE(HBM_E_INVALID, "flags 0x%x; an allocation takes KEEP, SHARED and a priority", spec->flags);

    struct pending *pending = pending_new(link, header->opcode, header->serial, lease_granted);
    if (!pending)
        return;
    memcpy(args.dims, spec->dims, sizeof(args.dims));
    memcpy(args.name, spec->name, sizeof(args.name));
    memcpy(args.group, spec->group, sizeof(args.group));
    verb_alloc(link->core, &pending->call, &args);
}

void handle_attach(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(attach);
    struct attach_args args = {
        .id = request->id, .access = request->access, .flags = request->flags, .timeout_ms = request->timeout_ms};

    if (!request->id == !*request->name)
        REFUSE(HBM_E_INVALID, "give an id or a name, and not both");
    if (request->access > HBM_RW)
        REFUSE(HBM_E_INVALID, "access %u is none", request->access);
    if (request->flags & ~(WIRE_UNLOCKED | WIRE_IN_PLACE))
        REFUSE(HBM_E_INVALID, "flags 0x%x; an attach takes UNLOCKED and IN_PLACE", request->flags);

    struct pending *pending = pending_new(link, header->opcode, header->serial, lease_granted);
    if (!pending)
        return;
    memcpy(args.name, request->name, sizeof(args.name));
    verb_attach(link->core, &pending->call, &args);
}

void handle_detach(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(detach);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_done);

    if (pending)
        verb_detach(link->core, &pending->call, request->lease);
}

void handle_free(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(free);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_done);

    if (pending)
        verb_free(link->core, &pending->call, request->id);
}
