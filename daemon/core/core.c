#include "daemon/core/core.h"

#include <stdlib.h>

#include "daemon/core/health.h"
#include "daemon/core/host_pool.h"
#include "daemon/core/ledger.h"
#include "daemon/core/links.h"
#include "daemon/core/listener.h"
#include "daemon/core/names.h"
#include "daemon/core/op.h"
#include "daemon/core/quarantine.h"
#include "daemon/core/room.h"

static void write_down(struct idmap *ids)
{
    ledger_put_ids(container_of(ids, struct core, ids));
}

struct core *core_new(const struct core_env *env, const struct core_limits *limits)
{
    struct core *core = calloc(1, sizeof(*core));

    if (!core)
        return NULL;
    core->env = *env;
    core->limits = *limits;
    core->grain = LINKS_GRAIN;
    core->passing = LINKS_PASSING;
    if (events_init(&core->events) < 0) {
        free(core);
        return NULL;
    }
    struct list *lists[] = {&core->devices,  &core->listeners, &core->accounts, &core->extents, &core->arenas, &core->buffers, &core->models,
                            &core->sessions, &core->ops,      &core->timers, &core->memory_waiters,
                            &core->host_pool, &core->closing, &core->books_waiters};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    list_init(&core->quarantine_timer.node);
    core->quarantine_timer.fire = quarantine_tick;
    list_init(&core->memory_timer.node);
    core->memory_timer.fire = extent_create_retry;
    list_init(&core->host_pool_timer.node);
    core->host_pool_timer.fire = host_pool_expire;
    list_init(&core->health_timer.node);
    core->health_timer.fire = health_tick;
    list_init(&core->accounts_timer.node);
    core->accounts_timer.fire = accounts_sweep;
    idmap_init(&core->ids, 1, write_down);
    return listener_of(core, 0) ? core : core_free(core);
}

/* What waits for memory, or for clients to let go, has no job whose end would end it. */
static void end_what_waits(struct core *core)
{
    while (!list_empty(&core->memory_waiters))
        extent_create_cancel(list_entry(list_first(&core->memory_waiters), struct extent_create, node));
    for (uint32_t left = core->n_ops; left; left--) {
        struct op *op = list_entry(list_first(&core->ops), struct op, node);
        list_unlink(&op->node);
        list_append(&core->ops, &op->node);
        op_cancel(op, "the daemon stops");
    }
}

struct core *core_free(struct core *core)
{
    if (!core)
        return NULL;
    /* What is remembered stays remembered: the objects go, their rows and stored fds do not. */
    core->ledger = NULL;
    core->env.unstore = NULL;
    core->env.close_memory = NULL;
    core->draining = true;
    end_what_waits(core);
    while (!list_empty(&core->ops))
        op_free(list_entry(list_first(&core->ops), struct op, node));
    while (!list_empty(&core->sessions))
        session_free(list_entry(list_first(&core->sessions), struct session, node));
    while (!list_empty(&core->buffers))
        buffer_free(list_entry(list_first(&core->buffers), struct buffer, node));
    while (!list_empty(&core->models))
        model_free(list_entry(list_first(&core->models), struct model, node));
    /* Of a re-adoption that ended half-way: what no buffer came for. */
    while (!list_empty(&core->arenas))
        arena_free(list_entry(list_first(&core->arenas), struct arena, node));
    while (!list_empty(&core->extents))
        extent_unref(list_entry(list_first(&core->extents), struct extent, node));
    host_pool_clear(core);
    rooms_clear(core);
    while (!list_empty(&core->devices)) {
        struct device *device = list_entry(list_first(&core->devices), struct device, node);
        list_unlink(&device->node);
        free(device);
    }
    while (!list_empty(&core->accounts)) {
        struct account *account = list_entry(list_first(&core->accounts), struct account, node);
        list_unlink(&account->node);
        free(account);
    }
    listeners_clear(core);
    events_clear(&core->events);
    idmap_clear(&core->ids);
    free(core);
    return NULL;
}

void core_drain(struct core *core)
{
    core->draining = true;
}

bool core_is_idle(const struct core *core)
{
    list_for_each(node, &core->ops)
        if (!op_has_ended(list_entry(node, struct op, node)))
            return false;
    return list_empty(&core->memory_waiters);
}
