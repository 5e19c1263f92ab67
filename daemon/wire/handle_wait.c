#include <stdio.h>
#include <string.h>

#include "daemon/wire/handlers.h"
#include "daemon/wire/pending.h"

static void answer(struct pending *pending, const struct op *op)
{
    struct wire_op_wait_reply reply = {
        .state = op->state,
        .error = op->error,
        .bytes_done = op_progress(op),
        .bytes_total = op->bytes_total,
    };

    for (size_t i = 0; i < op->n_rows; i++) {
        if (op->rows[i].has_receipt) {
            reply.receipt = op->rows[i].receipt;
            break;
        }
    }
    snprintf(reply.detail, sizeof(reply.detail), "%s", op->detail);
    timer_stop(pending->link->core, &pending->op_wait.timer);
    list_unlink(&pending->op_wait.wait.node);
    pending_reply(pending, &reply, sizeof(reply), -1);
    pending_free(pending);
}

static void ended(struct op_wait *wait, struct op *op)
{
    answer(container_of(wait, struct pending, op_wait.wait), op);
}

static void overdue(struct timer *timer)
{
    struct pending *pending = container_of(timer, struct pending, op_wait.timer);

    /* A waiter keeps its op from ending unseen, so the op is still there. */
    answer(pending, op_get(pending->link->core, pending->op_wait.op));
}

void handle_op_wait(struct link *link, const struct packet_header *header, struct packet *packet)
{
    REQUEST(op_wait);
    struct op *op = op_get(link->core, request->op);

    if (!op || !op_visible(op, &link->peer.who))
        REFUSE(HBM_E_NOT_FOUND, "operation 0x%016llx", (unsigned long long)request->op);
    struct pending *pending = pending_new(link, header->opcode, header->serial, NULL);
    if (!pending)
        return;
    list_init(&pending->op_wait.wait.node);
    list_init(&pending->op_wait.timer.node);
    pending->op_wait.wait.ended = ended;
    pending->op_wait.timer.fire = overdue;
    pending->op_wait.op = op->id;
    if (op_has_ended(op) || !request->timeout_ms) {
        answer(pending, op);
        return;
    }
    if (request->timeout_ms != UINT32_MAX)
        timer_arm(link->core, &pending->op_wait.timer, request->timeout_ms);
    op_wait(op, &pending->op_wait.wait);
}
