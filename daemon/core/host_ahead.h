/* Host memory made ahead, near a GPU: what is offloaded first must not wait until its memory is pinned, which takes
 * ten times as long as the copy. For what lies on a device, by the order in which it would leave, one piece each is
 * made of just its size (an import maps at no other), one after the other, with pauses in between as long as the
 * pinning took, up to the device's `cap`. A piece holds zeros and has never been anybody's: the first move that
 * wants its size gets it, whosever that is, and pays from then on. Until then it is no extent and nobody's charge;
 * it counts as used and pooled in the host tier, and gives way to whoever needs room there.
 *
 * Pieces go when nothing on the device would fit them for a minute, when nothing was made, moved or asked for there
 * for host_pool_idle_ms, and as soon as the machine is short of memory. */
#pragma once

#include "daemon/core/extent.h"

void host_ahead_init(struct device *device);
/* So much may lie ready; what is more goes at once. */
void host_ahead_limit(struct device *device, uint64_t cap);
/* Something on the device came, went or moved, or its worker serves again. */
void host_ahead_wake(struct device *device);
/* Something there was used. */
void host_ahead_used(struct device *device);
/* A piece of just that size, if there is one: its fd is the create's, and so is its room. */
bool host_ahead_take(struct extent_create *create);
/* Drops the oldest piece; false if there is none. */
bool host_ahead_drop_one(struct device *device);
/* The machine is short of memory: drops all, and makes none for a while. False if there was none. */
bool host_ahead_drop_all(struct device *device);
/* As the core goes: closes the fds and tells nobody. */
void host_ahead_clear(struct device *device);
