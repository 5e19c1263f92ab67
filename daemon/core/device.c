#include "daemon/core/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/core/arena.h"
#include "daemon/core/buffer.h"
#include "daemon/core/host_ahead.h"
#include "daemon/core/pressure.h"
#include "proto/messages.h"

struct device *device_add(struct core *core, const char *uuid, const char *name, bool is_cuda,
                          const uint64_t capacity[HBM_TIERS])
{
    struct device *device = calloc(1, sizeof(*device));

    if (!device)
        return NULL;
    device->core = core;
    device->index = core->n_devices++;
    device->is_cuda = is_cuda;
    device->granularity = 4096;
    device->reaches = UINT64_MAX;
    snprintf(device->uuid, sizeof(device->uuid), "%s", uuid);
    snprintf(device->name, sizeof(device->name), "%s", name);
    memcpy(device->capacity, capacity, sizeof(device->capacity));
    for (unsigned i = 0; i < HBM_TIERS * PRIORITIES; i++)
        list_init(&device->recent[i / PRIORITIES][i % PRIORITIES]);
    pressure_init(device);
    host_ahead_init(device);
    list_append(&core->devices, &device->node);
    return device;
}

struct device *device_at(struct core *core, uint32_t index)
{
    if (index == WIRE_DEVICE_ANY)
        index = 0;
    list_for_each(node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (device->index == index)
            return device;
    }
    return NULL;
}

struct device *device_by_text(struct core *core, const char *uuid_or_index)
{
    char *end;
    unsigned long index = strtoul(uuid_or_index, &end, 10);

    if (*uuid_or_index && !*end && index < core->n_devices)
        return device_at(core, (uint32_t)index);
    list_for_each(node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (!strcmp(device->uuid, uuid_or_index))
            return device;
    }
    return NULL;
}

int device_check_drained(const struct device *device, char *detail)
{
    if (device->state != DEVICE_DRAINED)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "device %s", device->uuid);
    return HBM_E_DRAINED;
}

int device_check_ready(const struct device *device, char *detail)
{
    if (!device) {
        snprintf(detail, HBM_DETAIL_MAX, "no device of that index");
        return HBM_E_NO_DEVICE;
    }
    if (device->state == DEVICE_FAILED) {
        snprintf(detail, HBM_DETAIL_MAX, "device %.63s: %.170s", device->uuid, device->worker_why);
        return HBM_E_DEVICE_LOST;
    }
    if (device->state == DEVICE_STARTING) {
        snprintf(detail, HBM_DETAIL_MAX, "device %s is starting", device->uuid);
        return HBM_E_NO_DEVICE;
    }
    return device_check_drained(device, detail);
}

const char *device_state_name(enum device_state state)
{
    static const char *const names[] = {"starting", "ready", "drained", "failed"};
    return names[state];
}

void device_tell_cache(struct device *device, bool direct)
{
    if (device->disk.cache != DISK_THROUGH_CACHE && !direct)
        log_warning("the disk tier of device %u goes through the page cache: the file system of state_dir refuses "
                    "O_DIRECT; put it on a disk's own file system",
                    device->index);
    device->disk.cache = direct ? DISK_PAST_CACHE : DISK_THROUGH_CACHE;
}

void device_worker_gone(struct core *core, struct device *device, const char *why)
{
    device->worker_pid = 0;
    device->worker_gone_ms = core_now(core);
    device->recovery_ms = 0;
    snprintf(device->worker_why, sizeof(device->worker_why), "%s", why);
    list_for_each(node, &core->arenas) {
        struct arena *arena = list_entry(node, struct arena, node);
        if (arena->extent->device != device || arena->extent->kind != JOB_EXTENT_CUDA_IPC || arena->extent->lost)
            continue;
        arena->extent->lost = true;
        core->counters.lost++;
        struct buffer *buffer = list_entry(list_first(&arena->buffers), struct buffer, arena_node);
        log_warning("cuda-ipc buffer %s went with its worker; those who have it mapped keep it", buffer->name ? buffer->name : "?");
        event_emit(&core->events, "arena.lost", arena->id, buffer->name, arena->owner.listener, arena->owner.uid, 0,
                   "cuda-ipc memory went with its worker");
    }
}
