/* 64-bit ids that never resolve to anything but what they were given for:
 *   epoch 16 | kind 4 | generation 20 | slot 24
 * A freed slot's next id has the next generation; another ledger's ids have another epoch. Lookups are O(1).
 * Freed slots are reused oldest first, so that a generation lasts as long as it can; one that is out of generations
 * is not used again.
 *
 * Over restarts that holds because what was given is known by its bounds, which are written down before an id
 * beyond them is given. The next life begins above them; where no generation is left there, in slots never used
 * before. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct idmap_slot;

/* No id was ever given that lies beyond these. */
struct idmap_bounds {
    uint32_t generation; /* the highest, of slots from `first` on */
    uint32_t slots;      /* how many */
    uint32_t first;      /* slots before it are used no more, once they are empty */
};

struct idmap {
    struct idmap_slot *slots;
    uint32_t used, room;
    uint32_t free_head, free_tail; /* slot + 1; 0 = none */
    uint16_t epoch;
    uint32_t base; /* generation of slots not used in this life; 0 means 1 */
    struct idmap_bounds bounds;
    void (*raised)(struct idmap *map);
};

/* raised: the bounds are to be written down now; NULL: nobody does. */
void idmap_init(struct idmap *map, uint16_t epoch, void (*raised)(struct idmap *map));
void idmap_clear(struct idmap *map);
/* A new id for object, or 0 when memory or slots are out. */
uint64_t idmap_add(struct idmap *map, unsigned kind, void *object);
/* Puts object back under the id it had before a restart. 0, -EEXIST or -ENOMEM. Call idmap_seal_holes afterwards.
 */
int idmap_put(struct idmap *map, uint64_t id, void *object);
/* True if it is an id that this map could have given for that kind, and nothing is in its slot: what was read of a
 * file may be neither. */
bool idmap_could_put(const struct idmap *map, uint64_t id, unsigned kind);
/* After the last idmap_put, with the bounds of the life before: makes the slots that were not put usable again, and
 * those beyond. */
void idmap_seal_holes(struct idmap *map);
void *idmap_get(const struct idmap *map, uint64_t id, unsigned kind);
void idmap_remove(struct idmap *map, uint64_t id);
