/* A large copy between host memory and a device, over more links than the device's own: idle neighbours that reach its memory copy
 * a range each, over theirs. What a neighbour fails to copy goes over the own link. To whoever waits for it it is one job: all of
 * it or an error, with the checksum of the whole. */
#pragma once

#include "daemon/core/transition.h"

#define LINKS_MAX 8
#define LINKS_SHARE 1024u   /* struct device's link_share of one that is as fast as the own link */
#define LINKS_SHARE_MIN 64u
#define LINKS_GRAIN ((uint64_t)1 << 20)    /* of the checksum (worker/checksum.h): parts begin with one */
#define LINKS_PASSING ((uint64_t)32 << 20) /* what a neighbour's worker takes of its device's memory meanwhile */

/* How many the copy of such a plan would go over now: 1 is its own. Its source is known, its target need not be made. */
unsigned links_for(const struct core *core, const struct plan *plan);
/* Starts track->job's copy over them, and calls done with that job, once, when all of it has ended. False: it is to be submitted as
 * it is. */
bool links_start(struct track *track, void (*done)(struct job *job));
/* done follows. */
void links_cancel(struct track *track);
/* As the core goes, and the workers with it: done is not called. NULL is fine; returns NULL. */
struct links *links_free(struct links *links);
