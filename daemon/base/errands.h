/* What may take long, done in turn by one thread beside the loop, which starts with the first errand; what hangs holds up
 * nothing but its own queue. All calls are for one thread; in a forked child none has a meaning. */
#pragma once

#include <stdbool.h>

#include "daemon/base/list.h"

struct errands;

/* The first member of an allocation of its own, which free() ends where nobody is to be told any more. */
struct errand {
    struct list node;
    void (*run)(struct errand *errand);  /* in the thread */
    void (*done)(struct errand *errand); /* from errands_reap; it owns the errand */
};

/* notify is called, in the thread, when something has been done: errands_reap is wanted. NULL: memory is out. */
struct errands *errands_new(void (*notify)(void *context), void *context);
/* Takes the errand; false, and takes nothing, where no thread is to be had. */
bool errands_put(struct errands *errands, struct errand *errand);
void errands_reap(struct errands *errands);
/* Put, and not yet reaped. */
unsigned errands_pending(const struct errands *errands);
/* Calls nobody any more, and waits for no errand: what is in the queue is run by its thread, or ends with the process. A
 * thread with nothing to do has ended when it returns. NULL is fine; returns NULL. */
struct errands *errands_free(struct errands *errands);
