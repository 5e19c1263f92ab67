#include "client/ctl/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REST "_"

void layout_group(const char *tensor, char group[HBM_GROUP_MAX])
{
    const char *component = tensor;

    snprintf(group, HBM_GROUP_MAX, REST);
    while (*component) {
        size_t length = strcspn(component, "."), digits = strspn(component, "0123456789");
        size_t prefix = (size_t)(component - tensor) + length;
        if (length && digits == length) {
            if (prefix < HBM_GROUP_MAX)
                snprintf(group, HBM_GROUP_MAX, "%.*s", (int)prefix, tensor);
            return;
        }
        component += length;
        component += *component == '.';
    }
}

static int compare_groups(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int count_groups(struct layout *layout)
{
    const char **groups = calloc(layout->n_buffers + 1, sizeof(*groups));

    if (!groups)
        return -1;
    for (unsigned i = 0; i < layout->n_buffers; i++)
        groups[i] = layout->buffers[i].group;
    qsort(groups, layout->n_buffers, sizeof(*groups), compare_groups);
    for (unsigned i = 0; i < layout->n_buffers; i++)
        layout->n_groups += !i || strcmp(groups[i - 1], groups[i]);
    free(groups);
    return 0;
}

static int add_tensor(struct layout *layout, const struct safetensor *tensor)
{
    struct hbm_publish_buffer *buffer = &layout->buffers[layout->n_buffers];
    char group[HBM_GROUP_MAX];

    layout_group(tensor->name, group);
    *buffer = (struct hbm_publish_buffer){tensor->name, strdup(group), tensor->dtype, tensor->rank, {0}};
    memcpy(buffer->dims, tensor->dims, sizeof(buffer->dims));
    if (!buffer->group)
        return -1;
    layout->n_buffers++;
    return 0;
}

int layout_make(struct layout *layout, const struct checkpoint *checkpoint)
{
    *layout = (struct layout){.buffers = calloc(checkpoint->n_tensors + 1, sizeof(*layout->buffers))};
    if (!layout->buffers)
        return -1;
    for (unsigned i = 0; i < checkpoint->n_shards; i++) {
        const struct safetensors *file = checkpoint->shards[i].file;
        for (unsigned t = 0; t < file->n; t++)
            if (add_tensor(layout, &file->tensors[t]) < 0)
                return -1;
    }
    return count_groups(layout);
}

void layout_clear(struct layout *layout)
{
    for (unsigned i = 0; i < layout->n_buffers; i++)
        free((char *)layout->buffers[i].group);
    free(layout->buffers);
    *layout = (struct layout){0};
}
