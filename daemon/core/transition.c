#include "daemon/core/transition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/commit.h"
#include "daemon/core/health.h"
#include "daemon/core/hold.h"
#include "daemon/core/ledger.h"
#include "daemon/core/steps.h"

/* ---- The end ---- */

static void drop_extents(struct transition *transition, bool targets)
{
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
    drop_extents(transition, transition->error || !transition->copy);
    transition_settle(transition);
    transition->done(transition);
}

/* ---- Steps ---- */

static void take_step(struct transition *transition);

/* The reason it was called off for stands, whatever the job says. */
static void finish_cancelled(struct transition *transition)
{
    finish(transition, transition_refuse(transition, HBM_E_CANCELLED, "%s", transition->why));
}

static void target_kept(struct extent_create *create)
{
    struct transition *transition = container_of(create, struct transition, create);

    transition->plans[transition->at].target = create->extent;
    transition->phase = TRANSITION_STEPPING;
    if (transition->cancelled)
        finish_cancelled(transition);
    else if (create->error)
        finish(transition, transition_refuse(transition, create->error, "%s", create->detail));
    else
        take_step(transition);
}

/* The step has made the memory that it filled. Takes the fd. */
static void keep_target(struct transition *transition, struct plan *plan, int fd)
{
    transition->phase = TRANSITION_CREATING;
    transition->create.extent = TAKE_PTR(plan->target);
    transition->create.done = target_kept;
    extent_create_finish(&transition->create, fd);
}

static void step_done(struct job *job)
{
    struct transition *transition = container_of(job, struct transition, job);
    struct plan *plan = &transition->plans[transition->at];
    _cleanup_fd_ int made = TAKE_FD(job->reply_fd);
    int error = steps_book(transition);

    if (transition->cancelled)
        finish_cancelled(transition);
    else if (error)
        finish(transition, error);
    else if (extent_is_made(plan->target))
        take_step(transition);
    else if (made < 0)
        finish(transition, transition_refuse(transition, HBM_E_INTERNAL, "the worker sent no memory for what it copied"));
    else
        keep_target(transition, plan, TAKE_FD(made));
}

static int commit(struct transition *transition)
{
    if (!transition->copy)
        return commit_swap(transition);
    return transition->commit ? transition->commit(transition) : 0;
}

static void take_step(struct transition *transition)
{
    if (steps_next(transition, step_done))
        return;
    /* A restart would not know of a swap that cannot be written down: the old memory gone, the new one nobody's. */
    int error = ledger_trouble(transition->core) ? health_check(transition->core, transition->detail) : 0;
    finish(transition, error ? error : commit(transition));
}

/* ---- Letting go: all arenas are asked at once, so that one deadline and one safe point serve them all ---- */

static void reclaims_settled(struct transition *transition)
{
    if (transition->reclaim_error) {
        transition_withdraw(transition);
        finish(transition, transition->reclaim_error);
    } else if (!transition->reclaims) {
        transition->phase = TRANSITION_STEPPING;
        transition->at = transition->step = 0;
        take_step(transition);
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

static void ask_to_let_go(struct transition *transition)
{
    transition->phase = TRANSITION_RECLAIMING;
    transition->reclaim_error = 0;
    transition->reclaims = 0;
    transition->asking = true;
    for (size_t i = 0; i < transition->n && !transition->reclaim_error; i++) {
        struct plan *plan = &transition->plans[i];
        struct arena *arena = plan->reclaim && !transition->copy ? arena_get(transition->core, plan->arena) : NULL;
        if (!arena)
            continue;
        plan->wait = (struct reclaim){.arena = arena, .done = let_go};
        plan->waiting = true;
        transition->reclaims++;
        reclaim_start(&plan->wait, transition->core->limits.reclaim_ms);
    }
    transition->asking = false;
    reclaims_settled(transition);
}

/* ---- New extents ---- */

static void create_rest(struct transition *transition);

/* False: that was its end. */
static bool take_created(struct transition *transition)
{
    const struct extent_create *create = &transition->create;

    transition->plans[transition->at].target = create->extent;
    if (transition->cancelled)
        finish(transition, HBM_E_CANCELLED);
    else if (create->error)
        finish(transition, transition_refuse(transition, create->error, "%s", create->detail));
    else {
        transition->at++;
        return true;
    }
    return false;
}

static void created(struct extent_create *create)
{
    struct transition *transition = container_of(create, struct transition, create);

    transition->created = true;
    if (!transition->starting && take_created(transition))
        create_rest(transition);
}

static enum job_extent_kind kind_of(const struct transition *transition, const struct plan *plan)
{
    const struct arena *arena = transition->copy ? NULL : arena_get(transition->core, plan->arena);

    if (plan->tier == HBM_TIER_DISK)
        return JOB_EXTENT_DISK;
    if (plan->tier == HBM_TIER_HOST)
        return JOB_EXTENT_HOST;
    return arena && arena->handle == HBM_HANDLE_CUDA_IPC ? JOB_EXTENT_CUDA_IPC : JOB_EXTENT_DEVICE;
}

/* Its one step writes all of it. */
static bool is_whole_copy(const struct plan *plan)
{
    return plan->n_steps == 1 && plan->steps[0].kind == STEP_COPY && plan->steps[0].bytes == plan->size;
}

static void create_one(struct transition *transition)
{
    const struct plan *plan = &transition->plans[transition->at];

    transition->create = (struct extent_create){
        .core = transition->core,
        .device = plan->source->device,
        .account = transition->account ? transition->account : plan->source->account,
        .tier = plan->tier,
        .kind = kind_of(transition, plan),
        .size = plan->size,
        .wait_ms = transition->memory_wait_ms,
        .moves = !transition->copy || !transition->commit,
        .filled_at_once = is_whole_copy(plan),
        .done = created,
    };
    transition->created = false;
    transition->starting = true;
    extent_create_start(&transition->create);
    transition->starting = false;
}

/* A row of arenas whose memory is there at once must not recurse. */
static void create_rest(struct transition *transition)
{
    while (transition->at < transition->n) {
        create_one(transition);
        if (!transition->created || !take_created(transition))
            return;
    }
    ask_to_let_go(transition);
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
    if (!transition->copy)
        arena->transition = transition;
    return transition->copy ? 0 : commit_check(transition, plan, arena);
}

/* Memory that is on a drained device may take another form there; none may come to it. What is staged to be written
 * to a file only passes through. */
static int check_device(struct transition *transition, const struct plan *plan)
{
    bool comes = transition->copy ? transition->commit != NULL : plan->source->tier != HBM_TIER_DEVICE;

    return plan->tier == HBM_TIER_DEVICE && comes ? device_check_drained(plan->source->device, transition->detail) : 0;
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

    transition->error = 0;
    transition->at = transition->step = 0;
    transition->phase = TRANSITION_CREATING;
    for (size_t i = 0; i < transition->n && !error; i++)
        error = admit(transition, &transition->plans[i]);
    if (error)
        finish(transition, error);
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
    case TRANSITION_CREATING:
        extent_create_cancel(&transition->create);
        break;
    case TRANSITION_RECLAIMING:
        transition_withdraw(transition);
        finish(transition, HBM_E_CANCELLED);
        break;
    case TRANSITION_STEPPING:
        transition->core->env.cancel(transition->core->env.context, &transition->job);
        break;
    case TRANSITION_IDLE:
        break;
    }
}
