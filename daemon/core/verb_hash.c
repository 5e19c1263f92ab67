/* Hash: XXH3-64 of the bytes that an attach of each buffer would see. Neighbours in an arena are one job: to a GPU, a job
 * costs more than the bytes of many a small buffer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/stage.h"
#include "daemon/core/table_fd.h"
#include "daemon/core/verbs.h"
#include "proto/memfd.h"

#define HASH_OF_NOTHING 0x2d06800538d394c2u
#define JOB_BYTES ((uint64_t)256 << 20) /* several buffers of one job, so that others take their turn */
#define JOB_ROWS 16384u                 /* their list is written in one turn of the loop */
#define GAP ((uint64_t)128 << 10)       /* to read on over so much costs less than another job */

struct hashing {
    struct core *core;
    uint64_t op;
    struct account *account;
    size_t at;          /* row */
    uint32_t under_way; /* rows from there on that the job hashes */
    int spans;          /* what it goes by; -1: none */
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

/* None of them has a hash then. */
static void rows_failed(struct hashing *hashing, int error, const char *detail)
{
    struct op *op = op_get(hashing->core, hashing->op);

    for (uint32_t i = 0; i < hashing->under_way; i++)
        op->rows[hashing->at + i].error = error;
    end_hashing(hashing, error, detail);
}

static void book(struct hashing *hashing, int fd)
{
    size_t size = hashing->under_way * sizeof(uint64_t);
    uint64_t *hashes = memfd_map_exact(fd, size);

    if (!hashes) {
        rows_failed(hashing, HBM_E_INTERNAL, "the worker sent no hashes");
        return;
    }
    op_get(hashing->core, hashing->op)->worked_ns += hashing->job.reply.hash.nanoseconds;
    for (uint32_t i = 0; i < hashing->under_way; i++)
        row_done(hashing, hashes[i]);
    munmap(hashes, size);
    next_row(hashing);
}

static void hashed(struct job *job)
{
    struct hashing *hashing = container_of(job, struct hashing, job);
    _cleanup_fd_ int hashes = TAKE_FD(job->reply_fd);

    hashing->running = false;
    hashing->spans = fd_close(hashing->spans);
    if (hashing->cancelled)
        end_hashing(hashing, HBM_E_CANCELLED, op_get(hashing->core, hashing->op)->detail);
    else if (job->error)
        rows_failed(hashing, job->error, job->detail);
    else
        book(hashing, hashes);
}

/* It lies in what is staged, not far behind the others of the job. */
static bool joins(const struct hashing *hashing, const struct buffer *buffer, uint64_t end, uint64_t bytes)
{
    return buffer && buffer->size && buffer->arena->extent->id == hashing->staged && buffer->offset >= end &&
           buffer->offset - end <= GAP && buffer->size <= JOB_BYTES && bytes <= JOB_BYTES - buffer->size;
}

/* Of rows[at], which has bytes, and as many behind it as join. */
static uint32_t gather(const struct hashing *hashing, struct job_span *spans, uint32_t room)
{
    const struct op_row *rows = op_get(hashing->core, hashing->op)->rows + hashing->at;
    const struct buffer *buffer = buffer_get(hashing->core, rows[0].buffer);
    uint64_t end, bytes = 0;
    uint32_t n = 0;

    do {
        spans[n++] = (struct job_span){buffer->offset, buffer->size};
        end = buffer->offset + buffer->size;
        bytes += buffer->size;
        buffer = n < room ? buffer_get(hashing->core, rows[n].buffer) : NULL;
    } while (joins(hashing, buffer, end, bytes));
    return n;
}

static int list_spans(struct hashing *hashing, struct job_hash_request *request, char *detail)
{
    size_t left = op_get(hashing->core, hashing->op)->n_rows - hashing->at;
    uint32_t room = left < JOB_ROWS ? (uint32_t)left : JOB_ROWS;
    _cleanup_free_ struct job_span *spans = calloc(room, sizeof(*spans));

    hashing->under_way = 1;
    if (!spans)
        return table_fd_refused(-ENOMEM, detail);
    hashing->under_way = gather(hashing, spans, room);
    const struct job_span *last = &spans[hashing->under_way - 1];
    request->n_spans = hashing->under_way;
    request->offset = spans[0].offset;
    request->bytes = last->offset + last->bytes - request->offset;
    hashing->spans = memfd_sealed("hbm-spans", spans, hashing->under_way * sizeof(*spans));
    return hashing->spans < 0 ? table_fd_refused(hashing->spans, detail) : 0;
}

static void staged(struct stage *stage)
{
    struct hashing *hashing = container_of(stage, struct hashing, stage);
    struct op *op = op_get(hashing->core, hashing->op);
    struct op_row *row = &op->rows[hashing->at];
    struct job *job = &hashing->job;
    char detail[HBM_DETAIL_MAX];

    if (stage->error || !buffer_get(hashing->core, row->buffer)) {
        row->error = stage->error ? stage->error : HBM_E_STALE;
        end_hashing(hashing, row->error, stage->error ? stage->detail : "it was freed meanwhile");
        return;
    }
    *job = (struct job){.opcode = JOB_HASH,
                        .device = stage->extent->device->index,
                        .progress = hash_progress,
                        .done = hashed,
                        .reply_fd = -1};
    int error = list_spans(hashing, &job->request.hash, detail);
    if (error) {
        rows_failed(hashing, error, detail);
        return;
    }
    extent_describe(stage->extent, job, &job->request.hash.extent);
    job->fds[job->n_fds++] = hashing->spans;
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
    fd_close(hashing->spans);
    free(hashing);
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
        snprintf(detail, sizeof(detail), OWNER_OUT_OF_MEMORY);
        error = HBM_E_NO_MEMORY;
    }
    struct op *op = error ? NULL : op_new(core, "hash", &call->who, call->session, selection.n, &error, detail);
    if (!op) {
        free(hashing);
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    *hashing = (struct hashing){.core = core, .op = id, .account = account, .spans = -1};
    op->state_of_verb = hashing;
    op->cancel = cancel_hashing;
    op->clear = clear_hashing;
    selection_by_arena(core, &selection);
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
