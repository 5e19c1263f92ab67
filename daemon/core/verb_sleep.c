/* Sleep and wake: a whole model leaves the device, or comes back. The offload limit does not apply. A model leaves
 * all at once or not at all; there is room for all of it before it comes back, which it does group by group in the
 * order of use, each usable as soon as it is there. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/moving.h"
#include "daemon/core/verbs.h"

/* The model's arenas, n_arenas of them; NULL: the call has been refused. */
static struct arena **find(struct core *core, struct call *call, const char *name, bool to_write,
                           struct model **model)
{
    *model = names_resolve(&core->model_names, &call->who, name);
    if (!*model || !model_visible(*model, &call->who)) {
        call_refuse(call, HBM_E_NOT_FOUND, "%.200s", name);
        return NULL;
    }
    if ((*model)->state == MODEL_BUILDING) {
        call_refuse(call, HBM_E_NOT_READY, "model %.200s", name);
        return NULL;
    }
    _cleanup_free_ struct arena **arenas = model_arenas_by_use(*model);
    if (!arenas) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return NULL;
    }
    for (uint32_t i = 0; to_write && i < (*model)->n_arenas; i++) {
        if (!arena_may_write(arenas[i], &call->who)) {
            call_refuse(call, HBM_E_DENIED, "only who may write model %.200s may send it to sleep", name);
            return NULL;
        }
    }
    return TAKE_PTR(arenas);
}

void verb_sleep(struct core *core, struct call *call, const char *name, enum hbm_tier tier, const struct parking *park)
{
    struct model *model;

    if (park && !hbm_codec_name(park->encoding.codec)) {
        call_refuse(call, HBM_E_INVALID, "codec %u is none", park->encoding.codec);
        return;
    }
    if (park && hbm_codec_splits(park->encoding.codec)) {
        call_refuse(call, HBM_E_INVALID, "%s is for what stays on the device: sleep in int8, fp16 or another",
                    hbm_codec_name(park->encoding.codec));
        return;
    }
    if (tier != HBM_TIER_HOST && tier != HBM_TIER_DISK) {
        call_refuse(call, HBM_E_INVALID, "a model sleeps in the host or the disk tier");
        return;
    }
    _cleanup_free_ struct arena **arenas = find(core, call, name, true, &model);
    if (!arenas)
        return;
    if (model->n_arenas && !arenas[0]->device->capacity[tier]) {
        call_refuse(call, HBM_E_UNSUPPORTED, "device %u has no %s tier", arenas[0]->device->index,
                    hbm_tier_name(tier));
        return;
    }
    struct moving *moving = moving_arenas_as(core, &call->who, arenas, model->n_arenas, tier, park);
    if (moving)
        moving->transition.cancellable_by_lock = true;
    moving_answer(moving, "sleep", call);
}

void verb_wake(struct core *core, struct call *call, const char *name)
{
    struct model *model;
    _cleanup_free_ struct arena **arenas = find(core, call, name, false, &model);

    if (!arenas)
        return;
    struct moving *moving = moving_arenas(core, &call->who, arenas, model->n_arenas, HBM_TIER_DEVICE);
    if (moving)
        moving->transition.one_by_one = true;
    moving_answer(moving, "wake", call);
}
