#include "daemon/core/scale.h"

#include <stdio.h>

#include "daemon/core/ledger.h"

struct buffer *scale_new(struct buffer *parent, const struct placement *placement, int *error, char *detail)
{
    uint64_t units = placement->scale_size / sizeof(float);
    char name[HBM_NAME_MAX];
    struct buffer_spec spec = {
        .dtype = HBM_F32,
        .rank = 1,
        .dims = &units,
        .offset = placement->scale_offset,
        .size = placement->scale_size,
        .unlisted = parent->name && !parent->listed,
    };

    if (parent->name) {
        int n = snprintf(name, sizeof(name), "%s.scale", parent->name);
        if (n < 0 || (size_t)n >= sizeof(name)) {
            snprintf(detail, HBM_DETAIL_MAX, "%.180s.scale is longer than a name may be", parent->name);
            *error = HBM_E_INVALID;
            return NULL;
        }
        spec.name = name;
    }
    struct buffer *scale = buffer_new(parent->arena, &spec, error, detail);
    if (!scale)
        return NULL;
    scale->parent = parent;
    parent->scale = scale;
    return scale;
}

void scale_place(struct buffer *scale, const struct buffer *parent, const struct placement *placement)
{
    scale->dims[0] = placement->scale_size / sizeof(float);
    scale->offset = placement->scale_offset;
    scale->size = placement->scale_size;
    scale->version = parent->version;
    ledger_put_buffer(scale->core, scale);
}
