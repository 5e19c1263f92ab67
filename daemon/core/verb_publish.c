/* Publishing: single flight on a name. Who asks first builds; the others wait and attach what was built, or build it
 * themselves if the builder dies. */
#include "daemon/core/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/model_attach.h"
#include "daemon/core/model_build.h"
#include "daemon/core/names.h"

struct publish_waiting {
    struct core *core;
    struct call *call;
    struct publish_args args; /* args.table points into bytes */
    void *bytes;
    struct model_wait wait;
    struct timer timer;
};

static size_t table_bytes(const struct table *table)
{
    const struct table_header *header = table->header;

    return sizeof(*header) + header->n_arenas * sizeof(struct table_arena) + header->n_buffers * sizeof(struct table_buffer) +
           header->strings_bytes + header->metadata_bytes;
}

static void stop_waiting(struct publish_waiting *waiting)
{
    list_unlink(&waiting->wait.node);
    timer_stop(waiting->core, &waiting->timer);
    free(waiting->bytes);
    free(waiting);
}

static void look_again(struct model_wait *wait)
{
    struct publish_waiting *waiting = container_of(wait, struct publish_waiting, wait);

    if (waiting->call->session)
        verb_publish(waiting->core, waiting->call, &waiting->args);
    else
        call_refuse(waiting->call, HBM_E_DISCONNECTED, "the session went away");
    stop_waiting(waiting);
}

static void waited_out(struct timer *timer)
{
    struct publish_waiting *waiting = container_of(timer, struct publish_waiting, timer);

    call_refuse(waiting->call, HBM_E_TIMEOUT, "model %.200s is still being built", waiting->args.name);
    stop_waiting(waiting);
}

/* Each keeps a copy of its table. */
#define WAITING_PER_SESSION 4

static unsigned count_waiting(const struct core *core, const struct session *session)
{
    unsigned n = 0;

    list_for_each (node, &core->models) {
        const struct model *model = list_entry(node, struct model, node);
        list_for_each (inner, &model->waiters) {
            struct model_wait *wait = list_entry(inner, struct model_wait, node);
            n += wait->ready == look_again &&
                 container_of(wait, struct publish_waiting, wait)->call->session == session;
        }
    }
    return n;
}

static void wait_for(struct core *core, struct call *call, struct model *model, const struct publish_args *args)
{
    if (count_waiting(core, call->session) >= WAITING_PER_SESSION) {
        call_refuse(call, HBM_E_LIMIT, "%d publishes of this session wait for others' already", WAITING_PER_SESSION);
        return;
    }
    struct publish_waiting *waiting = calloc(1, sizeof(*waiting));
    size_t size = table_bytes(&args->table);
    const char *why;

    if (waiting)
        waiting->bytes = malloc(size);
    if (!waiting || !waiting->bytes) {
        free(waiting);
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    waiting->core = core;
    waiting->call = call;
    waiting->args = *args;
    /* The caller's table goes when this verb returns; the copy was checked as the original. */
    memcpy(waiting->bytes, args->table.header, size);
    table_open(&waiting->args.table, waiting->bytes, size, &why);
    waiting->wait.ready = look_again;
    list_init(&waiting->timer.node);
    waiting->timer.fire = waited_out;
    list_append(&model->waiters, &waiting->wait.node);
    if (args->timeout_ms != UINT32_MAX)
        timer_arm(core, &waiting->timer, args->timeout_ms);
}

static void attach_sealed(struct core *core, struct call *call, struct model *model, const struct publish_args *args)
{
    struct attach_args attach = {.access = HBM_RO, .flags = args->flags & WIRE_UNLOCKED, .timeout_ms = args->timeout_ms ? args->timeout_ms : 1};

    memcpy(attach.name, args->name, sizeof(attach.name));
    model_grant(core, call, model, &attach);
}

void verb_publish(struct core *core, struct call *call, const struct publish_args *args)
{
    struct owner scope = owner_scope(call->who.owner, args->flags & WIRE_SHARED);
    struct model *model = names_find(&core->model_names, scope, args->name);
    const char *why;

    if (core->draining)
        call_refuse(call, HBM_E_SHUTTING_DOWN, "nothing new is granted");
    else if (!model_name_is_valid(args->name, &why))
        call_refuse(call, HBM_E_INVALID, "%s", why);
    else if ((args->flags & WIRE_SHARED) && !call->who.admin)
        call_refuse(call, HBM_E_DENIED, "shared models are for administrators");
    else if (!model)
        model_build(core, call, args, true);
    else if (model->state == MODEL_BUILDING && !(args->flags & WIRE_WAIT))
        call_refuse(call, HBM_E_NOT_READY, "model %.200s", args->name);
    else if (model->state == MODEL_BUILDING)
        wait_for(core, call, model, args);
    else if (args->flags & WIRE_REPLACE)
        model_build(core, call, args, false);
    else if (args->flags & WIRE_WAIT)
        attach_sealed(core, call, model, args);
    else
        call_refuse(call, HBM_E_EXISTS, "model %.200s", args->name);
}

/* The old model of that name steps aside; readers that have it keep it until they let go. */
static int replace_listed(struct model *model, struct model **old, char *detail)
{
    struct owner scope = owner_scope(model->owner, model->shared);
    char ignored[HBM_DETAIL_MAX];

    *old = names_find(&model->core->model_names, scope, model->name);
    if (*old && (*old)->state == MODEL_BUILDING) {
        snprintf(detail, HBM_DETAIL_MAX, "model %.150s was removed meanwhile, and another builds it anew", model->name);
        return HBM_E_NOT_READY;
    }
    if (*old)
        model_unlist(*old);
    int error = model_list(model, detail);
    if (error && *old)
        model_list(*old, ignored);
    return error;
}

/* One record: a crash finds the new model whole and the old one without its name, or neither. */
static int seal(struct model *model, char *detail)
{
    struct model *old = NULL;
    int error = model->listed ? 0 : replace_listed(model, &old, detail);

    if (error)
        return error;
    ledger_begin(model->core);
    model->state = MODEL_SEALED;
    model_remember(model);
    if (old)
        ledger_put_model(old->core, old);
    ledger_end(model->core);
    if (old)
        model_release(old);
    return 0;
}

/* What is still being read into the model would arrive after others have attached it. */
static bool is_being_filled(struct core *core, const struct session *session)
{
    list_for_each (node, &core->ops) {
        const struct op *op = list_entry(node, struct op, node);
        if (op->session == session->id && !op_has_ended(op) && !strcmp(op->verb, "transfer"))
            return true;
    }
    return false;
}

void verb_commit(struct core *core, struct call *call, uint64_t id, bool commit)
{
    struct lease *lease = lease_get(core, id);
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;

    if (!lease || lease->session != call->session || !lease->builder || lease->model->state != MODEL_BUILDING) {
        call_refuse(call, HBM_E_NOT_FOUND, "no model is being built under that lease");
        return;
    }
    if (commit && is_being_filled(core, call->session)) {
        call_refuse(call, HBM_E_BUSY, "a transfer of this session is still running");
        return;
    }
    struct model *model = lease->model;
    uint64_t layout_hash = model->layout_hash;
    if (commit)
        error = seal(model, detail);
    if (commit && !error) {
        event_emit(&core->events, "model.sealed", model->id, model->name, model->owner.listener, model->owner.uid,
                   call->session->pid, "%u buffers in %u groups", model->n_buffers, model->n_arenas);
    } else {
        event_emit(&core->events, "model.discarded", model->id, model->name, model->owner.listener, model->owner.uid,
                   call->session->pid, "%s", error ? detail : "its builder gave it up");
    }
    uint64_t model_id = model->id;
    lease_free(lease); /* frees a model that is not sealed */
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    call_done(call, &layout_hash);
    model = model_get(core, model_id);
    if (model)
        model_wake_waiters(model);
}
