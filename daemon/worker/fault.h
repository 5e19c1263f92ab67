/* Faults on request, for tests: HBM_WORKER_FAULT=JOB:ACTION[:N[@CHUNK]], several separated by commas. At the n-th
 * job of that name (default 1), before it begins or before its CHUNK-th chunk: "kill" (SIGKILL), "hang" (for ever),
 * "hold" (until it is cancelled; a line is added to the file HBM_WORKER_FAULT_HELD first), "sticky" (a kernel that
 * faults, after which no call of the process succeeds), or an error: "io", "nomem", "nospace", "cuda", "lost",
 * "checksum". With HBM_WORKER_FAULT_ONCE=PATH each worker started with the same environment looks at PATH first: it
 * is made when the first fault strikes, and while it exists none does. With HBM_WORKER_FAULT_DEVICE=UUID none strikes in the
 * workers of other devices. */
#pragma once

#include <stdbool.h>

#include "daemon/worker/failure.h"

struct job;

void fault_init(void);
/* At the start of each job. 0, or the error that the job shall end with. */
int fault_strike(struct job *job, struct failure *failure);
/* The same before each of its chunks. Any thread. */
int fault_strike_chunk(struct job *job, struct failure *failure);
/* A sticky one struck: the process must end after its reply. */
bool fault_spoilt(void);
