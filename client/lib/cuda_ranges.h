/* Address ranges of the process for what the driver maps, cut from one large reservation: a reservation for each
 * arena is a call of the driver's more, at each attach. Any thread; nothing of it is used after a fork. */
#pragma once

#include "client/lib/cuda_driver.h"

#define CUDA_RANGES_BYTES ((size_t)1 << 40) /* of addresses, not of memory: a small part of what a process has */
#define CUDA_RANGES_ALIGN ((size_t)2 << 20) /* the granularity of every device so far */

/* `size` bytes of addresses, aligned as the driver aligns a reservation of its own. 0 or the driver's error. */
CUresult cuda_range_take(const struct cuda_driver *cuda, size_t size, CUdeviceptr *address);
/* With nothing mapped there. */
void cuda_range_give(const struct cuda_driver *cuda, CUdeviceptr address, size_t size);
