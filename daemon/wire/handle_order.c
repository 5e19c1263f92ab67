/* The order in which a client uses a model's groups. A hint that says nothing is none: there is no reply to refuse
 * it in. */
#include "daemon/wire/handlers.h"
#include "daemon/wire/pending.h"

void handle_ahead(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(ahead);

    (void)header;
    if (request->n <= WIRE_SLOTS_MAX)
        verb_ahead(link->core, link->session, request->slots, request->n);
}

void handle_behind(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(behind);

    (void)header;
    if (request->n <= WIRE_SLOTS_MAX)
        verb_behind(link->core, link->session, request->slots, request->n);
}

void handle_order(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(order);

    (void)header;
    if (request->n <= WIRE_SLOTS_MAX)
        verb_order(link->core, link->session, request->lease, request->at, request->slots, request->n);
}

void handle_window(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(window);

    if (request->groups == 0)
        REFUSE(HBM_E_INVALID, "a window of no groups");
    if (request->flags & ~WIRE_FORCE)
        REFUSE(HBM_E_INVALID, "flags 0x%x; a window takes FORCE", request->flags);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_done);
    if (pending)
        verb_window(link->core, &pending->call, request->lease, request->groups, request->flags & WIRE_FORCE);
}
