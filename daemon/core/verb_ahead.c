/* What a client will use next, as its library says it: a prefetch of the session's, one at a time, that grows while
 * it runs. Whatever is in the way, the message is forgotten: the lock that follows brings the memory. */
#include <stdlib.h>

#include "daemon/core/prefetch.h"
#include "daemon/core/verbs.h"

/* Those that are away and not asked for yet. Returns how many. */
static size_t pick(struct session *session, const struct op *op, const uint32_t *slots, uint32_t n,
                   uint64_t *arenas)
{
    struct core *core = session->core;
    uint64_t visit = ++core->visits;
    size_t picked = 0;

    if (op)
        prefetch_mark(op, visit);
    for (uint32_t i = 0; i < n; i++) {
        const struct mapping *mapping = mapping_by_slot(session, slots[i]);
        struct arena *arena = mapping ? mapping->arena : NULL;
        if (!arena || arena->visit == visit || arena->transition || arena_tier(arena) == HBM_TIER_DEVICE)
            continue;
        arena->visit = visit;
        arenas[picked++] = arena->id;
    }
    return picked;
}

/* NULL: the session may have none now, or memory is out. */
static struct op *begin(struct session *session)
{
    struct core *core = session->core;
    struct op *last = session->ahead ? op_get(core, session->ahead) : NULL;
    struct wanted *room = calloc(AHEAD_MAX, sizeof(*room));
    char ignored[HBM_DETAIL_MAX];
    int error;

    session->ahead = 0;
    if (last) /* a loop asks without end: others' operations stay to be asked about */
        op_free(last);
    struct op *op = room ? prefetch_new(core, room, 0, &session->who, session, 0, &error, ignored) : NULL;
    if (op) {
        op->quiet = true;
        session->ahead = op->id;
    }
    return op;
}

void verb_ahead(struct core *core, struct session *session, const uint32_t *slots, uint32_t n)
{
    struct op *op = session->ahead ? op_get(core, session->ahead) : NULL;
    uint64_t arenas[AHEAD_MAX];

    if (op && op_has_ended(op))
        op = NULL;
    size_t picked = pick(session, op, slots, n < AHEAD_MAX ? n : AHEAD_MAX, arenas);
    if (picked && !op)
        op = begin(session);
    if (!picked || !op)
        return;
    for (size_t i = 0; i < picked; i++)
        prefetch_add(op, arenas[i], AHEAD_MAX);
    prefetch_start(op);
}
