#include "daemon/core/recency.h"

#include "daemon/core/host_ahead.h"

static uint64_t span_now(const struct core *core)
{
    return core_now(core) / WORKING_SET_MS + 1;
}

/* Counted once in each span of time: nothing is walked over to know the sum. */
static void count(struct arena *arena)
{
    struct working_set *set = &arena->device->working_set;
    uint64_t span = span_now(arena->core);

    if (set->span != span) {
        set->last = set->span + 1 == span ? set->now : 0;
        set->now = 0;
        set->span = span;
    }
    if (arena->counted_in == span)
        return;
    arena->counted_in = span;
    arena->counted = arena->extent->size;
    set->now += arena->counted;
}

/* With a peer it is among what that one has: it goes when the room is wanted there. */
void recency_place(struct arena *arena)
{
    const struct extent *extent = arena->extent;
    struct device *device = extent->tier == HBM_TIER_DEVICE ? extent->device : arena->device;

    list_unlink(&arena->recent_node);
    list_append(&device->recent[extent->tier][arena->priority], &arena->recent_node);
}

void recency_note(struct arena *arena)
{
    arena->locked_ms = core_now(arena->core);
    count(arena);
    host_ahead_used(arena->device);
    recency_place(arena);
}

void recency_forget(struct arena *arena)
{
    struct working_set *set = &arena->device->working_set;

    list_unlink(&arena->recent_node);
    if (arena->counted_in == set->span)
        set->now -= arena->counted;
}

uint64_t working_set(const struct device *device)
{
    const struct working_set *set = &device->working_set;
    uint64_t span = span_now(device->core);

    if (set->span == span)
        return set->now > set->last ? set->now : set->last;
    return set->span + 1 == span ? set->now : 0;
}
