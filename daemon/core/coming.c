#include "daemon/core/coming.h"

#include <stdlib.h>
#include <string.h>

struct extent *coming_to(const struct arena *arena)
{
    const struct transition *transition = arena->transition;

    if (!transition || transition->copy || transition->phase != TRANSITION_STEPPING || transition->cancelled ||
        transition->step_error)
        return NULL;
    for (size_t i = 0; i < transition->n; i++) {
        const struct plan *plan = &transition->plans[i];
        struct extent *target = plan->target;
        if (plan->arena == arena->id && target && extent_is_made(target) && target->kind == JOB_EXTENT_DEVICE && !plan->late &&
            target->device == arena->device && !plan->n_placements)
            return target;
    }
    return NULL;
}

void coming_forget(struct mapping *mapping)
{
    mapping->early = extent_unref(mapping->early);
    mapping->early_error = 0;
    free(mapping->early_why);
    mapping->early_why = NULL;
}

void coming_give(struct mapping *mapping, struct extent *extent)
{
    coming_forget(mapping);
    mapping->early = extent_ref(extent);
    extent_export(extent, mapping->access);
}

void coming_begins(struct transition *transition)
{
    for (size_t i = 0; !transition->copy && i < transition->n; i++) {
        struct arena *arena = arena_get(transition->core, transition->plans[i].arena);
        struct list *node, woken;
        if (!arena)
            continue;
        list_move_all(&woken, &arena->early_waiters); /* as arena_settled does */
        while ((node = list_first(&woken))) {
            list_unlink(node);
            struct arena_wait *wait = list_entry(node, struct arena_wait, node);
            wait->ready(wait);
        }
    }
}

void coming_is_here(struct arena *arena)
{
    list_for_each (node, &arena->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, arena_node);
        if (mapping->early != arena->extent)
            continue;
        coming_forget(mapping);
        mapping_arrives(mapping);
    }
}

void coming_has_failed(const struct transition *transition)
{
    for (size_t i = 0; !transition->copy && i < transition->n; i++) {
        const struct plan *plan = &transition->plans[i];
        const struct arena *arena = plan->target ? arena_get(transition->core, plan->arena) : NULL;
        if (!arena)
            continue;
        list_for_each (node, &arena->mappings) {
            struct mapping *mapping = list_entry(node, struct mapping, arena_node);
            if (mapping->early != plan->target)
                continue;
            mapping->early_error = transition->error;
            mapping->early_why = strdup(transition->detail); /* NULL: without a sentence of its own */
        }
    }
}
