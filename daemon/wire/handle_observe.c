/* What is observed of buffers: a batch more, and what there is of it so far. */
#include <string.h>

#include "daemon/wire/handlers.h"
#include "daemon/wire/pending.h"

_Static_assert(sizeof(struct wire_observed_reply) == sizeof(struct hbm_observation) &&
                   offsetof(struct wire_observed_reply, imported) == offsetof(struct hbm_observation, imported),
               "the answer is what was observed");

static void told(struct call *call, int error, void *result)
{
    struct pending *pending = container_of(call, struct pending, call);

    if (!pending_goes_on(pending, error))
        return;
    pending_reply(pending, result, sizeof(struct hbm_observation), -1);
    pending_free(pending);
}

void handle_observe_batch(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(observe_batch);

    if (!*request->sel)
        REFUSE(HBM_E_INVALID, "nothing is selected");
    if (request->flags & ~WIRE_FORGET)
        REFUSE(HBM_E_INVALID, "flags 0x%x; an observation takes FORGET", request->flags);
    struct pending *pending = pending_new(link, header->opcode, header->serial, pending_op_begun);
    if (pending && request->flags & WIRE_FORGET)
        verb_forget(link->core, &pending->call, request->sel);
    else if (pending)
        verb_observe(link->core, &pending->call, request->sel, request->momentum);
}

void handle_observed(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(observed);
    struct pending *pending = pending_new(link, header->opcode, header->serial, told);

    if (pending)
        verb_observed(link->core, &pending->call, request->id, request->name);
}
