#include <inttypes.h>

#include "daemon/core/verbs.h"

void verb_op_cancel(struct core *core, struct call *call, uint64_t id)
{
    struct op *op = op_get(core, id);

    if (!op || !op_visible(op, &call->who)) {
        call_refuse(call, HBM_E_NOT_FOUND, "operation 0x%016" PRIx64, id);
        return;
    }
    op_cancel(op, "it was cancelled on request");
    call_done(call, op);
}
