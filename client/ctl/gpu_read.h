/* Reads GPU memory back through libcuda, which is looked for only here. */
#pragma once

#include <stddef.h>

/* Copies to the host from an address on the device of that UUID. NULL, or what the driver (or its absence) says. */
const char *gpu_read(const char *uuid, void *to, const void *from, size_t bytes);
