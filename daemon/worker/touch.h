/* Pages of a memfd, made before they are used: by several threads, as the kernel's clearing of them is what takes
 * the time. */
#pragma once

#include <stdint.h>

#include "daemon/worker/failure.h"

/* All of them; near that NUMA node where there is room (-1: anywhere). */
int touch_pages(int memfd, uint64_t size, int node, struct failure *failure);
