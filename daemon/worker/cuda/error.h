/* What an error of the driver or the runtime library means to the owner, in one table. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "daemon/worker/failure.h"

/* 0, or the hbm_error that belongs to the result, recorded with call, driver's name and cause. */
int driver_check(struct failure *failure, const char *call, CUresult result);
/* For a call that fails when its argument is wrong: whatever the driver calls that, this process is not spoilt. */
int driver_check_argument(struct failure *failure, const char *call, CUresult result, const char *why);
int runtime_check(struct failure *failure, const char *call, cudaError_t result);
/* For calls that give back something: there is nobody to tell, but a sticky error must not pass unseen. */
void runtime_note(const char *call, cudaError_t result);
void driver_note(const char *call, CUresult result);
