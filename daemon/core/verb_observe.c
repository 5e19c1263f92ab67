/* Observe: how the elements of each buffer are distributed now is added to what was seen of it before. One buffer
 * after the other; the first that cannot be ends it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/observation.h"
#include "daemon/core/verbs.h"
#include "proto/memfd.h"

struct observing {
    struct core *core;
    uint64_t op;
    double momentum;
    size_t at, counted; /* row; and how many were added before it */
    bool cancelled, running;
    struct extent *extent; /* one ref: what the job reads */
    struct job job;
};

static void next_row(struct observing *observing);

/* NULL: it can be observed as it is. */
static const char *unfit(const struct buffer *buffer, int *error)
{
    const struct extent *extent = buffer->arena->extent;

    *error = HBM_E_UNSUPPORTED;
    if (buffer->parent)
        return "it holds the scales or zero points of another buffer";
    if (!hbm_dtype_codable(buffer->dtype))
        return "F32, F16 and BF16 are observed";
    if (buffer->encoding.codec != HBM_CODEC_RAW)
        return "it is compressed, and what was lost is not seen any more: decompress it, and write it again";
    if (extent->tier == HBM_TIER_DISK || extent->packing)
        return "it is offloaded: restore it first";
    *error = HBM_E_LOST;
    return extent->lost ? "its memory is gone" : NULL;
}

static void end_observing(struct observing *observing, int error, const char *why)
{
    struct op *op = op_get(observing->core, observing->op);
    char sentence[HBM_DETAIL_MAX] = "";

    if (error && observing->at < op->n_rows)
        op->rows[observing->at].error = error;
    if (error && observing->counted)
        snprintf(sentence, sizeof(sentence), "%.60s: %.110s; %zu before it were added",
                 op->rows[observing->at].name, why, observing->counted);
    else if (error)
        snprintf(sentence, sizeof(sentence), "%.80s: %.170s", op->rows[observing->at].name, why);
    op_end(op, error, sentence);
}

static int out_of_memory(char *detail)
{
    snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
    return HBM_E_NO_MEMORY;
}

static int add(struct observing *observing, struct buffer *buffer, int fd, char *detail)
{
    size_t size = 0;
    uint64_t *counts = memfd_map_sealed(fd, JOB_OBSERVE_BYTES, &size), elements = 0;
    int error = HBM_E_INTERNAL;

    snprintf(detail, HBM_DETAIL_MAX, "the worker sent no counts");
    if (counts && size == JOB_OBSERVE_BYTES) {
        struct observation *observation = observation_of(buffer, &error, detail);
        hbm_shape_elements(buffer->dims, buffer->rank, &elements);
        bool added = observation && observation_add(observation, &observing->job.reply.observe, elements, counts,
                                                    observing->momentum);
        if (added)
            error = 0;
        else if (observation)
            error = out_of_memory(detail);
        if (observation && !observation->seen.batches && !observation->seen.imported)
            observation_free(observation);
    }
    if (counts)
        munmap(counts, size);
    return error;
}

static void observed(struct job *job)
{
    struct observing *observing = container_of(job, struct observing, job);
    struct op *op = op_get(observing->core, observing->op);
    struct op_row *row = &op->rows[observing->at];
    struct buffer *buffer = buffer_get(observing->core, row->buffer);
    _cleanup_fd_ int counts = TAKE_FD(job->reply_fd);
    char detail[HBM_DETAIL_MAX];

    observing->running = false;
    observing->extent = extent_unref(observing->extent);
    if (observing->cancelled) {
        end_observing(observing, HBM_E_CANCELLED, op->detail);
        return;
    }
    int error = job->error;
    if (error)
        snprintf(detail, sizeof(detail), "%s", job->detail);
    else if (!buffer)
        error = HBM_E_STALE, snprintf(detail, sizeof(detail), "it was freed meanwhile");
    else
        error = add(observing, buffer, counts, detail);
    if (error) {
        end_observing(observing, error, detail);
        return;
    }
    op->worked_ns += job->reply.observe.nanoseconds;
    op->bytes_done += row->size;
    observing->counted++;
    observing->at++;
    next_row(observing);
}

static void next_row(struct observing *observing)
{
    struct op *op = op_get(observing->core, observing->op);
    struct job *job = &observing->job;
    int error = HBM_E_STALE;

    while (observing->at < op->n_rows && op->rows[observing->at].skipped)
        observing->at++;
    if (observing->at == op->n_rows) {
        end_observing(observing, 0, NULL);
        return;
    }
    const struct buffer *buffer = buffer_get(observing->core, op->rows[observing->at].buffer);
    const char *why = buffer ? unfit(buffer, &error) : "it was freed meanwhile";
    if (why) {
        end_observing(observing, error, why);
        return;
    }
    observing->extent = extent_ref(buffer->arena->extent);
    *job = (struct job){
        .opcode = JOB_OBSERVE, .device = observing->extent->device->index, .done = observed, .reply_fd = -1};
    extent_describe(observing->extent, job, &job->request.observe.extent);
    job->request.observe.offset = buffer->offset;
    job->request.observe.dtype = buffer->dtype;
    hbm_shape_elements(buffer->dims, buffer->rank, &job->request.observe.elements);
    observing->running = true;
    observing->core->env.submit(observing->core->env.context, job);
}

static void cancel_observing(struct op *op)
{
    struct observing *observing = op->state_of_verb;

    observing->cancelled = true;
    if (observing->running)
        observing->core->env.cancel(observing->core->env.context, &observing->job);
}

static void clear_observing(struct op *op)
{
    struct observing *observing = op->state_of_verb;

    extent_unref(observing->extent);
    free(observing);
}

/* Rows of all that were named; of a pattern, what cannot be observed says why. */
static int fill_rows(struct op_row *rows, const struct selection *selection, const struct principal *who,
                     char *detail)
{
    const char *why = NULL;
    size_t fit = 0;
    int last = 0;

    for (size_t i = 0; i < selection->n; i++) {
        const struct buffer *buffer = selection->buffers[i];
        int error = HBM_E_DENIED;

        op_row_begin(&rows[i], buffer, who);
        rows[i].size = buffer->size;
        rows[i].skipped = arena_may_write(buffer->arena, who) ? unfit(buffer, &error)
                                                              : "it is another owner's, and not yours to write";
        fit += !rows[i].skipped;
        if (rows[i].skipped)
            why = rows[i].skipped, last = error;
    }
    if (fit == selection->n || (fit && selection->by_pattern))
        return 0;
    if (selection->n == 1)
        snprintf(detail, HBM_DETAIL_MAX, "%.80s: %.170s", rows->name, why);
    else
        snprintf(detail, HBM_DETAIL_MAX, "none of the %zu buffers named can be observed: of the last one, %.150s",
                 selection->n, why);
    return last;
}

static int check_args(const struct selection *selection, double momentum, char *detail)
{
    _cleanup_(arenas_clear) struct arenas arenas = {0};

    if (momentum >= 0 && momentum < 1)
        return arenas_of(selection, &arenas, detail);
    snprintf(detail, HBM_DETAIL_MAX, "the momentum of a moving average is 0 or more, and less than 1");
    return HBM_E_INVALID;
}

static struct op *begin(struct core *core, struct call *call, const struct selection *selection, double momentum,
                        int *error, char *detail)
{
    _cleanup_free_ struct op_row *rows = calloc(selection->n, sizeof(*rows));
    _cleanup_free_ struct observing *observing = calloc(1, sizeof(*observing));

    if (!rows || !observing) {
        *error = out_of_memory(detail);
        return NULL;
    }
    *error = fill_rows(rows, selection, &call->who, detail);
    struct op *op = *error ? NULL
                           : op_of_rows(core, "observe", &call->who, call->session, TAKE_PTR(rows), selection->n,
                                        error, detail);
    if (!op)
        return NULL;
    for (size_t i = 0; i < op->n_rows; i++)
        op->bytes_total += op->rows[i].skipped ? 0 : op->rows[i].size;
    *observing = (struct observing){.core = core, .op = op->id, .momentum = momentum};
    op->state_of_verb = TAKE_PTR(observing);
    op->cancel = cancel_observing;
    op->clear = clear_observing;
    return op;
}

void verb_observe(struct core *core, struct call *call, const char *sel, double momentum)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    if (!error)
        error = check_args(&selection, momentum, detail);
    struct op *op = error ? NULL : begin(core, call, &selection, momentum, &error, detail);
    if (!op) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    uint64_t id = op->id;
    next_row(op->state_of_verb);
    call_done(call, op_get(core, id));
}
