#include "client/ctl/map.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/member.h"
#include "client/ctl/report.h"

static void *room(size_t n, size_t size)
{
    void *room = calloc(n + 1, size);

    if (!room)
        out_of_memory();
    return room;
}

void map_keep(void *array, const cJSON *row)
{
    static const char *const names[] = {"device", "peer", "tier", "stored_size", "model", "group"};
    const cJSON *lease, *leases = member(row, "leases");
    cJSON *kept = cJSON_CreateObject();
    bool locked = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cJSON_AddItemToObjectCS(kept, names[i], cJSON_Duplicate(member(row, names[i]), false));
    cJSON_ArrayForEach(lease, leases) locked |= cJSON_IsTrue(member(lease, "locked"));
    cJSON_AddItemToObjectCS(kept, "leased", cJSON_CreateBool(leases && leases->child));
    cJSON_AddItemToObjectCS(kept, "locked", cJSON_CreateBool(locked));
    cJSON_AddItemToArray(array, kept);
}

static struct piece piece_of(const cJSON *buffer)
{
    const cJSON *size = member(buffer, "stored_size");
    bool peer = !strcmp(text_of(buffer, "tier"), "peer");
    return (struct piece){
        .device = text_of(buffer, peer ? "peer" : "device"),
        .tier = peer ? "device" : text_of(buffer, "tier"),
        .model = text_of(buffer, "model"),
        .group = text_of(buffer, "group"),
        .bytes = cJSON_IsNumber(size) ? size->valuedouble : 0,
        .buffers = 1,
        .leased = cJSON_IsTrue(member(buffer, "leased")),
        .locked = cJSON_IsTrue(member(buffer, "locked")),
    };
}

static int by_model(const void *a, const void *b)
{
    return strcmp(((const struct piece *)a)->model, ((const struct piece *)b)->model);
}

static int by_bytes(const void *a, const void *b)
{
    const struct map_owner *one = a, *other = b;

    return one->bytes != other->bytes ? (one->bytes < other->bytes) - (one->bytes > other->bytes)
                                      : strcmp(one->name, other->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_place(const void *a, const void *b)
{
    const struct piece *one = a, *other = b;
    int order = strcmp(one->device, other->device);

    if (!order)
        order = strcmp(one->tier, other->tier);
    if (!order)
        order = (one->owner > other->owner) - (one->owner < other->owner);
    return order ? order : strcmp(one->group, other->group);
}

struct place {
    const char *name;
    unsigned index;
};

/* The pieces are in the order of their models; afterwards each knows its owner. */
static void make_owners(struct map *map)
{
    map->owners = room(map->n_pieces, sizeof(*map->owners));
    for (unsigned i = 0; i < map->n_pieces; i++) {
        const struct piece *piece = &map->pieces[i];
        if (!i || strcmp(piece[-1].model, piece->model))
            map->owners[map->n_owners++].name = piece->model;
        map->owners[map->n_owners - 1].bytes += piece->bytes;
        map->owners[map->n_owners - 1].leased |= piece->leased;
    }
    qsort(map->owners, map->n_owners, sizeof(*map->owners), by_bytes);
    struct place *places = room(map->n_owners, sizeof(*places));
    for (unsigned i = 0; i < map->n_owners; i++)
        places[i] = (struct place){map->owners[i].name, i};
    qsort(places, map->n_owners, sizeof(*places), by_name);
    for (unsigned i = 0, at = 0; i < map->n_pieces; i++) {
        at += strcmp(places[at].name, map->pieces[i].model) != 0;
        map->pieces[i].owner = places[at].index;
    }
    free(places);
}

/* Buffers of one group, and all of one tier that are of no model and no group, are one piece. */
static void merge(struct map *map)
{
    unsigned n = 0;

    for (unsigned i = 0; i < map->n_pieces; i++) {
        struct piece *last = n ? &map->pieces[n - 1] : NULL, *piece = &map->pieces[i];
        if (!last || by_place(last, piece)) {
            map->pieces[n++] = *piece;
            continue;
        }
        last->bytes += piece->bytes;
        last->buffers += piece->buffers;
        last->leased |= piece->leased;
        last->locked |= piece->locked;
    }
    map->n_pieces = n;
}

void map_make(struct map *map, const cJSON *devices, const cJSON *kept)
{
    const cJSON *buffer;

    *map = (struct map){.devices = devices, .pieces = room((size_t)cJSON_GetArraySize(kept), sizeof(*map->pieces))};
    cJSON_ArrayForEach(buffer, kept) map->pieces[map->n_pieces++] = piece_of(buffer);
    qsort(map->pieces, map->n_pieces, sizeof(*map->pieces), by_model);
    make_owners(map);
    qsort(map->pieces, map->n_pieces, sizeof(*map->pieces), by_place);
    merge(map);
}

void map_clear(struct map *map)
{
    free(map->pieces);
    free(map->owners);
    *map = (struct map){0};
}

const struct piece *map_tier(const struct map *map, const char *device, const char *tier, unsigned *n)
{
    const struct piece *first = NULL;

    *n = 0;
    for (unsigned i = 0; i < map->n_pieces; i++) {
        if (strcmp(map->pieces[i].device, device) || strcmp(map->pieces[i].tier, tier))
            continue;
        if (!first)
            first = &map->pieces[i];
        ++*n;
    }
    return first;
}
