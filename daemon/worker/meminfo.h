/* How much memory this machine has. */
#pragma once

#include <stdint.h>

/* Bytes of a line of /proc/meminfo ("MemTotal", "MemAvailable"); 0 if there is none. */
uint64_t meminfo_bytes(const char *name);
