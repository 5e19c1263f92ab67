/* Offload: the arenas of the buffers named go to the host or disk tier or to a peer, with all that lies in them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/offload_limit.h"
#include "daemon/core/peer.h"
#include "daemon/core/verbs.h"

static bool has_tier(const struct arena *arena, enum hbm_tier tier, char *detail)
{
    if (tier == HBM_TIER_PEER)
        return arena_tier(arena) == HBM_TIER_PEER || peer_for(arena, detail);
    if (arena->device->capacity[tier])
        return true;
    snprintf(detail, HBM_DETAIL_MAX, "device %u has no %s tier", arena->device->index, hbm_tier_name(tier));
    return false;
}

/* Leaves the arenas that may go; 0 or an error. A pattern passes over what is another's. */
static int admit(const struct principal *who, const struct selection *selection, struct arenas *arenas,
                 enum hbm_tier tier, char *detail)
{
    size_t n = 0;

    for (size_t i = 0; i < arenas->n; i++) {
        struct arena *arena = arenas->at[i];
        if (!arena_may_write(arena, who)) {
            if (!selection->by_pattern) {
                snprintf(detail, HBM_DETAIL_MAX, "only who may write a buffer may offload it");
                return HBM_E_DENIED;
            }
            continue;
        }
        if (!has_tier(arena, tier, detail))
            return HBM_E_UNSUPPORTED;
        arenas->at[n++] = arena;
    }
    arenas->n = n;
    if (n)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "you may write none of the buffers named");
    return HBM_E_DENIED;
}

static struct moving *build(struct core *core, const struct principal *who, const struct selection *selection,
                            const struct arenas *arenas, enum hbm_tier tier, bool live)
{
    static const struct parking raw; /* whoever goes on in it reads it as it is */
    struct moving *moving = moving_arenas_as(core, who, arenas->at, arenas->n, tier, live ? &raw : NULL);
    size_t foreign = 0;

    for (size_t i = 0; i < selection->n; i++)
        foreign += !arena_may_write(selection->buffers[i]->arena, who);
    if (!moving || !foreign)
        return moving;
    struct op_row *rows = reallocarray(moving->rows, moving->n_rows + foreign, sizeof(*rows));
    if (!rows)
        return moving_free(moving);
    moving->rows = rows;
    memset(rows + moving->n_rows, 0, foreign * sizeof(*rows));
    for (size_t i = 0; i < selection->n; i++)
        if (!arena_may_write(selection->buffers[i]->arena, who))
            moving_row(moving, selection->buffers[i], who, "another owner's, and not yours to write");
    return moving;
}

/* What lay in host memory already is resident there from now on, too. */
static void settle_where_they_lie(struct moving *moving, struct op *op)
{
    moving_fill_rows(op);
    for (size_t i = 0; i < op->n_rows; i++) {
        const struct buffer *buffer = op->rows[i].skipped ? NULL : buffer_get(moving->core, op->rows[i].buffer);
        if (buffer)
            arena_demoted(buffer->arena);
    }
}

static void offload(struct core *core, struct call *call, const char *sel, enum hbm_tier tier, bool force, bool live)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    if (!error)
        error = arenas_of(&selection, &arenas, detail);
    if (!error)
        error = admit(&call->who, &selection, &arenas, tier, detail);
    if (!error && !force && tier != HBM_TIER_PEER) /* whose link is no slow one */
        error = offload_limit_check(core, &arenas, tier, detail);
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    struct moving *moving = build(core, &call->who, &selection, &arenas, tier, live);
    if (moving) {
        moving->transition.live = live;
        moving->transition.cancellable_by_lock = !live; /* who goes on with it in host memory locks it there */
        moving->fill = live ? settle_where_they_lie : NULL;
    }
    moving_answer(moving, "offload", call);
}

void verb_offload(struct core *core, struct call *call, const char *sel, enum hbm_tier tier, bool force)
{
    if (tier != HBM_TIER_HOST && tier != HBM_TIER_DISK && tier != HBM_TIER_PEER) {
        call_refuse(call, HBM_E_INVALID,
                    "buffers are offloaded to host, disk or peer; restore brings them to the device");
        return;
    }
    offload(core, call, sel, tier, force, false);
}

void verb_demote(struct core *core, struct call *call, const char *sel, bool force)
{
    offload(core, call, sel, HBM_TIER_HOST, force, true);
}
