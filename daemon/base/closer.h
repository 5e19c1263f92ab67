/* Closing that may take long: the driver gives memory back at 0.8 ms a GiB, and the server of a file that somebody
 * sent may never answer. One queue, closed in turn by one thread, which starts with the first fd; what hangs holds
 * up nothing but its own queue. All calls are for one thread; in a forked child none has a meaning. */
#pragma once

struct closer;

/* notify is called, in the closer's thread, when something has been closed: closer_reap is wanted. NULL: memory is
 * out. */
struct closer *closer_new(void (*notify)(void *context), void *context);
/* Takes the fd. closed (NULL is fine) follows from closer_reap; or at once, where neither memory nor a thread is to
 * be had and the fd was closed right here. */
void closer_put(struct closer *closer, int fd, void (*closed)(void *argument), void *argument);
void closer_reap(struct closer *closer);
/* Put, and not yet reaped. */
unsigned closer_pending(const struct closer *closer);
/* Calls nobody any more, and waits for no close: what is in the queue is closed by its thread, or by the kernel as
 * the process ends. A thread with nothing to do has ended when it returns. NULL is fine; returns NULL. */
struct closer *closer_free(struct closer *closer);
