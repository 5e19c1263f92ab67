/* How fast bytes may go over each link: what the operator allows, so that whoever else uses it is not starved. */
#pragma once

#include "daemon/worker/job.h"

/* Bytes a second by enum job_link; 0: no limit. From now on, for those who wait too. */
void pace_limit(const uint64_t limits[JOB_LINKS]);
/* Its link has a limit now. */
bool pace_is_limited(const struct job *job);
/* Waits until the job's next bytes may go over its link; between chunks, since they go at once then. CANCELLED ends
 * it, without limits as well: it is job_poll() too. */
int pace_wait(struct job *job, uint64_t bytes, struct failure *failure);
