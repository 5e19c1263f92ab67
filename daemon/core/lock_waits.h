/* What locks find of the memory that they come for, counted an arena, a model and in all (struct lock_waits). A
 * lock of resident memory is not seen here: it is one atomic operation in the client. */
#pragma once

#include "daemon/core/session.h"

enum lock_finds {
    LOCK_FINDS_AWAY = 1,       /* it waits */
    LOCK_FINDS_PREFETCHED = 2, /* back, or on its way, before it was locked */
};

/* A lock of the session's begins, of that arena first, and has ended: what lies between the end of one and the beginning
 * of the next of the same model is what the client computes meanwhile, as far as the daemon sees it. */
void lock_begins(struct session *session, const struct arena *arena);
void lock_has_ended(struct session *session, const struct arena *arena);

uint8_t lock_finds(const struct arena *arena, bool in_place);
/* One lock has ended, after so long. found: what it found, one an arena. */
void lock_waits_book(struct core *core, const uint64_t *arenas, const uint8_t *found, size_t n, uint64_t ms);
