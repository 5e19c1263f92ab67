/* Faults on request, for tests: HBM_WORKER_FAULT=JOB:ACTION[:N], several separated by commas. At the n-th job of
 * that name (default 1): "kill" (SIGKILL), "hang" (for ever), "sticky" (a kernel that faults, after which no call of
 * the process succeeds), or an error: "io", "nomem", "nospace", "cuda", "lost", "checksum". With HBM_WORKER_FAULT_ONCE=PATH each worker started with the same environment looks at PATH
 * first: it is made when the first fault strikes, and while it exists none does. */
#pragma once

#include <stdbool.h>

#include "daemon/worker/failure.h"

void fault_init(void);
/* At the start of each job. 0, or the error that the job shall end with. */
int fault_strike(unsigned opcode, struct failure *failure);
/* A sticky one struck: the process must end after its reply. */
bool fault_spoilt(void);
