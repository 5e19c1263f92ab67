#include "daemon/core/lock_waits.h"

#include "daemon/base/usdt.h"

uint8_t lock_finds(const struct arena *arena, bool in_place)
{
    bool away = !arena_is_resident(arena, in_place);

    return (uint8_t)((away ? LOCK_FINDS_AWAY : 0) | (arena->prefetched ? LOCK_FINDS_PREFETCHED : 0));
}

static void add(struct lock_waits *to, const struct lock_waits *what)
{
    to->n += what->n;
    to->ms += what->ms;
    to->prefetched += what->prefetched;
}

static struct model *model_of(const struct arena *arena)
{
    return list_entry(list_first(&arena->buffers), struct buffer, arena_node)->model;
}

#define IDLE_MS 10000 /* who does nothing for so long computes nothing */

void lock_begins(struct session *session, const struct arena *arena)
{
    struct model *model = arena ? model_of(arena) : NULL;
    uint64_t gap_ms = core_now(session->core) - session->locked_ms;

    if (!model || session->locked != model->id || gap_ms > IDLE_MS)
        return;
    model->lock_gaps.n++;
    model->lock_gaps.ms += gap_ms;
}

void lock_has_ended(struct session *session, const struct arena *arena)
{
    const struct model *model = arena ? model_of(arena) : NULL;

    session->locked = model ? model->id : 0;
    session->locked_ms = core_now(session->core);
}

/* A model's groups, locked together, wait together: once for it, and once in all. */
static void book(struct core *core, const uint64_t *arenas, const uint8_t *found, size_t n, enum lock_finds which,
                 const struct lock_waits *what)
{
    uint64_t visit = ++core->visits;
    bool any = false;

    for (size_t i = 0; i < n; i++) {
        if (!(found[i] & which))
            continue;
        any = true;
        struct arena *arena = arena_get(core, arenas[i]);
        if (!arena) /* freed meanwhile */
            continue;
        add(&arena->lock_waits, what);
        struct model *model = model_of(arena);
        if (!model || model->visit == visit)
            continue;
        model->visit = visit;
        add(&model->lock_waits, what);
    }
    if (any)
        add(&core->lock_waits, what);
}

void lock_waits_book(struct core *core, const uint64_t *arenas, const uint8_t *found, size_t n, uint64_t ms)
{
    USDT3(lock_wait, n ? arenas[0] : 0, n, ms);
    book(core, arenas, found, n, LOCK_FINDS_AWAY, &(struct lock_waits){.n = 1, .ms = ms});
    book(core, arenas, found, n, LOCK_FINDS_PREFETCHED, &(struct lock_waits){.prefetched = 1});
}
