/* Hash: XXH3-64 of the bytes that an attach of each buffer would see, one buffer after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/stage.h"
#include "daemon/core/verbs.h"

#define HASH_OF_NOTHING 0x2d06800538d394c2u

struct hashing {
    struct core *core;
    uint64_t op;
    struct account *account;
    size_t at;          /* row */
    uint64_t finished;  /* bytes of the rows before it */
    struct stage stage; /* of the arena that the last row lay in: neighbours share one copy from disk */
    uint64_t staged;    /* id of the extent that it was made from */
    bool cancelled, running;
    struct job job;
};

static void next_row(struct hashing *hashing);

static void end_hashing(struct hashing *hashing, int error, const char *detail)
{
    char sentence[HBM_DETAIL_MAX];

    snprintf(sentence, sizeof(sentence), "%s", detail ? detail : "");
    stage_clear(&hashing->stage);
    op_end(op_get(hashing->core, hashing->op), error, sentence);
}

static void row_done(struct hashing *hashing, uint64_t hash)
{
    struct op *op = op_get(hashing->core, hashing->op);
    struct op_row *row = &op->rows[hashing->at++];

    row->hash = hash;
    hashing->finished += row->size;
    op->bytes_done = hashing->finished;
}

static void hash_progress(struct job *job)
{
    struct hashing *hashing = container_of(job, struct hashing, job);

    op_get(hashing->core, hashing->op)->bytes_done = hashing->finished + job->bytes_done;
}

static void hashed(struct job *job)
{
    struct hashing *hashing = container_of(job, struct hashing, job);
    struct op *op = op_get(hashing->core, hashing->op);

    hashing->running = false;
    if (hashing->cancelled) {
        end_hashing(hashing, HBM_E_CANCELLED, op->detail);
    } else if (job->error) {
        op->rows[hashing->at].error = job->error;
        end_hashing(hashing, job->error, job->detail);
    } else {
        op->worked_ns += job->reply.hash.nanoseconds;
        row_done(hashing, job->reply.hash.hash);
        next_row(hashing);
    }
}

static void staged(struct stage *stage)
{
    struct hashing *hashing = container_of(stage, struct hashing, stage);
    struct op *op = op_get(hashing->core, hashing->op);
    struct op_row *row = &op->rows[hashing->at];
    const struct buffer *buffer = buffer_get(hashing->core, row->buffer);
    struct job *job = &hashing->job;

    if (stage->error || !buffer) {
        row->error = stage->error ? stage->error : HBM_E_STALE;
        end_hashing(hashing, row->error, stage->error ? stage->detail : "it was freed meanwhile");
        return;
    }
    *job = (struct job){.opcode = JOB_HASH,
                        .device = stage->extent->device->index,
                        .progress = hash_progress,
                        .done = hashed,
                        .reply_fd = -1};
    extent_describe(stage->extent, job, &job->request.hash.extent);
    job->request.hash.offset = buffer->offset;
    job->request.hash.bytes = buffer->size;
    hashing->running = true;
    hashing->core->env.submit(hashing->core->env.context, job);
}

static void next_row(struct hashing *hashing)
{
    struct op *op = op_get(hashing->core, hashing->op);
    const struct buffer *buffer = NULL;

    while (hashing->at < op->n_rows && (buffer = buffer_get(hashing->core, op->rows[hashing->at].buffer)) &&
           !buffer->size)
        row_done(hashing, HASH_OF_NOTHING);
    if (hashing->cancelled || hashing->at == op->n_rows) {
        end_hashing(hashing, hashing->cancelled ? HBM_E_CANCELLED : 0, hashing->cancelled ? op->detail : NULL);
        return;
    }
    if (buffer && hashing->stage.extent && hashing->staged == buffer->arena->extent->id) {
        staged(&hashing->stage);
        return;
    }
    stage_clear(&hashing->stage);
    if (!buffer) {
        op->rows[hashing->at].error = HBM_E_STALE;
        end_hashing(hashing, HBM_E_STALE, "a buffer was freed meanwhile");
        return;
    }
    hashing->staged = buffer->arena->extent->id;
    hashing->stage = (struct stage){
        .core = hashing->core,
        .account = hashing->account,
        .arena = buffer->arena->id,
        .extent = extent_ref(buffer->arena->extent),
        .done = staged,
    };
    stage_start(&hashing->stage);
}

static void cancel_hashing(struct op *op)
{
    struct hashing *hashing = op->state_of_verb;

    hashing->cancelled = true;
    if (hashing->running)
        hashing->core->env.cancel(hashing->core->env.context, &hashing->job);
    else
        stage_cancel(&hashing->stage, op->detail);
}

static void clear_hashing(struct op *op)
{
    struct hashing *hashing = op->state_of_verb;

    stage_clear(&hashing->stage);
    free(hashing);
}

static int by_arena(const void *left, const void *right)
{
    const struct buffer *a = *(struct buffer *const *)left, *b = *(struct buffer *const *)right;

    if (a->arena != b->arena)
        return a->arena->id < b->arena->id ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

void verb_hash(struct core *core, struct call *call, const char *sel)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    if (!error)
        error = arenas_of(&selection, &arenas, detail);
    struct hashing *hashing = error ? NULL : calloc(1, sizeof(*hashing));
    struct account *account = account_of(core, call->who.owner);
    if (!error && (!hashing || !account)) {
        snprintf(detail, sizeof(detail), "the owner is out of memory for its own tables");
        error = HBM_E_NO_MEMORY;
    }
    struct op *op = error ? NULL : op_new(core, "hash", &call->who, call->session, selection.n, &error, detail);
    if (!op) {
        free(hashing);
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    *hashing = (struct hashing){.core = core, .op = id, .account = account};
    op->state_of_verb = hashing;
    op->cancel = cancel_hashing;
    op->clear = clear_hashing;
    qsort(selection.buffers, selection.n, sizeof(struct buffer *), by_arena);
    for (size_t i = 0; i < selection.n; i++) {
        op->rows[i].buffer = selection.buffers[i]->id;
        buffer_name_for(selection.buffers[i], &call->who, op->rows[i].name, sizeof(op->rows[i].name));
        op_row_show(&op->rows[i], selection.buffers[i]);
        op->rows[i].size = selection.buffers[i]->size;
        op->bytes_total += selection.buffers[i]->size;
    }
    next_row(hashing);
    call_done(call, op_get(core, id));
}
