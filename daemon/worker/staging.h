/* The staging pool: slots of one checksum chunk, made and pinned when first needed, given back to the system when
 * the device drops its context. Pinning is slow and pinned memory is scarce, so the pool is bounded and shared. */
#pragma once

#include "daemon/worker/checksum.h"
#include "daemon/worker/failure.h"

/* A chunk, plus room for the unaligned ends of an O_DIRECT window around it. */
#define STAGING_BYTES (CHECKSUM_CHUNK + 65536)

void staging_limit(uint64_t pinned_bytes); /* 0: the default */
/* Lanes that one job may run with a slot each. Four jobs of that size fit side by side, so that two which a file
 * keeps for ever leave room for one to the disk and one from it. */
unsigned staging_lanes(void);
/* Page-aligned; waits while all are in use. NULL: failed. */
void *staging_take(struct failure *failure);
void staging_give(void *slot);
/* Frees the slots that nobody holds. */
void staging_drop(void);
