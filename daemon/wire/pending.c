#include "daemon/wire/pending.h"

#include <stdlib.h>

struct pending *pending_new(struct link *link, uint32_t opcode, uint32_t serial,
                            void (*done)(struct call *call, int error, void *result))
{
    struct pending *pending = calloc(1, sizeof(*pending));

    if (!pending) {
        link_refuse(link, opcode, serial, HBM_E_NO_MEMORY, "the daemon has no memory for the request");
        return NULL;
    }
    pending->link = link;
    pending->opcode = opcode;
    pending->serial = serial;
    list_append(&link->calls, &pending->node);
    link->n_calls++;
    call_init(&pending->call, link->peer.who, link->session, done);
    return pending;
}

bool pending_goes_on(struct pending *pending, int error)
{
    if (!error && pending->link)
        return true;
    if (pending->link)
        link_refuse(pending->link, pending->opcode, pending->serial, error, "%s", pending->call.detail);
    pending_free(pending);
    return false;
}

void pending_reply(struct pending *pending, const void *body, size_t size, int fd)
{
    link_reply(pending->link, pending->opcode, pending->serial, body, size, fd);
}

struct pending *pending_free(struct pending *pending)
{
    list_unlink(&pending->node);
    list_unlink(&pending->call.node);
    if (pending->link) {
        pending->link->n_calls--;
        link_balance(pending->link);
    }
    free(pending);
    return NULL;
}

void pending_done(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);
    uint64_t nothing = 0;

    (void)result;
    if (!pending_goes_on(pending, error))
        return;
    pending_reply(pending, &nothing, sizeof(nothing), -1);
    pending_free(pending);
}

void pending_op_begun(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);

    if (!pending_goes_on(pending, error))
        return;
    uint64_t op = ((struct op *)result)->id;
    pending_reply(pending, &op, sizeof(op), -1);
    pending_free(pending);
}

void pending_abandon_all(struct link *link)
{
    list_for_each_safe (node, &link->calls) {
        struct pending *pending = list_entry(node, struct pending, node);
        list_unlink(node);
        pending->link = NULL;
        link->n_calls--;
        if (pending->opcode != WIRE_OP_WAIT)
            continue; /* core ends the call */
        list_unlink(&pending->op_wait.wait.node);
        timer_stop(link->core, &pending->op_wait.timer);
        pending_free(pending);
    }
}
