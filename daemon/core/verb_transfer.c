/* Transfer: ranges of buffers from or to the caller's open file, one arena after the other. A failure leaves a
 * half-filled buffer half filled: who was filling it throws it away. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/sent.h"
#include "daemon/core/stage.h"
#include "daemon/core/transfer_parts.h"
#include "daemon/core/verbs.h"
#include "proto/memfd.h"

struct transfer {
    struct core *core;
    uint64_t op;
    struct owner owner;
    struct account *account;
    int file, ranges; /* ranges: the running job's, sealed */
    uint32_t uid;      /* whose request it is */
    bool write, cancelled, running;
    struct transfer_parts parts;
    size_t at;
    uint64_t finished;
    struct transition hold;
    struct stage stage;
    struct job job;
};

static void next_part(struct transfer *transfer);

static struct transfer *transfer_free(struct transfer *transfer)
{
    if (!transfer)
        return NULL;
    stage_clear(&transfer->stage);
    transfer_parts_clear(&transfer->parts);
    transition_clear(&transfer->hold);
    fd_close(transfer->ranges);
    sent_close(transfer->core, transfer->owner, transfer->file);
    free(transfer);
    return NULL;
}
DEFINE_FREEP(struct transfer, transfer_free)

static void end_transfer(struct transfer *transfer, int error, const char *detail)
{
    struct op *op = op_get(transfer->core, transfer->op);
    char sentence[HBM_DETAIL_MAX];

    snprintf(sentence, sizeof(sentence), "%s", detail ? detail : "");
    op->clear = NULL;
    op->state_of_verb = NULL;
    transition_let_go(&transfer->hold);
    transfer_free(transfer);
    op_end(op, error, sentence);
}

static void part_done(struct job *job)
{
    struct transfer *transfer = container_of(job, struct transfer, job);
    struct transfer_part *part = &transfer->parts.at[transfer->at];
    struct op *op = op_get(transfer->core, transfer->op);

    transfer->running = false;
    transfer->ranges = fd_close(transfer->ranges);
    if (job->late && job->error)
        account_count_dead_file(transfer->account);
    if (transfer->cancelled) {
        end_transfer(transfer, HBM_E_CANCELLED, op->detail);
    } else if (job->error) {
        end_transfer(transfer, job->error, job->detail);
    } else {
        transfer->finished += part->bytes;
        op->bytes_done = transfer->finished;
        op->worked_ns += transfer->stage.worked_ns + job->reply.file.nanoseconds;
        stage_clear(&transfer->stage);
        transfer_part_clear(part);
        transfer->at++;
        next_part(transfer);
    }
}

static void part_progress(struct job *job)
{
    struct transfer *transfer = container_of(job, struct transfer, job);

    op_get(transfer->core, transfer->op)->bytes_done = transfer->finished + job->bytes_done;
}

static void staged(struct stage *stage)
{
    struct transfer *transfer = container_of(stage, struct transfer, stage);
    const struct transfer_part *part = &transfer->parts.at[transfer->at];
    struct job *job = &transfer->job;

    if (stage->error) {
        end_transfer(transfer, stage->error, stage->detail);
        return;
    }
    transfer->ranges = memfd_sealed("hbm-ranges", part->ranges, part->n * sizeof(*part->ranges));
    if (transfer->ranges < 0) {
        bool ran_out = fd_ran_out(-transfer->ranges);
        end_transfer(transfer, ran_out ? HBM_E_LIMIT : HBM_E_SYSTEM,
                     ran_out ? FD_RAN_OUT : "the owner cannot make a memfd of the ranges");
        return;
    }
    *job = (struct job){.opcode = JOB_FILE,
                        .device = stage->extent->device->index,
                        .progress = part_progress,
                        .done = part_done,
                        .reply_fd = -1};
    extent_describe(stage->extent, job, &job->request.file.extent);
    job->fds[job->n_fds++] = transfer->file;
    job->fds[job->n_fds++] = transfer->ranges;
    job->request.file.n_ranges = part->n;
    job->request.file.write = transfer->write;
    job->request.file.uid = transfer->uid;
    transfer->running = true;
    transfer->core->env.submit(transfer->core->env.context, job);
}

static void next_part(struct transfer *transfer)
{
    if (transfer->at == transfer->parts.n) {
        end_transfer(transfer, 0, NULL);
        return;
    }
    struct transfer_part *part = &transfer->parts.at[transfer->at];
    transfer->stage = (struct stage){
        .core = transfer->core,
        .account = transfer->account,
        .arena = part->arena,
        .extent = TAKE_PTR(part->extent),
        .decode = part->decode,
        .done = staged,
    };
    part->decode = (struct plan){0};
    stage_start(&transfer->stage);
}

static void cancel_transfer(struct op *op)
{
    struct transfer *transfer = op->state_of_verb;

    transfer->cancelled = true;
    if (transfer->running)
        transfer->core->env.cancel(transfer->core->env.context, &transfer->job);
    else
        stage_cancel(&transfer->stage, op->detail);
}

static void clear_transfer(struct op *op)
{
    transfer_free(op->state_of_verb);
}

/* What is being filled is held in place; a model under construction is not moved by anyone. */
static int hold_arenas(struct transfer *transfer, char *detail)
{
    struct transition *hold = &transfer->hold;

    *hold = (struct transition){
        .core = transfer->core, .verb = "transfer", .plans = calloc(transfer->parts.n + 1, sizeof(*hold->plans))};
    if (!hold->plans) {
        snprintf(detail, HBM_DETAIL_MAX, "the owner is out of memory for its own tables");
        return HBM_E_NO_MEMORY;
    }
    for (size_t i = 0; i < transfer->parts.n; i++)
        if (transfer->parts.at[i].hold)
            hold->plans[hold->n++].arena = transfer->parts.at[i].arena;
    int error = transition_hold(hold);
    if (error)
        memcpy(detail, hold->detail, HBM_DETAIL_MAX);
    return error;
}

static int prepare(struct transfer *transfer, struct call *call, int file, const struct wire_range *ranges,
                   uint32_t n, char *detail)
{
    int error = transfer_parts_make(transfer->core, call, ranges, n, transfer->write, &transfer->parts, detail);

    if (error)
        return error;
    transfer->uid = call->who.owner.uid;
    transfer->account = account_of(transfer->core, call->who.owner);
    error = transfer->account ? account_check_files(transfer->account, detail) : 0;
    if (error)
        return error;
    transfer->file = fcntl(file, F_DUPFD_CLOEXEC, 3);
    if (transfer->file < 0 || !transfer->account) {
        bool ran_out = transfer->file < 0 && fd_ran_out(errno);
        snprintf(detail, HBM_DETAIL_MAX, "the owner cannot keep the file open: %s", strerror(errno));
        return ran_out ? HBM_E_LIMIT : HBM_E_SYSTEM;
    }
    return hold_arenas(transfer, detail);
}

void verb_transfer(struct core *core, struct call *call, int file, const struct wire_range *ranges, uint32_t n,
                   bool write)
{
    _cleanup_(transfer_freep) struct transfer *transfer = calloc(1, sizeof(*transfer));
    char detail[HBM_DETAIL_MAX] = "";
    int error = 0;

    if (!transfer) {
        call_refuse(call, HBM_E_NO_MEMORY, "the owner is out of memory for its own tables");
        return;
    }
    *transfer = (struct transfer){.core = core, .owner = call->who.owner, .file = -1, .ranges = -1, .write = write};
    transfer->hold.core = core;
    error = prepare(transfer, call, file, ranges, n, detail);
    struct op *op = error ? NULL : op_new(core, "transfer", &call->who, call->session, 0, &error, detail);
    if (!op) {
        transition_let_go(&transfer->hold);
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    transfer->op = transfer->hold.op = id;
    op->state_of_verb = transfer;
    op->cancel = cancel_transfer;
    op->clear = clear_transfer;
    for (size_t i = 0; i < transfer->parts.n; i++)
        op->bytes_total += transfer->parts.at[i].bytes;
    next_part(TAKE_PTR(transfer));
    call_done(call, op_get(core, id));
}
