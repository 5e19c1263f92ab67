/* When something is to go for want of room: of arenas, since these are what moves. */
#include <stdio.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/ledger.h"
#include "daemon/core/moving.h"
#include "daemon/core/recency.h"
#include "daemon/core/verbs.h"

/* All of them, or none. */
static int may_set(const struct principal *who, const struct arenas *arenas, char *detail)
{
    for (size_t i = 0; i < arenas->n; i++) {
        if (arena_may_write(arenas->at[i], who))
            continue;
        snprintf(detail, HBM_DETAIL_MAX, "only who may write a buffer may say when it goes");
        return HBM_E_DENIED;
    }
    return 0;
}

void verb_priority(struct core *core, struct call *call, const char *sel, uint32_t priority)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    char detail[HBM_DETAIL_MAX] = "";

    if (priority > PRIORITY_NEVER) {
        call_refuse(call, HBM_E_INVALID, "a priority is 0 to 9, or never");
        return;
    }
    int error = select_buffers(core, &call->who, sel, &selection, detail);
    if (!error)
        error = arenas_of(&selection, &arenas, detail);
    if (!error)
        error = may_set(&call->who, &arenas, detail);
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    ledger_begin(core);
    for (size_t i = 0; i < arenas.n; i++) {
        arenas.at[i]->priority = priority;
        recency_place(arenas.at[i]);
        ledger_put_arena(core, arenas.at[i]);
    }
    ledger_end(core);
    for (size_t i = 0; i < arenas.n; i++) {
        struct transition *moves = arenas.at[i]->transition;
        if (moves && moves->gives_way && priority == PRIORITY_NEVER)
            transition_cancel(moves, "it is never to be moved");
    }
    call_done(call, &selection);
}
