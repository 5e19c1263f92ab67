/* Sockets of ended links in which fds lie that the client has not read. The kernel counts these against us for as
 * long as the client keeps its end open, whatever becomes of ours: so ours stays open, shut down, to see them go,
 * and the account pays until they have. */
#pragma once

#include "daemon/wire/link.h"

/* Takes the link's socket and its charge; false if nothing lies there, and both are still the link's. */
bool unread_keep(struct link *link);
/* Lets go of those that have been read, or whose client is gone. */
void unread_reap(struct wire_server *server);
void unread_tick(struct timer *timer);
unsigned unread_of(const struct wire_server *server, struct owner owner);
/* Closes all. */
void unread_clear(struct wire_server *server);
