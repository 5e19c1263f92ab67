/* What locks find of the memory that they come for, counted an arena, a model and in all (struct lock_waits). A
 * lock of resident memory is not seen here: it is one atomic operation in the client. */
#pragma once

#include "daemon/core/arena.h"

enum lock_finds {
    LOCK_FINDS_AWAY = 1,       /* it waits */
    LOCK_FINDS_PREFETCHED = 2, /* back, or on its way, before it was locked */
};

uint8_t lock_finds(const struct arena *arena);
/* One lock has ended, after so long. found: what it found, one an arena. */
void lock_waits_book(struct core *core, const uint64_t *arenas, const uint8_t *found, size_t n, uint64_t ms);
