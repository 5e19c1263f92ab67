#include "daemon/core/steps.h"

#include <stdio.h>
#include <string.h>

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

static void describe(struct job *job, const struct plan *plan, const struct step *step)
{
    switch (step->kind) {
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
        break;
    case STEP_DECODE:
        job->opcode = JOB_DECODE;
        extent_describe(plan->source, job, &job->request.decode.source);
        extent_describe(plan->target, job, &job->request.decode.target);
        job->request.decode.code = step->code;
        break;
    }
}

static void step_progress(struct job *job)
{
    struct track *track = container_of(job, struct track, job);
    struct transition *transition = track->transition;

    track->bytes = job->bytes_done;
    if (transition->progress)
        transition->progress(transition);
}

bool track_next(struct track *track, void (*done)(struct job *job))
{
    const struct plan *plan = track->plan;
    struct job *job = &track->job;

    if (track->step == plan->n_steps)
        return false;
    *job = (struct job){
        .device = plan_worker(plan)->index, .progress = step_progress, .done = done, .reply_fd = -1};
    describe(job, plan, &plan->steps[track->step]);
    track->transition->core->env.submit(track->transition->core->env.context, job);
    return true;
}

int track_book(struct track *track)
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
    case STEP_ENCODE: {
        struct placement *placement = &plan->placements[step->placement];
        uint64_t before = step_bytes(step);
        placement->receipt = job->reply.encode.receipt;
        placement->receipt.bytes_before = before;
        placement->receipt.bytes_after = placement->size + placement->scale_size;
        placement->has_receipt = true;
        worked_ns = (uint64_t)(placement->receipt.seconds * 1e9);
        break;
    }
    case STEP_DECODE:
        worked_ns = job->reply.decode.nanoseconds;
        break;
    }
    transition->worked_ns += worked_ns / transition->n_busy;
    if (transition->progress)
        transition->progress(transition);
    return 0;
}
