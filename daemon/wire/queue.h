/* The send queue of a link: packets that its socket had no room for, with their own copies of the fds. */
#pragma once

#include "daemon/wire/link.h"

void queue_flush(struct link *link);
void queue_clear(struct link *link);
/* Its socket goes, with the fds in it. */
void queue_forget_fds(struct link *link);
/* No more is charged for fds that have left its socket. */
void queue_forget_if_read(struct link *link);
