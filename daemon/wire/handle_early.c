/* Locks of clients whose device waits for the bytes. */
#include "daemon/wire/grant.h"
#include "daemon/wire/handlers.h"

static void given(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);
    const uint64_t *coming = result;
    int fd = -1;

    if (!pending_goes_on(pending, error))
        return;
    struct wire_lock_early_reply reply = {.coming = (uint32_t)*coming};
    const struct mapping *mapping = mapping_by_slot(pending->link->session, pending->slot);
    int failed = *coming ? extent_fd_for(mapping->early, mapping->access, &fd) : grant_fd(mapping, &fd);
    /* Core counts it as given from here on, as of a lock. */
    if (failed)
        link_doom(pending->link, HBM_E_SYSTEM, "the daemon could not open the memory's fds again");
    else
        pending_reply(pending, &reply, sizeof(reply), fd);
    pending_free(pending);
}

void handle_lock_early(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(lock_early);

    if (!mapping_by_slot(link->session, request->slot))
        REFUSE(HBM_E_INVALID, "slot %u holds nothing of this session", request->slot);
    struct pending *pending = pending_new(link, header->opcode, header->serial, given);
    if (!pending)
        return;
    pending->slot = request->slot;
    verb_lock_early(link->core, &pending->call, request->slot, request->timeout_ms);
}

void handle_arrived(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(arrived);

    if (!mapping_by_slot(link->session, request->slot))
        REFUSE(HBM_E_INVALID, "slot %u holds nothing of this session", request->slot);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_done);
    if (pending)
        verb_arrived(link->core, &pending->call, request->slot, request->timeout_ms);
}
