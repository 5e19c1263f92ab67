#include "daemon/core/listener.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"

uint32_t listener_id(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash ? hash : 1;
}

uint32_t listener_by_name(const char *name)
{
    char *end;

    if (!strcmp(name, "main"))
        return 0;
    if (!strncmp(name, "0x", 2)) {
        unsigned long id = strtoul(name, &end, 16);
        if (!*end && id && id <= UINT32_MAX)
            return (uint32_t)id;
    }
    return listener_id(name);
}

static struct listener *find(struct core *core, uint32_t id)
{
    list_for_each (node, &core->listeners) {
        struct listener *listener = list_entry(node, struct listener, node);
        if (listener->id == id)
            return listener;
    }
    return NULL;
}

static struct listener *make(struct core *core, uint32_t id)
{
    struct listener *listener = calloc(1, sizeof(*listener));

    if (!listener)
        return NULL;
    listener->id = id;
    listener->whole.core = core;
    listener->whole.owner = (struct owner){id, UINT32_MAX - 1}; /* nobody's: administrators see its events */
    listener->whole.listener = listener;
    list_init(&listener->whole.node);
    list_append(&core->listeners, &listener->node);
    return listener;
}

struct listener *listener_of(struct core *core, uint32_t id)
{
    struct listener *listener = find(core, id);

    if (listener)
        return listener;
    listener = make(core, id);
    if (!listener)
        return NULL;
    if (id) {
        snprintf(listener->name, sizeof(listener->name), "0x%08" PRIx32, id);
        return listener;
    }
    snprintf(listener->name, sizeof(listener->name), "main");
    listener->configured = listener->serves = true;
    listener->devices = UINT64_MAX;
    return listener;
}

struct listener *listener_add(struct core *core, const char *name)
{
    struct listener *listener = listener_of(core, listener_id(name));

    if (!listener || listener->configured)
        return NULL;
    snprintf(listener->name, sizeof(listener->name), "%s", name);
    listener->configured = true;
    listener->devices = UINT64_MAX;
    return listener;
}

void listeners_clear(struct core *core)
{
    while (!list_empty(&core->listeners)) {
        struct listener *listener = list_entry(list_first(&core->listeners), struct listener, node);
        list_unlink(&listener->node);
        free(listener);
    }
}

bool listener_has(const struct listener *listener, const struct device *device)
{
    return listener->devices == UINT64_MAX || (device->index < 64 && (listener->devices >> device->index & 1));
}

uint32_t listener_n_devices(const struct listener *listener, const struct core *core)
{
    uint32_t n = 0;

    list_for_each (node, &core->devices)
        n += listener_has(listener, list_entry(node, struct device, node));
    return n;
}

struct device *listener_device(struct core *core, const struct principal *who, uint32_t index)
{
    const struct listener *listener = listener_of(core, who->owner.listener);

    if (index == WIRE_DEVICE_ANY)
        index = 0;
    list_for_each (node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (listener && listener_has(listener, device) && !index--)
            return device;
    }
    return NULL;
}

uint32_t listener_device_index(struct core *core, const struct principal *who, const struct device *device)
{
    const struct listener *listener = listener_of(core, who->owner.listener);
    uint32_t index = 0;

    list_for_each (node, &core->devices) {
        const struct device *each = list_entry(node, struct device, node);
        if (!listener || !listener_has(listener, each))
            continue;
        if (each == device)
            return index;
        index++;
    }
    return WIRE_DEVICE_ANY;
}
