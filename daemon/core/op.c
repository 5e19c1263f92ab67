#include "daemon/core/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/session.h"

/* The daemon's own ops: nobody's but the administrators'. */
static const struct principal daemon_itself = {.owner = {0, UINT32_MAX}, .admin = true};

/* The rows are the owner's memory, and each op under way has its own. */
static uint64_t weight(const struct op *op)
{
    return 1 + op->n_rows / OP_ROWS_COUNTED;
}

/* As many as they take memory for. */
static size_t rows_of(const struct op *op)
{
    return op->n_rows * (op->advice ? 3 : 1);
}

static bool charge(struct op *op, const struct principal *who, int *error, char *detail)
{
    struct core *core = op->core;

    if (!who)
        return true;
    struct account *account = account_of(core, who->owner);
    if (!account) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return false;
    }
    *error = account_charge(account, ACCOUNT_OPS, weight(op), detail);
    op->charged = *error ? NULL : account;
    return !*error;
}

static void uncharge(struct op *op)
{
    if (op->charged)
        account_release(op->charged, ACCOUNT_OPS, weight(op));
    op->charged = NULL;
}

struct op *op_new(struct core *core, const char *verb, const struct principal *who, struct session *session,
                  size_t n_rows, int *error, char *detail)
{
    return op_of_rows(core, verb, who, session, calloc(n_rows + 1, sizeof(struct op_row)), n_rows, error, detail);
}

struct op *op_of_rows(struct core *core, const char *verb, const struct principal *who, struct session *session,
                      struct op_row *rows, size_t n_rows, int *error, char *detail)
{
    if (core->draining) {
        free(rows);
        snprintf(detail, HBM_DETAIL_MAX, "no new operations");
        *error = HBM_E_SHUTTING_DOWN;
        return NULL;
    }
    struct op *op = calloc(1, sizeof(*op));
    uint64_t id = op && rows ? idmap_add(&core->ids, ID_OP, op) : 0;
    if (!id) {
        free(op);
        free(rows);
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        *error = HBM_E_NO_MEMORY;
        return NULL;
    }
    *op = (struct op){
        .id = id,
        .core = core,
        .verb = verb,
        .who = who ? *who : daemon_itself,
        .session = session ? session->id : 0,
        .state = WIRE_OP_RUNNING,
        .started_ms = core_now(core),
        .rows = rows,
        .n_rows = n_rows,
    };
    list_init(&op->waiters);
    list_append(&core->ops, &op->node);
    core->n_ops++;
    if (!charge(op, who, error, detail))
        return op_free(op);
    return op;
}

struct op *op_get(struct core *core, uint64_t id)
{
    return idmap_get(&core->ids, id, ID_OP);
}

bool op_visible(const struct op *op, const struct principal *who)
{
    return who->admin || owner_equal(op->who.owner, who->owner);
}

bool op_has_ended(const struct op *op)
{
    return op->state != WIRE_OP_QUEUED && op->state != WIRE_OP_RUNNING;
}

uint64_t op_progress(const struct op *op)
{
    return op->bytes_done;
}

static void drop_rows(struct op *op)
{
    free(op->rows);
    op->advice = advice_free(op->advice);
    op->rows = NULL;
    op->n_rows = 0;
}

/* Oldest end first. */
static void trim(struct core *core)
{
    size_t ended = 0, rows = 0;

    list_for_each (node, &core->ops) {
        const struct op *op = list_entry(node, struct op, node);
        ended += op_has_ended(op);
        rows += op_has_ended(op) ? rows_of(op) : 0;
    }
    list_for_each_safe (node, &core->ops) {
        struct op *op = list_entry(node, struct op, node);
        if (!op_has_ended(op))
            continue;
        if ((ended <= OPS_KEPT && rows <= OP_ROWS_KEPT) || ended == 1)
            return;
        rows -= rows_of(op);
        if (ended > OPS_KEPT)
            op_free(op);
        else
            drop_rows(op);
        ended--;
    }
}

static void tell(struct op *op)
{
    struct core *core = op->core;
    struct session *session = op->session ? session_get(core, op->session) : NULL;
    const char *what = op->state == WIRE_OP_DONE        ? "op.done"
                       : op->state == WIRE_OP_CANCELLED ? "op.cancelled"
                                                        : "op.failed";

    if (op->quiet && op->state != WIRE_OP_FAILED)
        return;
    event_emit(&core->events, what, op->id, op->verb, op->who.owner.listener, op->who.owner.uid,
               session ? session->pid : 0, "%s%s%.120s", op->error ? hbm_error_name(op->error) : "",
               op->detail[0] ? ": " : "", op->detail);
    if (session && session->link && !op->quiet)
        session->send_op_ended(session, op->id, op->error);
}

void op_end(struct op *op, int error, const char *detail)
{
    struct core *core = op->core;
    struct list *node;

    op->state = !error ? WIRE_OP_DONE : error == HBM_E_CANCELLED ? WIRE_OP_CANCELLED : WIRE_OP_FAILED;
    op->error = error;
    op->ended_ms = core_now(core);
    if (detail != op->detail)
        snprintf(op->detail, sizeof(op->detail), "%s", detail ? detail : "");
    explain_no_memory(error, op->detail);
    uncharge(op);
    /* Kept ones are trimmed oldest end first. */
    list_unlink(&op->node);
    list_append(&core->ops, &op->node);
    tell(op);
    while ((node = list_first(&op->waiters))) {
        struct op_wait *wait = list_entry(node, struct op_wait, node);
        list_unlink(node);
        wait->ended(wait, op);
    }
    trim(core);
}

void op_wait(struct op *op, struct op_wait *wait)
{
    list_init(&wait->node);
    if (op_has_ended(op))
        wait->ended(wait, op);
    else
        list_append(&op->waiters, &wait->node);
}

void op_cancel(struct op *op, const char *why)
{
    if (op_has_ended(op) || !op->cancel)
        return;
    snprintf(op->detail, sizeof(op->detail), "%s", why);
    op->cancel(op);
}

void op_cancel_of_session(struct core *core, uint64_t session)
{
    struct op *next;

    /* From the start after each: a cancelled op may end at once, and others be trimmed with it. */
    do {
        next = NULL;
        list_for_each (node, &core->ops) {
            struct op *op = list_entry(node, struct op, node);
            if (!next && op->session == session && !op_has_ended(op))
                next = op;
        }
        if (next) {
            next->session = 0;
            op_cancel(next, "the client that asked for it is gone");
        }
    } while (next);
}

struct op *op_free(struct op *op)
{
    if (op->clear)
        op->clear(op);
    uncharge(op);
    list_for_each_safe (node, &op->waiters)
        list_unlink(node);
    list_unlink(&op->node);
    op->core->n_ops--;
    idmap_remove(&op->core->ids, op->id);
    free(op->rows);
    advice_free(op->advice);
    free(op);
    return NULL;
}
