#include "daemon/core/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"

static void advance(struct stage *stage);

static void end(struct stage *stage, int error, const char *detail)
{
    stage->error = error;
    if (error)
        snprintf(stage->detail, sizeof(stage->detail), "%s", detail);
    stage->done(stage);
}

static void moved(struct transition *transition)
{
    struct stage *stage = container_of(transition, struct stage, transition);
    int error = transition->error;
    char detail[HBM_DETAIL_MAX];

    memcpy(detail, transition->detail, sizeof(detail));
    stage->worked_ns += transition->worked_ns;
    if (!error) {
        extent_unref(stage->extent);
        stage->extent = TAKE_PTR(transition->plans[0].target);
    }
    transition_clear(transition);
    if (error)
        end(stage, error, detail);
    else
        advance(stage);
}

/* Takes the plan's contents. */
static void start(struct stage *stage, struct plan *plan)
{
    struct plan *plans = calloc(1, sizeof(*plans));

    stage->transition = (struct transition){
        .core = stage->core,
        .plans = plans,
        .n = 1,
        .memory_wait_ms = stage->core->limits.memory_wait_ms,
        .copy = true,
        .account = stage->account,
        .done = moved,
    };
    if (!plans) {
        plan_clear(plan);
        stage->transition.n = 0;
        end(stage, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    *plans = *plan;
    *plan = (struct plan){0};
    plans->arena = stage->arena;
    transition_start(&stage->transition);
}

static void advance(struct stage *stage)
{
    struct plan plan;

    bool packed = stage->extent->packing;

    if (packed || stage->extent->tier == HBM_TIER_DISK) {
        if (plan_copy(&plan, stage->extent, packed ? HBM_TIER_DEVICE : HBM_TIER_HOST))
            end(stage, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        else
            start(stage, &plan);
    } else if (stage->decode.n_steps) {
        stage->decode.source = extent_ref(stage->extent);
        start(stage, &stage->decode);
    } else {
        end(stage, 0, NULL);
    }
}

void stage_start(struct stage *stage)
{
    const struct arena *arena = arena_get(stage->core, stage->arena);
    char names[128] = "memory that was freed";

    if (!stage->extent->lost) {
        advance(stage);
        return;
    }
    if (arena)
        arena_names(arena, names, sizeof(names));
    end(stage, HBM_E_LOST, names);
}

void stage_cancel(struct stage *stage, const char *why)
{
    transition_cancel(&stage->transition, why);
}

void stage_clear(struct stage *stage)
{
    if (stage->core)
        transition_clear(&stage->transition);
    plan_clear(&stage->decode);
    stage->extent = extent_unref(stage->extent);
}
