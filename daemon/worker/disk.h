/* DISK extents: unlinked files, so that the fd is all there is of one and a crash leaves nothing behind. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/failure.h"

#define DISK_ALIGN 4096u /* and the cipher's block */

/* `size` must be a multiple of DISK_ALIGN. The blocks are allocated here: a copy later cannot run out of space.
 * *direct: it is used past the page cache. */
int disk_create(const char *state_dir, uint64_t size, int *fd, bool *direct, struct failure *failure);
