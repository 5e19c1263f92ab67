/* Locks that a device waits for and not the CPU: memory is mapped before its bytes are there, the stream is held back by a gate,
 * and a thread that calls no driver opens it when the daemon has said how the move ended. Nothing opens that gate but a store
 * to memory of this process, so that it is opened whatever happens to the daemon, to its worker or to the driver's locks. */
#pragma once

#include "client/lib/mapping.h"

/* Claimed, away. `passed`: the claim is the thread's now, which ends it. Else as after a lock: it is here, or the error is set. */
int early_fetch(hbm_session *session, struct hold *hold, void *stream, uint32_t timeout_ms, bool *passed);
/* Claimed. Sets and returns the error that its move ended with, 0 if it has none. */
int early_error(const struct mapping *mapping);
/* Claimed: once nothing holds what has not arrived, unmaps it. */
void early_drop(hbm_session *session, struct mapping *mapping);
/* Every claim has ended: waits until their threads have, too. */
void early_end(hbm_session *session);
