#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/names.h"
#include "daemon/core/residency.h"
#include "daemon/core/verbs.h"

struct attach {
    struct core *core;
    struct call *call;
    struct attach_args args;
    uint64_t buffer, arena; /* ids: both may go while we wait */
    bool in_place;
    struct residency residency;
};

static void refuse_missing(struct call *call, const struct attach_args *args)
{
    if (!args->id)
        call_refuse(call, HBM_E_NOT_FOUND, "%.200s", args->name);
    else if (call->session && session_held(call->session, args->id))
        call_refuse(call, HBM_E_STALE, "id:0x%016llx", (unsigned long long)args->id);
    else
        call_refuse(call, HBM_E_NOT_FOUND, "id:0x%016llx", (unsigned long long)args->id);
}

static void grant(struct core *core, struct call *call, struct buffer *buffer, const struct attach_args *args)
{
    int error = 0;
    char detail[HBM_DETAIL_MAX] = "";
    struct lease *lease = lease_new_buffer(call->session, buffer, args->access, args->flags, &error, detail);

    if (!lease) {
        buffer_release(buffer); /* a private copy is nobody's without one */
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = lease->id;
    call_done(call, lease);
    lease = lease_get(core, id); /* what is told is told after the answer, which is waited for */
    if (!lease)
        return; /* the answer could not be sent */
    event_emit(&core->events, "buffer.attached", buffer->id, buffer->name, buffer->arena->owner.listener,
               buffer->arena->owner.uid, lease->session->pid, "%s", args->access == HBM_RW ? "rw" : "ro");
    core->counters.attaches++;
    core->counters.attached_bytes += buffer->size;
}

static void resident(struct residency *residency)
{
    struct attach *attach = container_of(residency, struct attach, residency);
    struct buffer *buffer = buffer_get(attach->core, attach->buffer);
    struct call *call = attach->call;

    if (!call->session)
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    else if (residency->error)
        call_refuse(call, residency->error, "%s", residency->detail);
    else if (!buffer)
        refuse_missing(call, &attach->args);
    else
        grant(attach->core, call, buffer, &attach->args);
    free(attach);
}

static void copied(void *context, uint64_t id, int error, const char *detail)
{
    struct attach *attach = context;
    struct buffer *copy = buffer_get(attach->core, id);
    struct call *call = attach->call;

    if (error || !copy) {
        call_refuse(call, error ? error : HBM_E_INTERNAL, "%s", detail);
    } else if (call->session) {
        grant(attach->core, call, copy, &attach->args);
    } else {
        buffer_release(copy);
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    }
    free(attach);
}

static bool may_attach(struct core *core, struct call *call, struct buffer *buffer, const struct attach_args *args)
{
    struct model *model = buffer->model;
    char detail[HBM_DETAIL_MAX];
    int error = device_check_drained(buffer->arena->device, detail);

    if (core->draining)
        call_refuse(call, HBM_E_SHUTTING_DOWN, "nothing new is granted");
    else if (args->access == HBM_RW && !arena_may_write(buffer->arena, &call->who))
        call_refuse(call, HBM_E_DENIED, "%.200s is not yours to write", args->name);
    else if (model && model->state == MODEL_BUILDING)
        call_refuse(call, HBM_E_NOT_READY, "model %.200s", model->name);
    else if (error)
        call_refuse(call, error, "%s", detail);
    else
        return true;
    return false;
}

void verb_attach(struct core *core, struct call *call, const struct attach_args *args)
{
    struct buffer *buffer = args->id ? buffer_get(core, args->id) : names_resolve(&core->buffer_names, &call->who, args->name);
    struct attach *attach;

    if (!buffer || !buffer_visible(buffer, &call->who)) {
        refuse_missing(call, args);
        return;
    }
    if (!may_attach(core, call, buffer, args))
        return;
    if ((args->flags & WIRE_UNLOCKED) && arena_trusts(buffer->arena, &call->who)) {
        grant(core, call, buffer, args);
        return;
    }
    attach = calloc(1, sizeof(*attach));
    if (!attach) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    attach->core = core;
    attach->call = call;
    attach->args = *args;
    attach->buffer = buffer->id;
    attach->arena = buffer->arena->id;
    attach->in_place = args->flags & WIRE_IN_PLACE;
    if (!arena_trusts(buffer->arena, &call->who)) {
        private_copy_start(core, call->session, buffer, copied, attach);
        return;
    }
    attach->residency = (struct residency){.core = core,
                                           .who = call->who,
                                           .arenas = &attach->arena,
                                           .in_place = &attach->in_place,
                                           .n = 1,
                                           .timeout_ms = args->timeout_ms,
                                           .done = resident};
    residency_start(&attach->residency);
}
