#include "daemon/core/peer.h"

#include <stdio.h>

#include "daemon/core/listener.h"

static uint64_t room_on(const struct device *device)
{
    uint64_t used = device->used[HBM_TIER_DEVICE], capacity = device->capacity[HBM_TIER_DEVICE];

    return used < capacity ? capacity - used : 0;
}

bool peer_reaches(const struct device *device, const struct device *other)
{
    return other != device && other->index < 64 && device->reaches >> other->index & 1;
}

/* NULL: nothing. */
static const char *in_the_way(const struct arena *arena, const struct device *device)
{
    const struct listener *listener = listener_of(arena->core, arena->owner.listener);

    if (!listener || !listener_has(listener, device))
        return "its listener does not have it";
    if (device->state != DEVICE_READY)
        return device_state_name(device->state);
    if (arena->device->state == DEVICE_FAILED)
        return "its own device is not served";
    return peer_reaches(arena->device, device) ? NULL : "no peer access";
}

struct device *peer_for(const struct arena *arena, char *detail)
{
    struct device *best = NULL;
    int length = snprintf(detail, HBM_DETAIL_MAX, "device %s has no peer", arena->device->uuid);

    list_for_each (node, &arena->core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (device == arena->device)
            continue;
        const char *why = in_the_way(arena, device);
        if (!why && (!best || room_on(device) > room_on(best)))
            best = device;
        else if (why && length < HBM_DETAIL_MAX)
            length += snprintf(detail + length, (size_t)(HBM_DETAIL_MAX - length), "; %s: %s", device->uuid, why);
    }
    if (!best && arena->core->n_devices == 1)
        snprintf(detail + length, (size_t)(HBM_DETAIL_MAX - length), ": it is the only one");
    return best;
}

uint64_t peer_bytes(const struct core *core, const struct device *device)
{
    uint64_t bytes = 0;

    list_for_each (node, &core->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        bytes += arena_peer(arena) == device ? arena->extent->size : 0;
    }
    return bytes;
}
