#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/wire/grant.h"
#include "daemon/wire/handlers.h"
#include "proto/memfd.h"

static void lease_granted(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);

    if (!pending_goes_on(pending, error))
        return;
    grant_model(pending, result);
    pending_free(pending);
}

static void committed(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);

    if (!pending_goes_on(pending, error))
        return;
    struct wire_commit_reply reply = {.layout_hash = *(uint64_t *)result};
    pending_reply(pending, &reply, sizeof(reply), -1);
    pending_free(pending);
}

void handle_attach_model(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(attach_model);
    struct attach_args args = {
        .access = request->access, .flags = request->flags, .timeout_ms = request->timeout_ms};

    if (!*request->name)
        REFUSE(HBM_E_INVALID, "a model is attached by name");
    if (request->access > HBM_RW)
        REFUSE(HBM_E_INVALID, "access %u is none", request->access);
    if (request->flags & ~(WIRE_WAIT | WIRE_UNLOCKED | WIRE_IN_PLACE))
        REFUSE(HBM_E_INVALID, "flags 0x%x; attaching a model takes WAIT, UNLOCKED and IN_PLACE", request->flags);

    struct pending *pending = pending_new(link, header->opcode, header->serial, lease_granted);
    if (!pending)
        return;
    memcpy(args.name, request->name, sizeof(args.name));
    verb_attach_model(link->core, &pending->call, &args);
}

void handle_publish(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(publish);
    struct publish_args args = {.device = request->device,
                                .mode = request->mode,
                                .flags = request->flags,
                                .timeout_ms = request->timeout_ms};
    const char *why = "";
    uint32_t priority;
    size_t size;

    if (request->mode & ~0666u)
        REFUSE(HBM_E_INVALID, "mode 0%o; permission bits are r and w only", request->mode);
    if (request->flags & ~(WIRE_WAIT | WIRE_SHARED | WIRE_REPLACE | WIRE_UNLOCKED | WIRE_PRIORITY_MASK) ||
        !wire_priority(request->flags, 0, &priority))
        REFUSE(HBM_E_INVALID, "flags 0x%x; publishing takes WAIT, SHARED, REPLACE, UNLOCKED and a priority",
               request->flags);
    void *bytes = memfd_map_sealed(packet->fds[0], TABLE_BYTES_MAX, &size);
    if (!bytes)
        REFUSE(HBM_E_INVALID, "the table is no sealed memfd of at most %zu MiB: %s", TABLE_BYTES_MAX >> 20,
               strerror(errno));
    if (!table_open(&args.table, bytes, size, &why)) {
        munmap(bytes, size);
        REFUSE(HBM_E_INVALID, "the table: %s", why);
    }
    struct pending *pending = pending_new(link, header->opcode, header->serial, lease_granted);
    if (pending) {
        memcpy(args.name, request->name, sizeof(args.name));
        memcpy(args.key, request->key, sizeof(args.key));
        verb_publish(link->core, &pending->call, &args);
    }
    munmap(bytes, size);
}

void handle_commit(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(commit);

    if (request->commit > 1)
        REFUSE(HBM_E_INVALID, "commit is 0 or 1");
    struct pending *pending = pending_new(link, header->opcode, header->serial, committed);
    if (pending)
        verb_commit(link->core, &pending->call, request->lease, request->commit);
}
