/* What a client will use next, and what it will not use soon, as its library says it: two operations of the
 * session's that grow while they run. Whatever is in the way, the message is forgotten: the lock that follows
 * brings the memory, and what stays has its turn to leave again. */
#include <stdlib.h>

#include "daemon/core/prefetch.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/verbs.h"

static bool may_come(const struct mapping *mapping)
{
    return !arena_is_resident(mapping->arena, mapping->in_place);
}

static bool may_leave(const struct mapping *mapping)
{
    const struct arena *arena = mapping->arena;

    return arena_tier(arena) == HBM_TIER_DEVICE && arena->handle == HBM_HANDLE_FD && !arena->extent->lost &&
           arena->device->capacity[HBM_TIER_HOST] && arena_may_write(arena, &mapping->session->who) &&
           !arena_is_in_use(arena);
}

/* Those that may, and are not asked for yet. Returns how many. */
static size_t pick(struct session *session, const struct op *op, bool (*may)(const struct mapping *mapping),
                   const uint32_t *slots, uint32_t n, uint64_t *arenas)
{
    struct core *core = session->core;
    uint64_t visit = ++core->visits;
    size_t picked = 0;

    if (op)
        prefetch_mark(op, visit);
    for (uint32_t i = 0; i < n; i++) {
        const struct mapping *mapping = mapping_by_slot(session, slots[i]);
        struct arena *arena = mapping ? mapping->arena : NULL;
        if (!arena || arena->visit == visit || arena->transition || !may(mapping))
            continue;
        arena->visit = visit;
        arenas[picked++] = arena->id;
    }
    return picked;
}

/* NULL: the session may have none now, or memory is out. */
static struct op *begin(struct session *session, uint64_t *id, enum hbm_tier tier)
{
    struct core *core = session->core;
    struct op *last = *id ? op_get(core, *id) : NULL;
    struct wanted *room = calloc(AHEAD_MAX, sizeof(*room));
    char ignored[HBM_DETAIL_MAX];
    int error;

    *id = 0;
    if (last) /* a loop asks without end: others' operations stay to be asked about */
        op_free(last);
    struct op *op = room ? prefetch_new(core, tier, room, 0, &session->who, session, 0, &error, ignored) : NULL;
    if (op) {
        op->quiet = true;
        *id = op->id;
    }
    return op;
}

static void hint(struct session *session, uint64_t *id, enum hbm_tier tier, const uint32_t *slots, uint32_t n)
{
    struct op *op = *id ? op_get(session->core, *id) : NULL;
    uint64_t arenas[AHEAD_MAX];

    if (op && op_has_ended(op))
        op = NULL;
    size_t picked = pick(session, op, tier == HBM_TIER_DEVICE ? may_come : may_leave, slots,
                         n < AHEAD_MAX ? n : AHEAD_MAX, arenas);
    if (picked && !op)
        op = begin(session, id, tier);
    if (!picked || !op)
        return;
    for (size_t i = 0; i < picked; i++)
        prefetch_add(op, arenas[i], AHEAD_MAX);
    prefetch_start(op);
}

/* The window has come round to what was leaving it. */
static void call_back(struct session *session, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n && session->behind; i++) {
        const struct mapping *mapping = mapping_by_slot(session, slots[i]);
        struct transition *move = mapping && mapping->arena ? mapping->arena->transition : NULL;
        if (move && move->op == session->behind)
            transition_cancel(move, "it is used next");
    }
}

void verb_ahead(struct core *core, struct session *session, const uint32_t *slots, uint32_t n)
{
    (void)core;
    call_back(session, slots, n);
    hint(session, &session->ahead, HBM_TIER_DEVICE, slots, n);
}

void verb_behind(struct core *core, struct session *session, const uint32_t *slots, uint32_t n)
{
    (void)core;
    hint(session, &session->behind, HBM_TIER_HOST, slots, n);
}
