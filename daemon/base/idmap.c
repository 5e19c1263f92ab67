#include "daemon/base/idmap.h"

#include <errno.h>
#include <stdlib.h>

#define SLOT_BITS 24
#define SLOT_MAX (((uint32_t)1 << SLOT_BITS) - 1)
#define GENERATION_MASK (((uint32_t)1 << 20) - 1)

struct idmap_slot {
    void *object;
    uint32_t generation;
    uint32_t next_free; /* slot + 1 */
    uint8_t kind;
    uint8_t hole; /* never used since the map was restored */
};

void idmap_init(struct idmap *map, uint16_t epoch)
{
    *map = (struct idmap){.epoch = epoch};
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

uint64_t idmap_add(struct idmap *map, unsigned kind, void *object)
{
    uint32_t slot;

    if (map->free_head) {
        slot = map->free_head - 1;
        map->free_head = map->slots[slot].next_free;
        if (!map->free_head)
            map->free_tail = 0;
    } else {
        if (grow(map, map->used + 1) < 0)
            return 0;
        slot = map->used++;
        map->slots[slot] = (struct idmap_slot){.generation = map->base ? map->base : 1};
    }
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

void idmap_seal_holes(struct idmap *map)
{
    uint32_t highest = map->base;

    /* A slot that is empty now, or lies beyond those in use, may have lived through generations that nobody recorded;
     * skipping past the highest one seen, by a wide margin, keeps old ids from resolving to new objects. */
    for (uint32_t i = 0; i < map->used; i++)
        if (map->slots[i].generation > highest)
            highest = map->slots[i].generation;
    map->base = (highest + 4096) & GENERATION_MASK;
    if (!map->base)
        map->base = 1;
    for (uint32_t i = 0; i < map->used; i++) {
        if (!map->slots[i].hole)
            continue;
        map->slots[i].hole = 0;
        map->slots[i].generation = map->base;
        push_free(map, i);
    }
}

void *idmap_get(const struct idmap *map, uint64_t id, unsigned kind)
{
    uint32_t slot = slot_of(id);

    if (slot >= map->used || (uint16_t)(id >> 48) != map->epoch)
        return NULL;
    const struct idmap_slot *entry = &map->slots[slot];
    if (entry->kind != kind || (id >> 44 & 0xf) != kind || (uint32_t)(id >> SLOT_BITS & GENERATION_MASK) != entry->generation)
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
    entry->generation = (entry->generation + 1) & GENERATION_MASK;
    /* Generation 0 would make the all-zero id valid. */
    if (!entry->generation)
        entry->generation = 1;
    push_free(map, slot);
}
