/* Restore: arenas come back to their device. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/verbs.h"

void verb_restore(struct core *core, struct call *call, const char *sel)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    char detail[HBM_DETAIL_MAX] = "";
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    /* No right to write is asked for: whoever may read a buffer brings it back by attaching it. */
    if (!error)
        error = arenas_of(&selection, &arenas, detail);
    if (error) {
        call_refuse(call, error, "%s", detail);
        return;
    }
    moving_answer(moving_arenas(core, &call->who, arenas.at, arenas.n, HBM_TIER_DEVICE), "restore", call);
}

struct op *restore_arenas(struct core *core, const uint64_t *arenas, size_t n, enum hbm_tier tier, int *error,
                          char *detail)
{
    _cleanup_free_ struct arena **found = calloc(n + 1, sizeof(*found));

    for (size_t i = 0; found && i < n; i++) {
        found[i] = arena_get(core, arenas[i]);
        if (!found[i]) {
            snprintf(detail, HBM_DETAIL_MAX, "it was freed meanwhile");
            *error = HBM_E_STALE;
            return NULL;
        }
    }
    return moving_run(found ? moving_arenas(core, NULL, found, n, tier) : NULL, "restore", NULL, NULL,
                      error, detail);
}
