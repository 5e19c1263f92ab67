/* A checkpoint as a model: which group each tensor is in. */
#pragma once

#include "client/ctl/checkpoint.h"
#include "client/hbm.h"

struct layout {
    struct hbm_publish_buffer
        *buffers; /* shard by shard, by file offset; names are the checkpoint's, groups ours */
    unsigned n_buffers;
    unsigned n_groups;
};

/* The prefix of a tensor's name through its first numeric component ("model.layers.12.mlp.w" -> "model.layers.12");
 * "_" where it has none, or where that would be too long for a group. */
void layout_group(const char *tensor, char group[HBM_GROUP_MAX]);

/* 0, or -1 without memory. */
int layout_make(struct layout *layout, const struct checkpoint *checkpoint);
void layout_clear(struct layout *layout);
