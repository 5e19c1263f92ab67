/* What comes back soon after it was moved away for want of room: it is told of, and left alone for a while. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/buffer.h"
#include "daemon/core/pressure.h"
#include "daemon/core/recency.h"
#include "daemon/core/survey.h"

#define BOUNCE_MS 10000 /* so soon */
#define BOUNCES 3       /* in a row, and it is left alone */
#define SPARE_MS 30000  /* so long */
#define TELL_MS 10000   /* between two words about one device */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void spare(struct arena *arena)
{
    struct core *core = arena->core;
    const struct buffer *first = list_entry(list_first(&arena->buffers), struct buffer, arena_node);

    core->counters.spared++;
    arena->eviction.bounces = 0;
    arena->eviction.spared_until_ms = core_now(core) + SPARE_MS;
    event_emit(&core->events, "arena.bounces", arena->id, first->name, arena->owner.listener, arena->owner.uid, 0,
               "moved away for want of room and brought back %d times, each within %d s: it is left alone for %d s",
               BOUNCES, BOUNCE_MS / 1000, SPARE_MS / 1000);
}

void pressure_moved(struct arena *arena, enum hbm_tier from)
{
    struct eviction *eviction = &arena->eviction;

    recency_place(arena);
    if (arena_tier(arena) != HBM_TIER_DEVICE || from == HBM_TIER_DEVICE || !eviction->at_ms)
        return;
    if (core_now(arena->core) - eviction->at_ms > BOUNCE_MS) {
        eviction->bounces = 0;
    } else {
        arena->core->counters.bounces++;
        if (++eviction->bounces >= BOUNCES)
            spare(arena);
    }
    eviction->at_ms = 0;
}

bool pressure_tells(const struct arena *arena, char *text, size_t size)
{
    const struct eviction *eviction = &arena->eviction;
    uint64_t now = core_now(arena->core);

    if (eviction->spared_until_ms > now)
        snprintf(text, size, "it came back soon %d times: not moved away for want of room for another %.0f s",
                 BOUNCES, (double)(eviction->spared_until_ms - now + 999) / 1e3);
    else if (eviction->at_ms)
        snprintf(text, size, "moved to %s for want of room %.1f s ago", hbm_tier_name(eviction->to),
                 (double)(now - eviction->at_ms) / 1e3);
    else
        return false;
    return true;
}

/* ---- Why there is no room ---- */

__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

static void add_part(char *text, size_t size, uint64_t bytes, const char *words)
{
    if (bytes)
        add(text, size, "%s%.1f MiB %s", *text ? ", " : "", mib(bytes), words);
}

static void tell_working_set(struct device *device, uint64_t bytes)
{
    struct core *core = device->core;

    if (device->pressure.told_ms && core_now(core) - device->pressure.told_ms < TELL_MS)
        return;
    device->pressure.told_ms = core_now(core);
    event_emit(&core->events, "device.thrashes", 0, device->uuid, 0, UINT32_MAX, 0,
               "%" PRIu64 " bytes were used within %d s, its device tier has %" PRIu64, bytes,
               WORKING_SET_MS / 1000, device->capacity[HBM_TIER_DEVICE]);
}

void pressure_explain(struct extent_create *create)
{
    struct device *device = create->device;
    const struct tier tier = device_tier(device, create->tier);
    uint64_t used = working_set(device);
    struct survey survey;
    char parts[160] = "";

    if (create->error != HBM_E_NO_MEMORY || !tier.has_marks || device->state != DEVICE_READY)
        return;
    survey_take(&survey, device, create->tier, true);
    add_part(parts, sizeof(parts), survey.bytes[FATE_LOCKED], "locked");
    add_part(parts, sizeof(parts), survey.bytes[FATE_NEVER], "never to be moved");
    add_part(parts, sizeof(parts), survey.bytes[FATE_SPARED], "left alone since they bounced");
    add_part(parts, sizeof(parts), survey.bytes[FATE_LIMIT], "kept by offload_limit");
    add_part(parts, sizeof(parts), survey.bytes[FATE_STUCK], "not to be moved now");
    add_part(parts, sizeof(parts), survey.bytes[FATE_IDLE] + survey.bytes[FATE_RECENT], "idle, too little");
    add_part(parts, sizeof(parts), survey.bytes[FATE_HOMELESS], "idle, with no room elsewhere");
    if (*parts)
        add(create->detail, sizeof(create->detail), "; %s", parts);
    if (create->tier != HBM_TIER_DEVICE || used <= tier.capacity)
        return;
    add(create->detail, sizeof(create->detail), "; %.1f MiB of %.1f were used within %d s", mib(used),
        mib(tier.capacity), WORKING_SET_MS / 1000);
    tell_working_set(device, used);
}
