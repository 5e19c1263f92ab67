/* The worker of a fuzzed core, as far as the core can tell. It does nothing, but looks at what is asked: a job that
 * a real one would refuse, or that reaches beyond its extents, is a bug of the core's. */
#pragma once

#include "daemon/job/job.h"

struct world;

/* A ledger that lies makes the core ask for the impossible: then such jobs just fail. */
extern bool worker_is_lenient;

/* The outcome of a job, unless it has failed already. */
void worker_runs(struct world *world, struct job *job);
