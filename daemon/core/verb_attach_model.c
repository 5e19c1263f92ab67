#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/model_attach.h"
#include "daemon/core/names.h"
#include "daemon/core/residency.h"

/* ---- A sealed model ---- */

struct model_arrival {
    struct core *core;
    struct call *call;
    struct attach_args args;
    uint64_t model; /* id */
    uint64_t *arenas;
    bool *in_place;
    struct residency residency;
};

static void finish(struct model_arrival *arrival)
{
    free(arrival->arenas);
    free(arrival->in_place);
    free(arrival);
}

static void grant(struct core *core, struct call *call, struct model *model, const struct attach_args *args)
{
    int error = 0;
    char detail[HBM_DETAIL_MAX] = "";
    struct lease *lease = lease_new_model(call->session, model, args->access, args->flags, &error, detail);

    if (!lease) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = lease->id;
    call_done(call, lease);
    lease = lease_get(core, id); /* what is told is told after the answer, which is waited for */
    if (!lease)
        return; /* the answer could not be sent */
    event_emit(&core->events, "model.attached", model->id, model->name, model->owner.listener, model->owner.uid,
               lease->session->pid, "%s, %u arenas", args->access == HBM_RW ? "rw" : "ro", model->n_arenas);
    core->counters.attaches++;
    for (uint32_t i = 0; i < lease->n_mappings; i++)
        core->counters.attached_bytes += lease->mappings[i]->extent->size;
}

static void resident(struct residency *residency)
{
    struct model_arrival *arrival = container_of(residency, struct model_arrival, residency);
    struct model *model = model_get(arrival->core, arrival->model);
    struct call *call = arrival->call;

    if (!call->session)
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
    else if (!model || !model->listed) /* removed, or replaced: then by another */
        verb_attach_model(arrival->core, call, &arrival->args);
    else if (residency->error)
        call_refuse(call, residency->error, "%s", residency->detail);
    else
        grant(arrival->core, call, model, &arrival->args);
    finish(arrival);
}

static int list_arenas(struct model_arrival *arrival, const struct model *model)
{
    _cleanup_free_ struct arena **arenas = model_arenas(model);

    arrival->arenas = calloc(model->n_arenas + 1, sizeof(*arrival->arenas));
    arrival->in_place = calloc(model->n_arenas + 1, sizeof(*arrival->in_place));
    if (!arenas || !arrival->arenas || !arrival->in_place)
        return HBM_E_NO_MEMORY;
    for (uint32_t i = 0; i < model->n_arenas; i++) {
        arrival->arenas[i] = arenas[i]->id;
        arrival->in_place[i] = arrival->args.flags & WIRE_IN_PLACE;
    }
    return 0;
}

/* All arenas of a model have its owner, mode and trust. */
static bool trusts(const struct model *model, const struct principal *who)
{
    return list_empty(&model->buffers) || arena_trusts(list_entry(list_first(&model->buffers), struct buffer, model_node)->arena, who);
}

static bool may_write(const struct model *model, const struct principal *who)
{
    return list_empty(&model->buffers) || arena_may_write(list_entry(list_first(&model->buffers), struct buffer, model_node)->arena, who);
}

/* All of them lie on one device, too. */
static int check_device(const struct model *model, char *detail)
{
    return list_empty(&model->buffers)
               ? 0
               : device_check_drained(
                     list_entry(list_first(&model->buffers), struct buffer, model_node)->arena->device, detail);
}

void model_grant(struct core *core, struct call *call, struct model *model, const struct attach_args *args)
{
    struct model_arrival *arrival;
    char detail[HBM_DETAIL_MAX];
    int error = check_device(model, detail);

    if (args->access == HBM_RW && !may_write(model, &call->who)) {
        call_refuse(call, HBM_E_DENIED, "model %.200s is not yours to write", model->name);
        return;
    }
    if (!trusts(model, &call->who)) {
        call_refuse(call, HBM_E_DENIED, "model %.150s does not trust you with its memory: attach single buffers (private copies), or have it published with --shared", model->name);
        return;
    }
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    if (args->flags & WIRE_UNLOCKED) {
        grant(core, call, model, args);
        return;
    }
    arrival = calloc(1, sizeof(*arrival));
    if (arrival)
        arrival->args = *args;
    if (!arrival || list_arenas(arrival, model)) {
        if (arrival)
            finish(arrival);
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    arrival->core = core;
    arrival->call = call;
    arrival->model = model->id;
    arrival->residency = (struct residency){.core = core,
                                            .who = call->who,
                                            .arenas = arrival->arenas,
                                            .in_place = arrival->in_place,
                                            .n = model->n_arenas,
                                            .timeout_ms = args->timeout_ms,
                                            .done = resident};
    residency_start(&arrival->residency);
}

/* ---- Waiting for one that is being built ---- */

struct model_waiting {
    struct core *core;
    struct call *call;
    struct attach_args args;
    struct model_wait wait;
    struct timer timer;
};

static void stop_waiting(struct model_waiting *waiting)
{
    list_unlink(&waiting->wait.node);
    timer_stop(waiting->core, &waiting->timer);
    free(waiting);
}

static void look_again(struct model_wait *wait)
{
    struct model_waiting *waiting = container_of(wait, struct model_waiting, wait);
    struct core *core = waiting->core;
    struct call *call = waiting->call;
    struct attach_args args = waiting->args;

    stop_waiting(waiting);
    if (!call->session) {
        call_refuse(call, HBM_E_DISCONNECTED, "the session went away");
        return;
    }
    if (!names_resolve(&core->model_names, &call->who, args.name)) {
        call_refuse(call, HBM_E_BUILDER_DIED, "model %.200s", args.name);
        return;
    }
    verb_attach_model(core, call, &args);
}

static void waited_out(struct timer *timer)
{
    struct model_waiting *waiting = container_of(timer, struct model_waiting, timer);
    struct call *call = waiting->call;

    call_refuse(call, HBM_E_TIMEOUT, "model %.200s is still being built", waiting->args.name);
    stop_waiting(waiting);
}

static void wait_for(struct core *core, struct call *call, struct model *model, const struct attach_args *args)
{
    struct model_waiting *waiting = calloc(1, sizeof(*waiting));

    if (!waiting) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    waiting->core = core;
    waiting->call = call;
    waiting->args = *args;
    waiting->wait.ready = look_again;
    list_init(&waiting->timer.node);
    waiting->timer.fire = waited_out;
    list_append(&model->waiters, &waiting->wait.node);
    if (args->timeout_ms != UINT32_MAX)
        timer_arm(core, &waiting->timer, args->timeout_ms);
}

void verb_attach_model(struct core *core, struct call *call, const struct attach_args *args)
{
    struct model *model = names_resolve(&core->model_names, &call->who, args->name);

    if (core->draining)
        call_refuse(call, HBM_E_SHUTTING_DOWN, "nothing new is granted");
    else if (!model || !model_visible(model, &call->who))
        call_refuse(call, HBM_E_NOT_FOUND, "model %.200s", args->name);
    else if (model->state == MODEL_SEALED)
        model_grant(core, call, model, args);
    else if (!(args->flags & WIRE_WAIT))
        call_refuse(call, HBM_E_NOT_READY, "model %.200s", args->name);
    else
        wait_for(core, call, model, args);
}
