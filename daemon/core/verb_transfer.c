/* Transfer: ranges of buffers from or to the caller's open file, one arena after the other. A failure leaves a
 * half-filled buffer half filled: who was filling it throws it away. Many ranges are looked at some in each turn of the
 * loop; the call is answered when all are, as if they were few. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/sent.h"
#include "daemon/core/stage.h"
#include "daemon/core/table_fd.h"
#include "daemon/core/transfer_parts.h"
#include "daemon/core/verbs.h"
#include "proto/memfd.h"

#define RANGES_A_TURN 8192u /* a millisecond or two */
#define TURN_MS 1

struct transfer {
    struct core *core;
    struct call *call; /* until all ranges are looked at */
    struct wire_range *wanted; /* likewise; mapped */
    uint32_t n_wanted, looked_at;
    struct timer timer; /* the next turn */
    uint64_t op;       /* 0: not needed so far */
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

static void drop_wanted(struct transfer *transfer)
{
    if (transfer->n_wanted)
        munmap(transfer->wanted, transfer->n_wanted * sizeof(*transfer->wanted));
    transfer->n_wanted = 0;
}

static struct transfer *transfer_free(struct transfer *transfer)
{
    timer_stop(transfer->core, &transfer->timer);
    drop_wanted(transfer);
    stage_clear(&transfer->stage);
    transfer_parts_clear(&transfer->parts);
    transition_clear(&transfer->hold);
    fd_close(transfer->ranges);
    sent_close(transfer->core, transfer->owner, transfer->file);
    free(transfer);
    return NULL;
}

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
    char detail[HBM_DETAIL_MAX];

    if (stage->error) {
        end_transfer(transfer, stage->error, stage->detail);
        return;
    }
    transfer->ranges = memfd_sealed("hbm-ranges", part->ranges, part->n * sizeof(*part->ranges));
    if (transfer->ranges < 0) {
        int error = table_fd_refused(transfer->ranges, detail);
        end_transfer(transfer, error, detail);
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

/* Whoever asked has not heard of the op, and now never will. */
static void cancel_looking(struct transfer *transfer, struct op *op)
{
    struct call *call = TAKE_PTR(transfer->call);
    char why[HBM_DETAIL_MAX];

    memcpy(why, op->detail, sizeof(why));
    op->quiet = true;
    end_transfer(transfer, HBM_E_CANCELLED, why);
    call_refuse(call, HBM_E_CANCELLED, "%s", why);
}

static void cancel_transfer(struct op *op)
{
    struct transfer *transfer = op->state_of_verb;

    if (transfer->call) {
        cancel_looking(transfer, op);
        return;
    }
    transfer->cancelled = true;
    if (transfer->running)
        transfer->core->env.cancel(transfer->core->env.context, &transfer->job);
    else
        stage_cancel(&transfer->stage, op->detail);
}

static void clear_transfer(struct op *op)
{
    struct transfer *transfer = op->state_of_verb;

    if (transfer->call)
        call_refuse(transfer->call, HBM_E_SHUTTING_DOWN, "the daemon ends");
    transfer_free(transfer);
}

/* What is being filled is held in place; a model under construction is not moved by anyone. */
static int hold_arenas(struct transfer *transfer, char *detail)
{
    struct transition *hold = &transfer->hold;

    *hold = (struct transition){
        .core = transfer->core, .verb = "transfer", .plans = calloc(transfer->parts.n + 1, sizeof(*hold->plans))};
    if (!hold->plans) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
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

static int make_op(struct transfer *transfer, char *detail)
{
    int error = 0;
    struct op *op = transfer->op ? NULL
                                 : op_new(transfer->core, "transfer", &transfer->call->who, transfer->call->session, 0, &error, detail);

    if (!op)
        return error;
    transfer->op = transfer->hold.op = op->id;
    op->state_of_verb = transfer;
    op->cancel = cancel_transfer;
    op->clear = clear_transfer;
    return 0;
}

/* All ranges are looked at. */
static int prepare(struct transfer *transfer, char *detail)
{
    int error = transfer_parts_finish(transfer->core, &transfer->parts, detail);

    if (error)
        return error;
    transfer->uid = transfer->call->who.owner.uid;
    transfer->account = account_of(transfer->core, transfer->call->who.owner);
    if (!transfer->account) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    error = account_check_files(transfer->account, detail);
    if (!error)
        error = hold_arenas(transfer, detail);
    return error ? error : make_op(transfer, detail);
}

static void refuse(struct transfer *transfer, int error, const char *detail)
{
    struct op *op = transfer->op ? op_get(transfer->core, transfer->op) : NULL;
    struct call *call = TAKE_PTR(transfer->call);

    transition_let_go(&transfer->hold);
    transfer_free(transfer);
    if (op) {
        op->clear = NULL;
        op_free(op);
    }
    call_refuse(call, error, "%s", detail);
}

static void begin(struct transfer *transfer)
{
    struct core *core = transfer->core;
    struct op *op = op_get(core, transfer->op);
    struct call *call = TAKE_PTR(transfer->call);
    uint64_t id = op->id;

    drop_wanted(transfer);
    for (size_t i = 0; i < transfer->parts.n; i++)
        op->bytes_total += transfer->parts.at[i].bytes;
    next_part(transfer);
    call_done(call, op_get(core, id));
}

/* From the second turn on it is an op: it counts as one, can be cancelled, and ends with its session. */
static void look_at_some(struct timer *timer)
{
    struct transfer *transfer = container_of(timer, struct transfer, timer);
    uint32_t left = transfer->n_wanted - transfer->looked_at, n = left < RANGES_A_TURN ? left : RANGES_A_TURN;
    char detail[HBM_DETAIL_MAX] = "";
    int error = transfer_parts_add(transfer->core, transfer->call, transfer->wanted + transfer->looked_at, n,
                                   transfer->write, &transfer->parts, detail);

    transfer->looked_at += n;
    if (!error)
        error = n < left ? make_op(transfer, detail) : prepare(transfer, detail);
    if (error)
        refuse(transfer, error, detail);
    else if (n < left)
        timer_arm(transfer->core, timer, TURN_MS);
    else
        begin(transfer);
}

void verb_transfer(struct core *core, struct call *call, int file, struct wire_range *ranges, uint32_t n, bool write)
{
    struct transfer *transfer = calloc(1, sizeof(*transfer));

    if (!transfer) {
        if (n)
            munmap(ranges, n * sizeof(*ranges));
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    *transfer = (struct transfer){.core = core,
                                  .call = call,
                                  .wanted = ranges,
                                  .n_wanted = n,
                                  .owner = call->who.owner,
                                  .file = fcntl(file, F_DUPFD_CLOEXEC, 3),
                                  .ranges = -1,
                                  .write = write};
    list_init(&transfer->timer.node);
    transfer->timer.fire = look_at_some;
    transfer->hold.core = core;
    if (transfer->file >= 0)
        look_at_some(&transfer->timer);
    else if (fd_ran_out(errno))
        refuse(transfer, HBM_E_LIMIT, FD_RAN_OUT);
    else
        refuse(transfer, HBM_E_SYSTEM, "the owner cannot keep the file open");
}
