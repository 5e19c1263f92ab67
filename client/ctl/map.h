/* Who lies where, for `hbmctl map`: pieces of memory, each a group of a model, or what belongs to none. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

struct piece {
    const char *device, *tier; /* where it lies; texts are the answer's */
    const char *model, *group; /* "" where there is none */
    double bytes;
    unsigned buffers, owner; /* owner: of map.owners */
    bool leased, locked;
};

/* A model, or (name "") all that belongs to none. */
struct map_owner {
    const char *name;
    double bytes;
    bool leased;
};

struct map {
    const cJSON *devices; /* hbm.devices; the caller's */
    struct piece *pieces; /* by device, tier, owner (largest first), group */
    unsigned n_pieces;
    struct map_owner *owners; /* the largest first */
    unsigned n_owners;
};

/* Adds to an array what the map needs of a row of hbm.ls. */
void map_keep(void *array, const cJSON *row);
/* From hbm.devices and what was kept of hbm.ls: both are to live as long as the map. */
void map_make(struct map *map, const cJSON *devices, const cJSON *kept);
void map_clear(struct map *map);
/* The pieces in one tier of a device: the first, and how many. */
const struct piece *map_tier(const struct map *map, const char *device, const char *tier, unsigned *n);

/* To a terminal of so many columns; 0: no limit. */
void map_print(const struct map *map, unsigned width);
void map_svg(const struct map *map, FILE *out);
