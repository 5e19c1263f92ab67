/* Want of room: what is idle in a tier is moved to the next one, device to host, host to disk, by the daemon
 * itself.
 *
 * Either something waits for room (an allocation, a lock or restore; a hint does not), and then as much goes as it
 * needs, or nothing if that would not be enough; or the tier is over its high mark, and then as much as is above
 * the low one, of what was not used since the last look. It goes by the ordinary transition, a few arenas at a
 * time; whoever asks for one of them meanwhile has it at once. */
#pragma once

#include "daemon/core/arena.h"
#include "daemon/core/extent.h"
#include "daemon/core/tier.h"

void pressure_init(struct device *device);
/* Something waits for room there, or has taken some: it is looked at from the loop. */
void pressure_wake(struct device *device, enum hbm_tier tier);
/* Some of it came free. */
void pressure_released(struct device *device, enum hbm_tier tier);
/* Its waiting is not in vain yet: something is being moved out of that tier. */
bool pressure_serves(const struct extent_create *create);
/* It got no room: adds to its detail what the tier is full of. */
void pressure_explain(struct extent_create *create);
/* It has come to lie where it lies from that tier. */
void pressure_moved(struct arena *arena, enum hbm_tier from);
/* What want of room did to it, as a sentence; false if nothing. */
bool pressure_tells(const struct arena *arena, char *text, size_t size);
