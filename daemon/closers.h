/* Where the loop's fds are closed that may take long to close: memory, and what clients sent. A closer of its own
 * for memory and for each owner of clients, as far as these are few: a file whose server does not answer holds up its
 * sender's alone. */
#pragma once

#include <uv.h>

#include "daemon/core/call.h"

struct closers;

int closers_new(uv_loop_t *loop, struct closers **ret);
/* Takes the fd; closed follows, from the loop or at once. */
void closers_memory(struct closers *closers, int fd, void (*closed)(void *argument), void *argument);
/* Takes the fd (-1: none). True if many of this owner's are not closed, and none has been for a while; or too many. */
bool closers_sent(struct closers *closers, struct owner owner, int fd);
/* Nobody is told any more, and nothing waited for; memory is closed at once from now on. The handle goes with the
 * loop's close callbacks. */
void closers_stop(struct closers *closers);
/* After it was stopped and the loop has turned. NULL is fine; returns NULL. */
struct closers *closers_free(struct closers *closers);
