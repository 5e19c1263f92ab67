/* For resume.c: the list that RESUME brings, and the one that comes back. */
#pragma once

#include "client/lib/session.h"

struct holdings {
    uint64_t *ids; /* of leases; then LOCKWORD_SLOTS bits: a mapping is there. malloc'd */
    uint32_t n;
};

/* 0 or -ENOMEM. A new life begins: what is added to the session's lists from here on belongs to it, and what a
 * reply of an earlier one brought is not added any more. */
int take_stock(hbm_session *session, struct holdings *holdings);
/* fd: a sealed memfd of n ids that the daemon does not know. */
void lose_leases(hbm_session *session, int fd, uint32_t n);
