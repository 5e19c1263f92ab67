/* The peer tier: memory of another device than an arena's own, as a place to move it to. It is an extent like any other
 * of that device, with its room there and its owner's charge; only the arena's own device makes the difference. */
#pragma once

#include "daemon/core/arena.h"

/* The device with the most room among those that may take the arena: ready, its owner's listener has them, and its own
 * device reaches them. NULL with UNSUPPORTED's sentence in detail: what is in the way of each. */
struct device *peer_for(const struct arena *arena, char *detail);
/* By its worker's word. */
bool peer_reaches(const struct device *device, const struct device *other);
/* Of the device's memory: what is there of other devices' arenas. */
uint64_t peer_bytes(const struct core *core, const struct device *device);
