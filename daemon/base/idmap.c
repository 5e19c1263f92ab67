#include "daemon/base/idmap.h"

#include <errno.h>
#include <stdlib.h>

#define SLOT_BITS 24
#define SLOT_MAX (((uint32_t)1 << SLOT_BITS) - 1)
#define GENERATION_MASK (((uint32_t)1 << 20) - 1)
#define GENERATION_MAX GENERATION_MASK
/* Bounds are raised by so much at a time: a write for many ids. */
#define GENERATIONS_AHEAD 64u
#define SLOTS_AHEAD 1024u
#define UNRECORDED_GENERATIONS 4096u /* likely more than were given and are gone, where nobody wrote down how many */

struct idmap_slot {
    void *object;
    uint32_t generation;
    uint32_t next_free; /* slot + 1 */
    uint8_t kind;
    uint8_t hole; /* never used since the map was restored */
};

void idmap_init(struct idmap *map, uint16_t epoch, void (*raised)(struct idmap *map))
{
    *map = (struct idmap){.epoch = epoch, .raised = raised};
}

void idmap_clear(struct idmap *map)
{
    free(map->slots);
    map->slots = NULL;
}

static uint32_t slot_of(uint64_t id)
{
    return id & SLOT_MAX;
}

static int grow(struct idmap *map, uint32_t need)
{
    uint32_t room = map->room ? map->room : 64;

    if (need > SLOT_MAX)
        return -ENOMEM;
    if (need <= map->room)
        return 0;
    while (room < need)
        room *= 2;
    struct idmap_slot *slots = reallocarray(map->slots, room, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    map->slots = slots;
    map->room = room;
    return 0;
}

static void push_free(struct idmap *map, uint32_t slot)
{
    map->slots[slot].next_free = 0;
    if (map->free_tail)
        map->slots[map->free_tail - 1].next_free = slot + 1;
    else
        map->free_head = slot + 1;
    map->free_tail = slot + 1;
}

static bool pop_free(struct idmap *map, uint32_t *slot)
{
    if (!map->free_head)
        return false;
    *slot = map->free_head - 1;
    map->free_head = map->slots[*slot].next_free;
    if (!map->free_head)
        map->free_tail = 0;
    return true;
}

static bool take_new(struct idmap *map, uint32_t *slot)
{
    uint32_t first = map->used > map->bounds.first ? map->used : map->bounds.first;

    if (grow(map, first + 1) < 0)
        return false;
    for (; map->used < first; map->used++)
        map->slots[map->used] = (struct idmap_slot){0};
    *slot = map->used++;
    map->slots[*slot] = (struct idmap_slot){.generation = map->base ? map->base : 1};
    return true;
}

static uint32_t ahead(uint32_t value, uint32_t step, uint32_t limit)
{
    return value < limit - step ? value + step : limit;
}

static void keep_within_bounds(struct idmap *map, uint32_t slot)
{
    struct idmap_bounds *bounds = &map->bounds;
    uint32_t generation = map->slots[slot].generation;
    bool beyond = generation > bounds->generation || slot >= bounds->slots;

    if (generation > bounds->generation)
        bounds->generation = ahead(generation, GENERATIONS_AHEAD, GENERATION_MAX);
    if (slot >= bounds->slots)
        bounds->slots = ahead(slot, SLOTS_AHEAD, SLOT_MAX);
    if (beyond && map->raised)
        map->raised(map);
}

uint64_t idmap_add(struct idmap *map, unsigned kind, void *object)
{
    uint32_t slot;

    if (!pop_free(map, &slot) && !take_new(map, &slot))
        return 0;
    keep_within_bounds(map, slot);
    struct idmap_slot *entry = &map->slots[slot];
    entry->object = object;
    entry->kind = (uint8_t)kind;
    return (uint64_t)map->epoch << 48 | (uint64_t)kind << 44 | (uint64_t)entry->generation << SLOT_BITS | slot;
}

bool idmap_could_put(const struct idmap *map, uint64_t id, unsigned kind)
{
    uint32_t slot = slot_of(id);

    return (uint16_t)(id >> 48) == map->epoch && (id >> 44 & 0xf) == kind && (id >> SLOT_BITS & GENERATION_MASK) &&
           (slot >= map->used || !map->slots[slot].object);
}

int idmap_put(struct idmap *map, uint64_t id, void *object)
{
    uint32_t slot = slot_of(id);

    if (grow(map, slot + 1) < 0)
        return -ENOMEM;
    for (; map->used <= slot; map->used++)
        map->slots[map->used] = (struct idmap_slot){.generation = 1, .hole = 1};
    struct idmap_slot *entry = &map->slots[slot];
    if (entry->object)
        return -EEXIST;
    entry->object = object;
    entry->kind = (uint8_t)(id >> 44 & 0xf);
    entry->generation = (uint32_t)(id >> SLOT_BITS) & GENERATION_MASK;
    entry->hole = 0;
    map->epoch = (uint16_t)(id >> 48);
    return 0;
}

/* What the bounds do not say, the objects do: a damaged ledger may have lost them. */
static void widen_bounds(struct idmap *map)
{
    struct idmap_bounds *bounds = &map->bounds;

    for (uint32_t i = bounds->first; i < map->used; i++)
        if (map->slots[i].object && map->slots[i].generation > bounds->generation)
            bounds->generation = map->slots[i].generation;
    if (!bounds->slots) /* version 1 of the ledger has none */
        bounds->generation += UNRECORDED_GENERATIONS;
    if (bounds->slots < map->used)
        bounds->slots = map->used;
}

void idmap_seal_holes(struct idmap *map)
{
    struct idmap_bounds *bounds = &map->bounds;

    widen_bounds(map);
    if (bounds->generation >= GENERATION_MAX) {
        bounds->first = bounds->slots;
        bounds->generation = 0;
    }
    map->base = bounds->generation + 1;
    for (uint32_t i = 0; i < map->used; i++) {
        if (!map->slots[i].hole)
            continue;
        map->slots[i].hole = 0;
        map->slots[i].generation = map->base;
        if (i >= bounds->first)
            push_free(map, i);
    }
}

void *idmap_get(const struct idmap *map, uint64_t id, unsigned kind)
{
    uint32_t slot = slot_of(id);

    if (slot >= map->used || (uint16_t)(id >> 48) != map->epoch)
        return NULL;
    const struct idmap_slot *entry = &map->slots[slot];
    if (entry->kind != kind || (id >> 44 & 0xf) != kind ||
        (uint32_t)(id >> SLOT_BITS & GENERATION_MASK) != entry->generation)
        return NULL;
    return entry->object;
}

void idmap_remove(struct idmap *map, uint64_t id)
{
    uint32_t slot = slot_of(id);

    if (slot >= map->used || !map->slots[slot].object)
        return;
    struct idmap_slot *entry = &map->slots[slot];
    entry->object = NULL;
    if (entry->generation++ < GENERATION_MAX && slot >= map->bounds.first)
        push_free(map, slot);
}
