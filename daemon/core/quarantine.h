/* Dead clients until nothing of theirs can run any more: the pidfd has fired, and NVML lists the pid no longer (a dead
 * process's kernels go on writing for tens of milliseconds, for seconds if it had forked). A worker is asked every 2 ms
 * while anything waits; on a machine without GPUs the pidfd alone decides. */
#pragma once

#include "daemon/core/session.h"

/* The session enters; if it maps nothing, or is quiescent already, it is freed at the next tick. */
void quarantine_enter(struct session *session);
/* Its pidfd fired, or it is to be looked at anyway. */
void quarantine_process_ended(struct session *session);
void quarantine_tick(struct timer *timer);
