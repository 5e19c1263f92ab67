#include "daemon/core/steps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/core/calibration.h"
#include "daemon/core/hold.h"
#include "daemon/core/links.h"
#include "daemon/core/measure.h"
#include "daemon/core/table_fd.h"
#include "proto/memfd.h"

/* Names what lies in the arena whose stored copy turned out to be damaged, in the op and as an event. The arena
 * stays where it is: every later restore meets the same bytes and fails the same way. */
static void tell_damage(struct transition *transition, const struct plan *plan)
{
    struct core *core = transition->core;
    struct arena *arena = arena_get(core, plan->arena);
    char names[120];

    if (!arena)
        return;
    arena_names(arena, names, sizeof(names));
    const struct buffer *first = list_entry(list_first(&arena->buffers), struct buffer, arena_node);
    event_emit(&core->events, "arena.damaged", arena->id, first->name, arena->owner.listener, arena->owner.uid, 0,
               "the copy in the %s tier is not what was stored: %s", hbm_tier_name(plan->source->tier), names);
    snprintf(transition->detail, sizeof(transition->detail), "the copy of %s in the %s tier is damaged", names,
             hbm_tier_name(plan->source->tier));
}

/* Of many arenas and buffers: which. A coder's step is about one buffer, a copy about its arena's. */
static void tell_whose(const struct track *track)
{
    struct transition *transition = track->transition;
    struct core *core = transition->core;
    const struct plan *plan = track->plan;
    const struct step *step = &plan->steps[track->step - 1];
    const struct arena *arena = arena_get(core, plan->arena);
    const struct buffer *buffer = step->kind == STEP_ENCODE ? buffer_get(core, plan->placements[step->placement].buffer) : NULL;

    if (!buffer && arena && !list_empty(&arena->buffers))
        buffer = list_entry(list_first(&arena->buffers), struct buffer, arena_node);
    if (buffer && buffer->name)
        snprintf(transition->detail, sizeof(transition->detail), "%.80s: %.170s", buffer->name, track->job.detail);
}

static bool is_whole(const struct plan *plan, const struct step *step)
{
    return step->kind == STEP_COPY && !step->source_offset && !step->target_offset &&
           step->bytes == plan->source->size && step->bytes == plan->target->size;
}

/* Two devices' memory: which side is not here. */
static uint32_t peer_flags(const struct plan *plan)
{
    if (plan->source->tier != HBM_TIER_DEVICE || plan->target->tier != HBM_TIER_DEVICE ||
        plan->source->device == plan->target->device)
        return 0;
    return plan->source->device == plan_worker(plan) ? JOB_TO_PEER : JOB_FROM_PEER;
}

/* It has left the memory that clients write. */
static bool is_away(const struct plan *plan)
{
    return plan->target->tier != HBM_TIER_DEVICE || (plan->home && plan->target->device != plan->home);
}

static void describe_copy(struct job *job, const struct plan *plan, const struct step *step)
{
    struct job_copy_request *copy = &job->request.copy;

    job->opcode = JOB_COPY;
    extent_describe(plan->source, job, &copy->source);
    extent_describe(plan->target, job, &copy->target);
    copy->source_offset = step->source_offset;
    copy->target_offset = step->target_offset;
    copy->bytes = step->bytes;
    copy->flags |= peer_flags(plan);
    if (!extent_is_made(plan->target))
        copy->flags |= JOB_MAKE_TARGET;
    if (!is_whole(plan, step))
        return;
    /* Hashing costs a pass over host memory: copies that stay on the device, where clients write, have no checksum.
     */
    if (is_away(plan))
        copy->flags |= JOB_CHECKSUM;
    if (plan->source->has_checksum) {
        copy->flags |= JOB_CHECKSUM | JOB_VERIFY;
        copy->expected = plan->source->checksum;
    }
}

static void describe_pack(struct job *job, const struct plan *plan, int table)
{
    struct job_pack_request *pack = &job->request.pack;

    job->opcode = JOB_PACK;
    extent_describe(plan->source, job, &pack->raw);
    extent_describe(plan->target, job, &pack->packed);
    job->fds[job->n_fds++] = table;
    pack->bytes = plan->target->size;
    pack->flags = JOB_CHECKSUM;
    pack->n_pieces = plan->packing->n_pieces;
    pack->n_receipts = plan->packing->n_packed;
}

static void describe_unpack(struct job *job, const struct plan *plan, int table)
{
    struct job_unpack_request *unpack = &job->request.unpack;

    job->opcode = JOB_UNPACK;
    extent_describe(plan->target, job, &unpack->raw);
    extent_describe(plan->source, job, &unpack->packed);
    job->share = account_share(plan->target->account);
    job->fds[job->n_fds++] = table;
    unpack->bytes = plan->source->size;
    unpack->n_pieces = plan->packing->n_pieces;
    unpack->n_receipts = plan->packing->n_packed;
    if (!extent_is_made(plan->target))
        unpack->flags |= JOB_MAKE_TARGET;
    if (plan->source->has_checksum) {
        unpack->flags |= JOB_CHECKSUM | JOB_VERIFY;
        unpack->expected = plan->source->checksum;
    }
}

static void describe(struct job *job, const struct plan *plan, const struct step *step, int table)
{
    switch (step->kind) {
    case STEP_PACK:
        describe_pack(job, plan, table);
        break;
    case STEP_UNPACK:
        describe_unpack(job, plan, table);
        break;
    case STEP_COPY:
        describe_copy(job, plan, step);
        break;
    case STEP_ENCODE:
        job->opcode = JOB_ENCODE;
        extent_describe(plan->source, job, &job->request.encode.source);
        extent_describe(plan->target, job, &job->request.encode.target);
        job->request.encode.code = step->code;
        job->request.encode.min_sqnr_db = step->min_sqnr_db;
        job->request.encode.max_error = step->max_error;
        job->request.encode.calibration = step->calibration;
        if (table >= 0)
            job->fds[job->n_fds++] = table;
        break;
    case STEP_DECODE:
        job->opcode = JOB_DECODE;
        extent_describe(plan->source, job, &job->request.decode.source);
        extent_describe(plan->target, job, &job->request.decode.target);
        job->request.decode.code = step->code;
        break;
    }
}

/* Of the raw form, where the job counts what goes over the link. */
static uint64_t bytes_done(const struct track *track)
{
    const struct step *step = &track->plan->steps[track->step];
    const struct extent *packed = step->kind == STEP_PACK     ? track->plan->target
                                  : step->kind == STEP_UNPACK ? track->plan->source
                                                              : NULL;

    if (!packed)
        return track->job.bytes_done;
    return (uint64_t)((unsigned __int128)track->job.bytes_done * step->bytes / packed->size);
}

static void step_progress(struct job *job)
{
    struct track *track = container_of(job, struct track, job);
    struct transition *transition = track->transition;

    track->bytes = bytes_done(track);
    if (transition->progress)
        transition->progress(transition);
}

/* What the step's job goes by, if it does. False: it can't be made. */
static bool make_table(struct track *track, const struct step *step)
{
    struct transition *transition = track->transition;

    if (step->kind == STEP_PACK || step->kind == STEP_UNPACK)
        track->table = packing_table(track->plan->packing, step->kind == STEP_PACK);
    else if (step->kind == STEP_ENCODE && step->observation)
        track->table = calibration_table(transition->core, step->observation);
    else
        return true;
    if (track->table >= 0)
        return true;
    if (track->table == -ESTALE)
        transition->step_error = transition_refuse(transition, HBM_E_STALE, "what the range was to be taken from was forgotten meanwhile");
    else
        transition->step_error = table_fd_refused(track->table, transition->detail);
    track->table = -1;
    return false;
}

bool track_next(struct track *track, void (*done)(struct job *job))
{
    const struct plan *plan = track->plan;
    struct job *job = &track->job;

    if (track->step == plan->n_steps || !make_table(track, &plan->steps[track->step]))
        return false;
    *job = (struct job){
        .device = plan_worker(plan)->index, .progress = step_progress, .done = done, .reply_fd = -1};
    describe(job, plan, &plan->steps[track->step], track->table);
    plan_worker(plan)->moves++;
    if (!links_start(track, done))
        track->transition->core->env.submit(track->transition->core->env.context, job);
    return true;
}

/* Against what its buffer's policy, or the one who asked, will have at least. Written so that a NaN is outside of every
 * bound. */
static int check_quality(struct transition *transition, const struct packed *packed, const struct hbm_receipt *receipt)
{
    const struct buffer *buffer = buffer_get(transition->core, packed->buffer);
    const char *name = buffer && buffer->name ? buffer->name : "a buffer";

    if (packed->min_sqnr_db > 0 && !(receipt->sqnr_db >= packed->min_sqnr_db))
        return transition_refuse(transition, HBM_E_QUALITY,
                                 "%.100s: signal to noise is %.2f dB, at least %.2f dB was asked for", name,
                                 receipt->sqnr_db, packed->min_sqnr_db);
    if (packed->max_error > 0 && !(receipt->max_abs_error <= packed->max_error))
        return transition_refuse(transition, HBM_E_QUALITY, "%.100s: the largest error is %g, at most %g was asked for",
                                 name, receipt->max_abs_error, packed->max_error);
    return 0;
}

static int read_receipts(struct transition *transition, struct plan *plan, int fd)
{
    size_t size = plan->packing->n_packed * sizeof(*plan->receipts);
    void *bytes = fd < 0 ? NULL : memfd_map_exact(fd, size);
    int error = 0;

    if (!bytes)
        return transition_refuse(transition, HBM_E_INTERNAL, "the worker sent no receipts for what it packed");
    memcpy(plan->receipts, bytes, size);
    munmap(bytes, size);
    for (uint32_t i = 0; i < plan->packing->n_packed && !error; i++)
        error = check_quality(transition, &plan->packing->packed[i], &plan->receipts[i].receipt);
    return error;
}

int track_book(struct track *track, int reply)
{
    struct transition *transition = track->transition;
    struct plan *plan = track->plan;
    const struct step *step = &plan->steps[track->step++];
    const struct job *job = &track->job;
    uint64_t worked_ns = 0;

    track->bytes = 0;
    if (job->error) {
        memcpy(transition->detail, job->detail, sizeof(transition->detail));
        if (job->error == HBM_E_CHECKSUM)
            tell_damage(transition, plan);
        else
            tell_whose(track);
        return job->error;
    }
    transition->bytes_done += step_bytes(step);
    switch (step->kind) {
    case STEP_COPY:
        worked_ns = job->reply.copy.nanoseconds;
        if (is_whole(plan, step) && is_away(plan)) {
            plan->target->checksum = job->reply.copy.checksum;
            plan->target->has_checksum = true;
        }
        break;
    case STEP_PACK: {
        int error = read_receipts(transition, plan, reply);
        if (error)
            return error;
        worked_ns = job->reply.pack.nanoseconds;
        plan->target->checksum = job->reply.pack.checksum;
        plan->target->has_checksum = true;
        break;
    }
    case STEP_UNPACK:
        worked_ns = job->reply.unpack.nanoseconds;
        break;
    case STEP_ENCODE: {
        struct placement *placement = &plan->placements[step->placement];
        uint64_t before = step_bytes(step);
        placement->receipt = job->reply.encode.receipt;
        placement->quality = job->reply.encode.quality;
        placement->receipt.bytes_before = before;
        placement->receipt.bytes_after = placement->size;
        for (unsigned i = 0; i < PARTS; i++)
            placement->receipt.bytes_after += placement->parts[i].size;
        placement->has_receipt = true;
        worked_ns = (uint64_t)(placement->receipt.seconds * 1e9);
        break;
    }
    case STEP_DECODE:
        worked_ns = job->reply.decode.nanoseconds;
        break;
    }
    /* Those that wait for a thread do not work yet. */
    transition->worked_ns +=
        worked_ns / (transition->n_busy < TRANSITION_AT_ONCE ? transition->n_busy : TRANSITION_AT_ONCE);
    if (transition->progress)
        transition->progress(transition);
    return 0;
}
