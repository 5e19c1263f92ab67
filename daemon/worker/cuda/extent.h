/* GPU extents: shareable device and host memory, and cuda-ipc blocks. */
#pragma once

#include "daemon/worker/device.h"

int extent_granularity(uint64_t *bytes, struct failure *failure);

/* map.c: for one job, or for as long as it is kept. The handle, an allocation's or an import's, is taken. */
int map_handle(const struct job_extent *extent, uint64_t handle, struct view *view, struct failure *failure);
int map_extent(const struct job_extent *extent, int fd, struct view *view, struct failure *failure);
void unmap_extent(struct view *view);
/* Bytes from there, at most `bytes`, that one copy may have: none reaches from one registered piece into the next. */
size_t map_up_to_seam(const void *at, size_t bytes);

/* keep.c: host extents with a token stay mapped until they are forgotten or the context goes. */
int keep_map(const struct job_extent *extent, int fd, struct view *view, struct failure *failure);
void keep_unmap(struct view *view);
/* A job that uses it finishes first. An unknown token is fine. */
int keep_forget(uint64_t token, struct failure *failure);
/* Nobody uses any: unmaps all. */
void keep_drop(void);

/* hash.c: frees what no job uses. */
void hashes_drop(void);

/* scratch.c: likewise. */
void scratch_drop(void);

/* block.c: cudaMalloc blocks, the only memory that lives in this process. */
int block_create(uint64_t size, struct job_create_reply *reply, struct failure *failure);
int block_destroy(uint64_t token, struct failure *failure);
int block_map(const struct job_extent *extent, struct view *view, struct failure *failure);
void block_unmap(uint64_t token);
