#include "daemon/core/host_pool.h"

#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/farewell.h"
#include "daemon/core/host_ahead.h"
#include "daemon/core/room.h"

/* Longer than the pause between two requests that an engine may sleep through, shorter than pinned memory should
 * stay away from everyone else on the machine for nobody's sake. */
#define KEEP_MS 60000

struct pooled {
    struct list node; /* core->host_pool, oldest first */
    struct device *device;
    struct owner owner;
    uint64_t size, token, until_ms;
    struct list farewells; /* farewell.h */
    uint64_t visit; /* the last of core->visits that counted it */
    int fd;
};

static struct pooled *oldest(struct core *core)
{
    struct list *first = list_first(&core->host_pool);

    return first ? list_entry(first, struct pooled, node) : NULL;
}

static void watch_oldest(struct core *core)
{
    const struct pooled *first = oldest(core);
    uint64_t now = core_now(core);

    if (!first)
        timer_stop(core, &core->host_pool_timer);
    else
        timer_arm(core, &core->host_pool_timer, first->until_ms > now ? first->until_ms - now : 0);
}

bool host_pool_put(struct extent *extent)
{
    struct core *core = extent->core;

    if (extent->kind != JOB_EXTENT_HOST || !extent->device->is_cuda || extent->lost || extent->exported ||
        core->draining)
        return false;
    struct pooled *pooled = calloc(1, sizeof(*pooled));
    if (!pooled)
        return false;
    *pooled = (struct pooled){.device = extent->device,
                              .owner = extent->account->owner,
                              .size = extent->size,
                              .token = extent->token,
                              .until_ms = core_now(core) + KEEP_MS,
                              .fd = TAKE_FD(extent->fd)};
    list_move_all(&pooled->farewells, &extent->farewells);
    extent->device->pooled += extent->size;
    list_append(&core->host_pool, &pooled->node);
    if (!core->host_pool_timer.at_ms)
        watch_oldest(core);
    return true;
}

/* Out of the list and the books; its room is the caller's. */
static void unlist(struct pooled *pooled)
{
    list_unlink(&pooled->node);
    pooled->device->pooled -= pooled->size;
}

static void drop(struct core *core, struct pooled *pooled)
{
    struct room room = {core, pooled->device, NULL, HBM_TIER_HOST, pooled->size};

    unlist(pooled);
    farewells_say(core, &pooled->farewells, JOB_EXTENT_HOST, pooled->token);
    room_release_with(&room, TAKE_FD(pooled->fd));
    free(pooled);
}

bool host_pool_take(struct extent_create *create)
{
    if (create->kind != JOB_EXTENT_HOST) /* a restore is a whole copy too, of the same size */
        return false;
    list_for_each (node, &create->core->host_pool) {
        struct pooled *pooled = list_entry(node, struct pooled, node);
        if (pooled->device != create->device || !owner_equal(pooled->owner, create->account->owner) ||
            pooled->size != create->size || (create->shared && !fd_is_shareable(pooled->fd)))
            continue;
        unlist(pooled);
        create->pooled_fd = pooled->fd;
        create->pooled_token = pooled->token;
        list_move_all(&create->pooled_farewells, &pooled->farewells);
        free(pooled);
        return true;
    }
    return host_ahead_take(create);
}

bool host_pool_covers(struct device *device, struct owner owner, uint64_t size, uint64_t visit)
{
    list_for_each (node, &device->core->host_pool) {
        struct pooled *pooled = list_entry(node, struct pooled, node);
        if (pooled->device != device || pooled->size != size || pooled->visit == visit ||
            !owner_equal(pooled->owner, owner))
            continue;
        pooled->visit = visit;
        return true;
    }
    return false;
}

void host_pool_make_room(struct core *core, struct device *device, uint64_t bytes)
{
    uint64_t capacity = device->capacity[HBM_TIER_HOST];
    const uint64_t *used = &device->used[HBM_TIER_HOST], *closing = &device->closing[HBM_TIER_HOST];

    if (bytes > capacity || *used - *closing - device->pooled > capacity - bytes)
        return;
    while (*used - *closing > capacity - bytes && host_ahead_drop_one(device)) {
    }
    list_for_each_safe (node, &core->host_pool) {
        struct pooled *pooled = list_entry(node, struct pooled, node);
        if (*used - *closing <= capacity - bytes)
            return;
        if (pooled->device == device)
            drop(core, pooled);
    }
}

bool host_pool_drop(struct core *core)
{
    bool any = !list_empty(&core->host_pool);

    while (!list_empty(&core->host_pool))
        drop(core, oldest(core));
    list_for_each (node, &core->devices)
        any |= host_ahead_drop_all(list_entry(node, struct device, node));
    return any;
}

void host_pool_expire(struct timer *timer)
{
    struct core *core = container_of(timer, struct core, host_pool_timer);
    struct pooled *first;

    while ((first = oldest(core)) && first->until_ms <= core_now(core))
        drop(core, first);
    watch_oldest(core);
}

void host_pool_clear(struct core *core)
{
    struct pooled *first;

    while ((first = oldest(core))) {
        unlist(first);
        fd_close(first->fd);
        farewells_clear(&first->farewells);
        free(first);
    }
    list_for_each (node, &core->devices)
        host_ahead_clear(list_entry(node, struct device, node));
}
