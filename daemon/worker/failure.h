/* What went wrong, in the words that the reply carries. The first failure of a job is its cause: later ones are
 * consequences and are dropped. */
#pragma once

#include <stdint.h>

#include "proto/errors.h"
#include "proto/vocab.h"

struct failure {
    int error; /* 0 or a negative hbm_error */
    char detail[HBM_DETAIL_MAX];
};

/* Both return the error recorded. */
__attribute__((format(printf, 3, 4))) int fail(struct failure *failure, int error, const char *format, ...);
/* A system call failed with errno `number`; full disks, exhausted memory and descriptors get their own errors,
 * everything else is `otherwise`. */
int fail_errno(struct failure *failure, int otherwise, const char *call, int number);
