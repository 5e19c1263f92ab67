/* GPU extents: shareable device and host memory, and cuda-ipc blocks. */
#pragma once

#include "daemon/worker/device.h"

int extent_granularity(uint64_t *bytes, struct failure *failure);

/* block.c: cudaMalloc blocks, the only memory that lives in this process. */
int block_create(uint64_t size, struct job_create_reply *reply, struct failure *failure);
int block_map(const struct job_extent *extent, struct view *view, struct failure *failure);
void block_unmap(uint64_t token);
