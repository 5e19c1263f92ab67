#include "daemon/rpc/op_answer.h"

#include <math.h>

#include "daemon/rpc/rows.h"

#define LONGEST_SECONDS 1e9

static void rows_ended(struct op_wait *wait, struct op *op)
{
    struct request *request = container_of(wait, struct request, wait);

    if (op->state != WIRE_OP_DONE)
        return answer_error(request, op->error ? op->error : HBM_E_INTERNAL, op->detail, op->id);
    write_op_rows(answer_begin(request), "result", op);
    answer_end(request);
}

void answer_with_rows(struct call *call, int error, void *result)
{
    struct request *request = request_returned(call);
    struct op *op = result;

    if (!request)
        return;
    if (error)
        return answer_error(request, error, call->detail, 0);
    if (!op)
        return answer_refuse(request, INTERNAL_ERROR, "the operation is gone before it could be looked at");
    if (request->async) {
        struct writer *writer = answer_begin(request);
        write_open(writer, "result", '{');
        write_id(writer, "op", op->id);
        write_close(writer, '}');
        return answer_end(request);
    }
    request->wait.ended = rows_ended;
    op_wait(op, &request->wait);
}

static void answer_op(struct request *request, const struct op *op)
{
    write_op(answer_begin(request), "result", op, true);
    answer_end(request);
}

static void op_ended(struct op_wait *wait, struct op *op)
{
    answer_op(container_of(wait, struct request, wait), op);
}

static void time_is_over(struct timer *timer)
{
    struct request *request = container_of(timer, struct request, timer);

    /* An op that runs is never trimmed, and this one would have told us of its end. */
    answer_op(request, op_get(request->core, request->about));
}

void answer_with_op(struct request *request, struct op *op, double timeout_seconds)
{
    request->about = op->id;
    if (!isnan(timeout_seconds) && !op_has_ended(op)) {
        if (timeout_seconds > LONGEST_SECONDS)
            timeout_seconds = LONGEST_SECONDS;
        request->timer.fire = time_is_over;
        timer_arm(request->core, &request->timer, (uint64_t)(timeout_seconds * 1e3));
    }
    request->wait.ended = op_ended;
    op_wait(op, &request->wait);
}
