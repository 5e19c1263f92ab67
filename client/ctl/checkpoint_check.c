/* What shards must agree on: names, and the index. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/checkpoint.h"
#include "client/ctl/json_text.h"
#include "client/ctl/scoped.h"

struct place {
    const char *tensor;
    const char *shard;
};

static int compare_places(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->tensor, ((const struct place *)b)->tensor);
}

static struct place *sorted_places(const struct checkpoint *checkpoint)
{
    struct place *places = calloc(checkpoint->n_tensors + 1, sizeof(*places));
    size_t n = 0;

    for (unsigned i = 0; places && i < checkpoint->n_shards; i++) {
        const struct shard *shard = &checkpoint->shards[i];
        for (unsigned t = 0; t < shard->file->n; t++)
            places[n++] = (struct place){shard->file->tensors[t].name, shard->name};
    }
    if (places)
        qsort(places, n, sizeof(*places), compare_places);
    return places;
}

int checkpoint_check(const struct checkpoint *checkpoint, const cJSON *weight_map, char why[CHECKPOINT_WHY])
{
    _cleanup_free_ struct place *places = sorted_places(checkpoint);
    const cJSON *entry;

    if (!places)
        return checkpoint_refuse(why, "there is no memory for %u tensors", checkpoint->n_tensors);
    for (unsigned i = 1; i < checkpoint->n_tensors; i++)
        if (!strcmp(places[i - 1].tensor, places[i].tensor))
            return checkpoint_refuse(why, "tensor \"%.200s\" is both in %.200s and in %.200s", places[i].tensor,
                                     places[i - 1].shard, places[i].shard);
    cJSON_ArrayForEach(entry, weight_map)
    {
        struct place wanted = {entry->string, entry->valuestring};
        const struct place *found =
            bsearch(&wanted, places, checkpoint->n_tensors, sizeof(*places), compare_places);
        if (!found)
            return checkpoint_refuse(
                why, CHECKPOINT_INDEX " says that tensor \"%.200s\" is in %.200s, which does not have it",
                wanted.tensor, wanted.shard);
        if (strcmp(found->shard, wanted.shard))
            return checkpoint_refuse(
                why, CHECKPOINT_INDEX " says that tensor \"%.200s\" is in %.200s, but it is in %.200s",
                wanted.tensor, wanted.shard, found->shard);
    }
    return 0;
}

static bool is_file_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..") && strlen(name) < 256;
}

const cJSON *checkpoint_weight_map(const char *text, size_t size, cJSON **tree, char why[CHECKPOINT_WHY])
{
    static const struct json_rules rules = {.depth_max = 16};
    const char *fault, *twice;
    const cJSON *entry;

    *tree = json_parse(text, size, &rules, &fault);
    if (!*tree) {
        checkpoint_refuse(why, CHECKPOINT_INDEX " %s", fault);
        return NULL;
    }
    const cJSON *map = json_only(*tree, "weight_map");
    if (!cJSON_IsObject(map)) {
        checkpoint_refuse(why, CHECKPOINT_INDEX " does not have one weight_map");
        return NULL;
    }
    cJSON_ArrayForEach(entry, map)
    {
        if (!cJSON_IsString(entry) || !is_file_name(entry->valuestring)) {
            checkpoint_refuse(why, CHECKPOINT_INDEX " gives tensor \"%.200s\" a shard that is no plain file name",
                              entry->string);
            return NULL;
        }
    }
    if (!json_duplicate(map, &twice) || twice) {
        checkpoint_refuse(why, CHECKPOINT_INDEX " names tensor \"%.200s\" twice", twice ? twice : "?");
        return NULL;
    }
    return map;
}
