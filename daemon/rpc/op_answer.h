/* Answers that wait for an operation. */
#pragma once

#include "daemon/rpc/request.h"

/* call->done of verbs that give an op: answers with the op's id if the request is asynchronous, else when the op
 * has ended with its rows or its error. */
void answer_with_rows(struct call *call, int error, void *result);
/* Answers with the op as a row when it has ended, or as it is after so many seconds (NAN: no limit). */
void answer_with_op(struct request *request, struct op *op, double timeout_seconds);
