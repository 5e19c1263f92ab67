#include <string.h>

#include "daemon/core/listener.h"
#include "daemon/wire/handlers.h"
#include "daemon/wire/watch.h"

static void send_reclaim(struct session *session, uint32_t slot, uint32_t deadline_ms)
{
    struct packet_header header = {.opcode = WIRE_RECLAIM};
    struct wire_reclaim_request event = {.slot = slot, .deadline_ms = deadline_ms};

    if (session->link)
        link_send(session->link, &header, &event, sizeof(event), NULL, 0);
}

static void send_op_ended(struct session *session, uint64_t op, int error)
{
    struct packet_header header = {.opcode = WIRE_OP_ENDED};
    struct wire_op_ended_request event = {.op = op, .error = error};

    if (session->link)
        link_send(session->link, &header, &event, sizeof(event), NULL, 0);
}

static void kick(struct session *session, int error, const char *reason)
{
    if (session->link)
        link_doom(session->link, error, reason);
}

void link_take_session(struct link *link, struct session *session)
{
    link->session = session;
    session->link = link;
    session->send_reclaim = send_reclaim;
    session->send_op_ended = send_op_ended;
    session->kick = kick;
}

/* The store has the session: from here on a restart finds it. */
static void ready(struct session *session, int error)
{
    struct link *link = session->link;
    struct wire_hello_reply reply;

    if (!link)
        return;
    if (error) {
        link->clean = true; /* nothing was granted: its process need not end first */
        link_turn_away(link, WIRE_HELLO, link->hello_serial, error, STORE_IS_FULL);
        return;
    }
    reply = (struct wire_hello_reply){
        .session = session->id,
        .epoch = link->core->ids.epoch,
        .slots = LOCKWORD_SLOTS,
        .n_devices = listener_n_devices(session->account->listener, link->core),
    };
    memcpy(reply.secret, session->secret, sizeof(reply.secret));
    link->state = LINK_OPEN;
    link_reply(link, WIRE_HELLO, link->hello_serial, &reply, sizeof(reply), session->page_fd);
}

void handle_hello(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(hello);
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;

    if (request->version != WIRE_VERSION) {
        link_refuse(link, header->opcode, header->serial, HBM_E_BAD_VERSION,
                    "the library speaks version %u, the daemon %u", request->version, WIRE_VERSION);
        link_doom(link, HBM_E_BAD_VERSION, "the library speaks another protocol version");
        return;
    }
    struct session *session =
        session_new(link->core, link->peer.who, link->peer.pid, link->peer.pidfd, request->client, &error, detail);
    if (!session) {
        link_turn_away(link, header->opcode, header->serial, error, detail);
        return;
    }
    link->peer.pidfd = -1; /* consume pidfd */
    timer_stop(link->core, &link->hello);
    link->state = LINK_GREETED;
    link->hello_serial = header->serial;
    link_take_session(link, session);
    session->ready = ready;
    if (watch_session(link->server, session)) {
        link_doom(link, HBM_E_SYSTEM, "the client's process cannot be watched");
        return;
    }
    session_start(session);
}

void handle_device(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(device);
    const struct device *device = listener_device(link->core, &link->peer.who, request->index);
    struct wire_device_reply reply = {0};

    if (!device)
        REFUSE(HBM_E_NO_DEVICE, "there is no device %u", request->index);
    memcpy(reply.uuid, device->uuid, sizeof(reply.uuid));
    memcpy(reply.name, device->name, sizeof(reply.name));
    reply.is_cuda = device->is_cuda;
    reply.ready = device->state == DEVICE_READY;
    reply.capacity = device->capacity[HBM_TIER_DEVICE];
    reply.used = device->used[HBM_TIER_DEVICE];
    link_reply(link, header->opcode, header->serial, &reply, sizeof(reply), -1);
}

void handle_bye(struct link *link, const struct packet_header *header, struct packet *packet)
{
    struct wire_bye_reply reply = {0};

    (void)packet;
    link_reply(link, header->opcode, header->serial, &reply, sizeof(reply), -1);
    link->clean = true;
    link_doom(link, HBM_OK, "it said goodbye");
}
