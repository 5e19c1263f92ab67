#include "daemon/core/verbs.h"

void verb_detach(struct core *core, struct call *call, uint64_t id)
{
    struct lease *lease = lease_get(core, id);

    if (!lease || lease->session != call->session) {
        call_refuse(call, HBM_E_NOT_FOUND, "no lease 0x%016llx of this session", (unsigned long long)id);
        return;
    }
    struct buffer *buffer = lease->buffer;
    event_emit(&core->events, "lease.ended", buffer ? buffer->id : lease->model->id, buffer ? buffer->name : lease->model->name,
               call->who.owner.listener, call->who.owner.uid, call->session->pid, "detached");
    lease_free(lease);
    call_done(call, NULL);
}
