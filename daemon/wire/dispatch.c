/* The one way in. Refusals stand in the order in which they are made; what is left is a request whose form is
 * right, and its handler judges what it asks for. A wrong form is a violation and ends the link; a wrong wish gets
 * a reply. */
#include "daemon/wire/dispatch.h"

#include "daemon/wire/check.h"
#include "daemon/wire/handlers.h"

typedef void (*handler)(struct link *link, const struct packet_header *header, struct packet *packet);

static const handler handlers[WIRE_OPCODES] = {
    [WIRE_HELLO] = handle_hello,
    [WIRE_DEVICE] = handle_device,
    [WIRE_ALLOC] = handle_alloc,
    [WIRE_ATTACH] = handle_attach,
    [WIRE_ATTACH_MODEL] = handle_attach_model,
    [WIRE_PUBLISH] = handle_publish,
    [WIRE_COMMIT] = handle_commit,
    [WIRE_LOCK] = handle_lock,
    [WIRE_RELEASED] = handle_released,
    [WIRE_DETACH] = handle_detach,
    [WIRE_FREE] = handle_free,
    [WIRE_BYE] = handle_bye,
    [WIRE_COMPRESS] = handle_compress,
    [WIRE_DECOMPRESS] = handle_decompress,
    [WIRE_OFFLOAD] = handle_offload,
    [WIRE_RESTORE] = handle_restore,
    [WIRE_TRANSFER] = handle_transfer,
    [WIRE_OP_WAIT] = handle_op_wait,
    [WIRE_OP_CANCEL] = handle_op_cancel,
    [WIRE_RESUME] = handle_resume,
    [WIRE_PREFETCH] = handle_prefetch,
    [WIRE_AHEAD] = handle_ahead,
    [WIRE_BEHIND] = handle_behind,
    [WIRE_ORDER] = handle_order,
    [WIRE_WINDOW] = handle_window,
    [WIRE_LOCK_EARLY] = handle_lock_early,
    [WIRE_ARRIVED] = handle_arrived,
    [WIRE_OBSERVE_BATCH] = handle_observe_batch,
    [WIRE_OBSERVED] = handle_observed,
    [WIRE_COMPRESS_BY] = handle_compress_by,
};

static const char *violation(const struct link *link, const struct packet *packet, const struct wire_row *row)
{
    const struct packet_header *header = &packet->header;

    if (!row)
        return "an unknown opcode";
    if (row->opcode >= WIRE_EVENT_FIRST)
        return "an event, which only the daemon sends";
    if (row->needs == WIRE_NEEDS_FRESH && link->state != LINK_FRESH)
        return row->opcode == WIRE_HELLO ? "a second HELLO" : "a RESUME after its HELLO";
    if (row->needs == WIRE_NEEDS_OPEN && link->state != LINK_OPEN)
        return "a request before its HELLO was answered";
    if (packet->body_size != row->request_size)
        return "a request of the wrong size";
    if (packet->n_fds < row->fds_in_min)
        return "fewer file descriptors than the request takes";
    if (packet->n_fds > row->fds_in_max)
        return "more file descriptors than the request takes";
    if (header->status || header->more)
        return "a request with the marks of a reply";
    if (wire_is_one_way(row->opcode) && header->serial)
        return "a one-way message with a serial";
    if (!wire_is_one_way(row->opcode) && !header->serial)
        return "a request without a serial";
    return check_fields(row->opcode, packet->body);
}

void wire_dispatch(struct link *link, struct packet *packet)
{
    const struct wire_row *row = wire_row(packet->header.opcode);
    const char *what = violation(link, packet, row);

    if (what) {
        link_violation(link, what);
        return;
    }
    if (row->may == WIRE_MAY_ADMIN && !link->peer.who.admin) {
        link_refuse(link, row->opcode, packet->header.serial, HBM_E_DENIED, "%s is for administrators", row->name);
        return;
    }
    handlers[row->opcode](link, &packet->header, packet);
}
