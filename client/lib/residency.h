/* Locks: one atomic on the word while the arena is resident, a round trip when it is away. */
#pragma once

#include "client/lib/mapping.h"

/* All or nothing; at most 128 arenas that are away. */
int residency_lock(hbm_session *session, struct hold *const *holds, unsigned n, uint32_t timeout_ms);
/* One, for what is queued on the stream from then on. */
int residency_lock_on(hbm_session *session, struct hold *hold, void *stream, uint32_t timeout_ms);
int residency_unlock(hbm_session *session, struct hold *hold, void *const *streams, unsigned n);
/* Lets go of everything that the daemon wants back and nothing holds. Leaves busy mappings to who is busy. */
void residency_serve(hbm_session *session);
