#include "daemon/core/transition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/coming.h"
#include "daemon/core/commit.h"
#include "daemon/core/health.h"
#include "daemon/core/hold.h"
#include "daemon/core/ledger.h"
#include "daemon/core/links.h"
#include "daemon/core/measure.h"
#include "daemon/core/peer.h"
#include "daemon/core/steps.h"
#include "daemon/core/tracks.h"
#include "daemon/core/weight.h"

/* ---- The end ---- */

/* What nothing else refers to goes: one record says so of all, before the first of their fds is closed. */
static void bury_extents(struct transition *transition, bool targets)
{
    struct core *core = transition->core;

    ledger_begin(core);
    for (size_t i = 0; i < transition->n; i++) {
        const struct plan *plan = &transition->plans[i];
        if (plan->source && plan->source->refs == 1)
            ledger_drop(core, plan->source->id);
        if (targets && plan->target && plan->target->refs == 1)
            ledger_drop(core, plan->target->id);
    }
    ledger_end(core);
}

static void drop_extents(struct transition *transition, bool targets)
{
    if (transition->n > 1)
        bury_extents(transition, targets);
    for (size_t i = 0; i < transition->n; i++) {
        struct plan *plan = &transition->plans[i];
        plan->source = extent_unref(plan->source);
        if (targets)
            plan->target = extent_unref(plan->target);
    }
}

/* The last thing a transition does: done may free it. */
static void finish(struct transition *transition, int error)
{
    if (error && !transition->error)
        transition->error = error;
    transition->phase = TRANSITION_IDLE;
    tracks_drop(transition);
    if (transition->error)
        coming_has_failed(transition);
    drop_extents(transition, transition->error || !transition->copy);
    transition_settle(transition);
    transition->done(transition);
}

/* ---- Steps ---- */

static int commit(struct transition *transition)
{
    if (!transition->copy)
        return commit_swap(transition, transition->plans, transition->n);
    return transition->commit ? transition->commit(transition) : 0;
}

/* A restart would not know of a swap that cannot be written down: the old memory gone, the new one nobody's. */
static int check_ledger(struct transition *transition)
{
    return ledger_trouble(transition->core) ? health_check(transition->core, transition->detail) : 0;
}

static void ask_to_let_go(struct transition *transition);

/* The reason it was called off for stands, whatever the jobs say. */
static void conclude(struct transition *transition)
{
    int error = transition->step_error;

    if (transition->one_by_one && transition->swapped == transition->n) {
        finish(transition, 0);
        return;
    }
    if (transition->cancelled)
        error = transition_refuse(transition, HBM_E_CANCELLED, "%s", transition->why);
    if (!error)
        error = check_ledger(transition);
    finish(transition, error ? error : commit(transition));
}

static void steps_ended(struct transition *transition)
{
    transition->copied = true;
    if (transition->cancelled || transition->step_error)
        conclude(transition);
    else
        ask_to_let_go(transition);
}

static void fill_tracks(struct transition *transition);

static void track_ended(struct track *track)
{
    struct transition *transition = track->transition;

    track->transition = NULL;
    transition->n_busy--;
    fill_tracks(transition);
}

/* The first error is the transition's: detail says why. */
static void track_failed(struct track *track, int error)
{
    track->transition->step_error = error;
    tracks_cancel(track->transition, track);
    track_ended(track);
}

static void step_done(struct job *job);

/* Its arena is free before the next one's turn: who waits for it starts at once. */
static void swap_one(struct track *track)
{
    struct transition *transition = track->transition;
    struct plan *plan = track->plan;
    int error = check_ledger(transition);

    if (!error)
        error = commit_swap(transition, plan, 1);
    if (error) {
        track_failed(track, error);
        return;
    }
    transition->swapped++;
    plan->source = extent_unref(plan->source);
    if (transition->progress)
        transition->progress(transition);
    track->transition = NULL; /* nothing is left of it to cancel */
    struct arena *arena = arena_get(transition->core, plan->arena);
    if (arena && arena->transition == transition)
        arena_settled(arena);
    transition->n_busy--;
    fill_tracks(transition);
}

static void track_goes_on(struct track *track)
{
    bool over = transition_is_over(track->transition);

    if (!over && track_next(track, step_done))
        return;
    if (!over && track->transition->one_by_one)
        swap_one(track);
    else
        track_ended(track);
}

static void target_kept(struct extent_create *create)
{
    struct track *track = container_of(create, struct track, keep);

    track->keeping = false;
    track->plan->target = create->extent;
    if (create->error && !transition_is_over(track->transition))
        track_failed(track, transition_refuse(track->transition, create->error, "%s", create->detail));
    else
        track_goes_on(track);
}

/* The step has made the memory that it filled. Takes the fd. */
static void keep_target(struct track *track, int fd)
{
    track->keeping = true;
    track->keep = (struct extent_create){.core = track->transition->core,
                                         .moves = !track->transition->copy || !track->transition->commit,
                                         .extent = TAKE_PTR(track->plan->target),
                                         .done = target_kept};
    extent_create_finish(&track->keep, fd);
}

static void step_done(struct job *job)
{
    struct track *track = container_of(job, struct track, job);
    struct transition *transition = track->transition;
    _cleanup_fd_ int made = TAKE_FD(job->reply_fd);

    track->table = fd_close(track->table);
    plan_worker(track->plan)->moves--;
    if (job->at_large && track->plan->target)
        track->plan->target->exported = true; /* nobody gets it next */
    if (transition_is_over(transition)) {
        track_ended(track);
        return;
    }
    int error = track_book(track, made);
    if (error)
        track_failed(track, error);
    else if (extent_is_made(track->plan->target))
        track_goes_on(track);
    else if (made < 0)
        track_failed(track,
                     transition_refuse(transition, HBM_E_INTERNAL, "the worker sent no memory for what it copied"));
    else
        keep_target(track, TAKE_FD(made));
}

static bool is_waited_for(const struct transition *transition, const struct plan *plan)
{
    const struct arena *arena = arena_get(transition->core, plan->arena);

    return arena && !list_empty(&arena->waiters);
}

/* Counts it as begun. */
static struct plan *next_plan(struct transition *transition)
{
    struct plan *next = &transition->plans[transition->at++], *first = NULL;

    if (!transition->one_by_one)
        return next;
    next = NULL;
    for (size_t i = 0; i < transition->n && !next; i++) {
        struct plan *plan = &transition->plans[i];
        if (plan->begun)
            continue;
        first = first ? first : plan;
        if (is_waited_for(transition, plan))
            next = plan;
    }
    next = next ? next : first;
    next->begun = true;
    return next;
}

static void start_track(struct track *track, struct transition *transition)
{
    *track = (struct track){.transition = transition, .plan = next_plan(transition), .table = -1};
    transition->n_busy++;
    if (!track_next(track, step_done)) { /* nothing is in it */
        track->transition = NULL;
        transition->n_busy--;
    }
}

static void fill_tracks(struct transition *transition)
{
    struct track *track;

    while (!transition_is_over(transition) && transition->at < transition->n && (track = tracks_next(transition, TRANSITION_AT_ONCE)))
        start_track(track, transition);
    if (!transition->n_busy)
        steps_ended(transition);
}

/* ---- Letting go: all arenas are asked at once, so that one deadline and one safe point serve them all; or all that are
 * written at once, and when everything is copied the others ---- */

static void measure_rest(struct transition *transition);

static void begin_steps(struct transition *transition)
{
    transition->phase = TRANSITION_STEPPING;
    transition->at = 0;
    coming_begins(transition);
    fill_tracks(transition);
}

static void reclaims_settled(struct transition *transition)
{
    if (transition->reclaim_error) {
        transition_withdraw(transition);
        finish(transition, transition->reclaim_error);
    } else if (!transition->reclaims && transition->copied) {
        conclude(transition);
    } else if (!transition->reclaims && transition->measured) {
        measure_rest(transition);
    } else if (!transition->reclaims) {
        begin_steps(transition);
    }
}

static void let_go(struct reclaim *reclaim)
{
    struct plan *plan = container_of(reclaim, struct plan, wait);
    struct transition *transition = plan->transition;

    plan->waiting = false;
    transition->reclaims--;
    if (reclaim->error && !transition->reclaim_error) {
        transition->reclaim_error = reclaim->error;
        memcpy(transition->detail, reclaim->detail, sizeof(transition->detail));
    }
    if (!transition->asking)
        reclaims_settled(transition);
}

/* For whoever reads it the move takes as long as unmapping and mapping, and not as long as the copy. */
static bool is_read_on(const struct transition *transition, const struct plan *plan, const struct arena *arena)
{
    bool read = false;

    if ((!transition->live && plan->tier != HBM_TIER_DEVICE) || transition->one_by_one)
        return false;
    list_for_each (node, &arena->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping->present && mapping->access == HBM_RW)
            return false;
        read |= mapping->present;
    }
    return read;
}

static void ask_to_let_go(struct transition *transition)
{
    transition->phase = TRANSITION_RECLAIMING;
    transition->reclaim_error = 0;
    transition->reclaims = 0;
    transition->asking = true;
    for (size_t i = 0; i < transition->n && !transition->reclaim_error; i++) {
        struct plan *plan = &transition->plans[i];
        struct arena *arena = plan->reclaim && !transition->copy ? arena_get(transition->core, plan->arena) : NULL;
        if (!arena || (transition->copied && !plan->late))
            continue;
        plan->late = !transition->copied && is_read_on(transition, plan, arena);
        if (plan->late)
            continue;
        plan->wait = (struct reclaim){.arena = arena, .done = let_go};
        plan->waiting = true;
        transition->reclaims++;
        reclaim_start(&plan->wait, transition->core->limits.reclaim_ms);
        if (plan->waiting && transition->yields && arena_is_in_use(arena))
            transition->reclaim_error = transition_refuse(transition, HBM_E_BUSY, "it is in use");
    }
    transition->asking = false;
    reclaims_settled(transition);
}

/* ---- New extents ---- */

static void create_rest(struct transition *transition);

/* 0, or why it will not do. */
static int check_created(struct transition *transition, const struct extent_create *create)
{
    if (create->error)
        return transition_refuse(transition, create->error, "%s", create->detail);
    if (transition->live && !extent_is_shareable(create->extent))
        return transition_refuse(transition, HBM_E_UNSUPPORTED,
                                 "the driver here has no host memory that processes share, so nothing can go on in it: "
                                 "offload without --live");
    return 0;
}

static void take_created(struct track *track)
{
    struct transition *transition = track->transition;
    struct plan *plan = track->plan;

    plan->target = track->keep.extent;
    if (plan->target && plan->tier != HBM_TIER_DEVICE)
        plan->target->packing = packing_ref(plan->packing);
    if (!transition_is_over(transition) && (transition->step_error = check_created(transition, &track->keep)))
        tracks_cancel(transition, track);
    track->transition = NULL;
    transition->n_busy--;
}

static void created(struct extent_create *create)
{
    struct track *track = container_of(create, struct track, keep);
    struct transition *transition = track->transition;

    track->keeping = false;
    if (track->starting)
        return;
    take_created(track);
    create_rest(transition);
}

static enum job_extent_kind kind_of(const struct transition *transition, const struct plan *plan)
{
    const struct arena *arena = transition->copy ? NULL : arena_get(transition->core, plan->arena);

    if (plan->tier == HBM_TIER_DISK)
        return JOB_EXTENT_DISK;
    if (plan->tier == HBM_TIER_HOST)
        return JOB_EXTENT_HOST;
    if (!arena || plan_device(plan) != arena->device)
        return JOB_EXTENT_DEVICE;
    return arena->handle == HBM_HANDLE_CUDA_IPC ? JOB_EXTENT_CUDA_IPC : JOB_EXTENT_DEVICE;
}

/* Its one step writes all of it, or all that there is in it. */
static bool is_filled_at_once(const struct plan *plan)
{
    const struct step *step = plan->steps;

    return plan->n_steps == 1 && (step->kind == STEP_COPY   ? step->bytes == plan->size
                                                            : step->kind == STEP_PACK || step->kind == STEP_UNPACK);
}

/* When its memory is about to be made: those before it have taken their room by then. */
static int choose_peer(struct transition *transition, struct plan *plan)
{
    const struct arena *arena = plan->to_peer ? arena_get(transition->core, plan->arena) : NULL;

    if (!plan->to_peer || plan->device)
        return 0;
    plan->device = arena ? peer_for(arena, transition->detail) : plan->source->device; /* freed: it goes nowhere */
    return plan->device ? 0 : HBM_E_UNSUPPORTED;
}

/* One worker does all of it, and it is that one's memory; nobody is to have it before. */
static bool is_made_by_its_copy(const struct transition *transition, const struct plan *plan)
{
    const struct arena *arena = transition->copy ? NULL : arena_get(transition->core, plan->arena);

    return !(arena && arena->early) && plan_worker(plan) == plan_device(plan) && links_for(transition->core, plan) == 1;
}

static void create_one(struct track *track, struct transition *transition, struct plan *plan)
{
    *track = (struct track){.transition = transition, .plan = plan, .table = -1, .keeping = true, .starting = true};
    track->keep = (struct extent_create){
        .core = transition->core,
        .device = plan_device(plan),
        .account = transition->account ? transition->account : plan->source->account,
        .tier = plan->tier,
        .kind = kind_of(transition, plan),
        .size = plan->size,
        .wait_ms = transition->memory_wait_ms,
        .moves = !transition->copy || !transition->commit,
        .shared = transition->live,
        .filled_at_once = is_filled_at_once(plan) && (plan->tier != HBM_TIER_DEVICE || is_made_by_its_copy(transition, plan)),
        .done = created,
    };
    transition->n_busy++;
    extent_create_start(&track->keep);
    track->starting = false;
    if (!track->keeping)
        take_created(track);
}

/* What is there at once must not recurse, and is one record. */
static void create_some(struct transition *transition)
{
    struct track *track;

    ledger_begin(transition->core);
    while (!transition_is_over(transition) && transition->at < transition->n && (track = tracks_next(transition, 1))) {
        struct plan *plan = &transition->plans[transition->at++];
        transition->step_error = choose_peer(transition, plan);
        if (transition->step_error)
            tracks_cancel(transition, NULL);
        else
            create_one(track, transition, plan);
    }
    ledger_end(transition->core);
}

static void create_rest(struct transition *transition)
{
    create_some(transition);
    if (transition->n_busy)
        return;
    if (transition->cancelled || transition->step_error)
        finish(transition, transition->cancelled ? HBM_E_CANCELLED : transition->step_error);
    else if (transition->measured)
        begin_steps(transition);
    else
        ask_to_let_go(transition);
}

/* ---- What is as long as it turns out to be: measured when nobody writes it any more, and before the memory is made that
 * it shall lie in ---- */

static void measured(struct job *job)
{
    struct transition *transition = container_of(job, struct transition, measuring);
    int error = measure_book(transition);

    if (transition->cancelled)
        error = transition_refuse(transition, HBM_E_CANCELLED, "%s", transition->why);
    if (error)
        finish(transition, error);
    else
        measure_rest(transition);
}

static void measure_rest(struct transition *transition)
{
    int error = 0;

    transition->phase = TRANSITION_MEASURING;
    if (measure_next(transition, measured, &error))
        return;
    transition->phase = TRANSITION_CREATING;
    transition->at = 0;
    if (error)
        finish(transition, error);
    else
        create_rest(transition);
}

/* ---- The start ---- */

static int claim(struct transition *transition, struct plan *plan)
{
    struct arena *arena = arena_get(transition->core, plan->arena);

    if (!arena)
        return transition_refuse(transition, HBM_E_STALE, "an arena of the operation was freed meanwhile");
    if (!transition->copy && arena->transition)
        return transition_busy_with(transition, arena->transition);
    plan->source = extent_ref(arena->extent);
    if (!transition->copy) {
        arena->transition = transition;
        weight_moved(arena);
    }
    return transition->copy ? 0 : commit_check(transition, plan, arena);
}

/* Memory that is on a drained device may take another form there; none may come to it. What is staged to be written
 * to a file only passes through. */
static int check_device(struct transition *transition, const struct plan *plan)
{
    bool moves = plan->source->tier != HBM_TIER_DEVICE || plan_device(plan) != plan->source->device;
    bool comes = transition->copy ? transition->commit != NULL : moves && !plan->to_peer;

    return plan->tier == HBM_TIER_DEVICE && comes ? device_check_drained(plan_device(plan), transition->detail) : 0;
}

/* Memory of a device that does not answer would take the worker that touches it along. */
static int check_peer(struct transition *transition, const struct plan *plan, const struct arena *arena)
{
    const struct device *peer = arena ? arena_peer(arena) : NULL;
    char names[96];

    if (transition->copy || !peer || peer->state != DEVICE_FAILED)
        return 0;
    arena_names(arena, names, sizeof(names));
    return transition_refuse(transition, HBM_E_DEVICE_LOST, "%s (%" PRIu64 " bytes) lies on device %s: %.80s", names,
                             plan->source->size, peer->uuid, peer->worker_why);
}

static int admit(struct transition *transition, struct plan *plan)
{
    int error = plan->source ? 0 : claim(transition, plan);
    char names[128] = "memory that was freed";

    if (error)
        return error;
    if (plan->source->lost) {
        const struct arena *arena = arena_get(transition->core, plan->arena);
        if (arena)
            arena_names(arena, names, sizeof(names));
        return transition_refuse(transition, HBM_E_LOST, "%s (%" PRIu64 " bytes)", names, plan->source->size);
    }
    error = check_device(transition, plan);
    if (!error)
        error = check_peer(transition, plan, arena_get(transition->core, plan->arena));
    if (error)
        return error;
    plan->transition = transition;
    plan->waiting = false;
    transition->bytes_total += plan_bytes(plan);
    return 0;
}

void transition_start(struct transition *transition)
{
    int error = 0;

    transition->error = transition->step_error = 0;
    transition->copied = false;
    transition->measured = false;
    transition->at = 0;
    transition->phase = TRANSITION_CREATING;
    error = tracks_make(transition);
    for (size_t i = 0; i < transition->n && !error; i++)
        error = admit(transition, &transition->plans[i]);
    transition->measured = !error && measure_is_due(transition);
    if (error)
        finish(transition, error);
    else if (transition->measured)
        ask_to_let_go(transition);
    else
        create_rest(transition);
}

void transition_cancel(struct transition *transition, const char *why)
{
    if (transition->phase == TRANSITION_IDLE || transition->cancelled)
        return;
    transition->cancelled = true;
    snprintf(transition->why, sizeof(transition->why), "%s", why);
    snprintf(transition->detail, sizeof(transition->detail), "%s", why);
    switch (transition->phase) {
    case TRANSITION_MEASURING:
        transition->core->env.cancel(transition->core->env.context, &transition->measuring);
        break;
    case TRANSITION_CREATING:
        tracks_cancel(transition, NULL);
        break;
    case TRANSITION_RECLAIMING:
        transition_withdraw(transition);
        finish(transition, HBM_E_CANCELLED);
        break;
    case TRANSITION_STEPPING:
        tracks_cancel(transition, NULL);
        break;
    case TRANSITION_IDLE:
        break;
    }
}
