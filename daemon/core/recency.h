/* What was used when, as far as the daemon knows. Locks of resident memory are made without it: they leave a bit in
 * the client's residency word (LOCKWORD_USED), which is looked at, and cleared, only when something has to go
 * (daemon/core/survey.h). So "least recently locked" is exact to the last attach, lock round trip or such look. */
#pragma once

#include "daemon/core/arena.h"

#define WORKING_SET_MS 10000

/* It was used now. */
void recency_note(struct arena *arena);
/* It has another place or priority, or is new: last of those there. */
void recency_place(struct arena *arena);
/* It goes. */
void recency_forget(struct arena *arena);
/* Bytes that were used within the last WORKING_SET_MS or twice that, wherever they lie: an estimate. */
uint64_t working_set(const struct device *device);
