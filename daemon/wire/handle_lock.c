#include <string.h>

#include "daemon/wire/grant.h"
#include "daemon/wire/handlers.h"

/* The fds of the slots that are to be mapped anew, in the order in which they were asked for. */
static int collect(const struct pending *pending, const uint64_t fetched[2], int *fds, unsigned *n)
{
    for (uint32_t i = 0; i < pending->lock.n; i++) {
        struct mapping *mapping = mapping_by_slot(pending->link->session, pending->lock.slots[i]);
        int fd, error;

        if (!(fetched[i / 64] >> i % 64 & 1) || !mapping)
            continue;
        error = grant_fd(mapping, &fd);
        if (error)
            return error;
        if (fd >= 0)
            fds[(*n)++] = fd;
    }
    return 0;
}

static void locked(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);
    struct packet_header header = {.opcode = pending->opcode, .serial = pending->serial};
    struct wire_lock_reply reply = {.n = pending->lock.n};
    int fds[WIRE_SLOTS_MAX];
    unsigned n = 0;

    if (!pending_goes_on(pending, error))
        return;
    memcpy(reply.fetched, result, sizeof(reply.fetched));
    /* Core counts the arenas as mapped from here on, and a client that did not get them cannot be told so. */
    if (collect(pending, reply.fetched, fds, &n))
        link_doom(pending->link, HBM_E_SYSTEM, "the daemon could not open the memory's fds again");
    else
        link_send(pending->link, &header, &reply, sizeof(reply), fds, n);
    pending_free(pending);
}

void handle_lock(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(lock);
    struct pending *pending;

    if (request->n == 0 || request->n > WIRE_SLOTS_MAX)
        REFUSE(HBM_E_INVALID, "%u slots; a lock takes 1 to %u", request->n, WIRE_SLOTS_MAX);
    for (uint32_t i = 0; i < request->n; i++)
        if (!mapping_by_slot(link->session, request->slots[i]))
            REFUSE(HBM_E_INVALID, "slot %u holds nothing of this session", request->slots[i]);
    pending = pending_new(link, header->opcode, header->serial, locked);
    if (!pending)
        return;
    pending->lock.n = request->n;
    memcpy(pending->lock.slots, request->slots, sizeof(pending->lock.slots));
    verb_lock(link->core, &pending->call, pending->lock.slots, request->n, request->timeout_ms);
}

void handle_released(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(released);

    (void)header;
    verb_released(link->core, link->session, request->slot);
}
