/* The order in which a model's groups are used, as a client declares it, and whether it may keep a window of them
 * only. */
#include <stdlib.h>

#include "daemon/core/offload_limit.h"
#include "daemon/core/verbs.h"

static struct model *model_of(struct core *core, const struct session *session, uint64_t id)
{
    const struct lease *lease = lease_get(core, id);

    return lease && lease->session == session ? lease->model : NULL;
}

static bool is_of(const struct arena *arena, const struct model *model)
{
    return list_entry(list_first(&arena->buffers), struct buffer, arena_node)->model == model;
}

void verb_order(struct core *core, struct session *session, uint64_t lease, uint32_t at, const uint32_t *slots,
                uint32_t n)
{
    struct model *model = model_of(core, session, lease);

    if (!model)
        return;
    if (at == 0) {
        free(model->order);
        model->order = calloc(model->n_arenas + 1, sizeof(*model->order));
        model->n_order = 0;
    }
    if (!model->order || at != model->n_order)
        return;
    for (uint32_t i = 0; i < n && model->n_order < model->n_arenas; i++) {
        const struct mapping *mapping = mapping_by_slot(session, slots[i]);
        if (mapping && mapping->arena && is_of(mapping->arena, model))
            model->order[model->n_order++] = mapping->arena->id;
    }
}

void verb_window(struct core *core, struct call *call, uint64_t lease, uint32_t groups, bool force)
{
    struct model *model = model_of(core, call->session, lease);
    char detail[HBM_DETAIL_MAX] = "";

    if (!model) {
        call_refuse(call, HBM_E_NOT_FOUND, "no lease of this session on a model");
        return;
    }
    _cleanup_free_ struct arena **arenas = model_arenas_by_use(model);
    if (!arenas) {
        call_refuse(call, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
        return;
    }
    for (uint32_t i = 0; i < model->n_arenas; i++) {
        if (!arena_may_write(arenas[i], &call->who)) {
            call_refuse(call, HBM_E_DENIED, "only who may write model %.200s may send groups of it away",
                        model->name);
            return;
        }
    }
    int error = force ? 0 : offload_limit_check_window(core, model, arenas, groups, detail);
    if (error)
        call_refuse(call, error, "%s", detail);
    else
        call_done(call, NULL);
}
