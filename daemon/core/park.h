/* Park: the policy by which buffers are encoded when they leave the device, and decoded when they come back. It is set and
 * taken away without moving anything. */
#pragma once

#include "daemon/core/compress_plan.h"

/* For compress with mode park. NULL with error and detail. */
struct moving *park_buffers(struct core *core, const struct principal *who, const struct selection *selection,
                            const struct compress_args *args, int *error, char *detail);
/* Bytes that it takes, or would take, in host memory or on disk: encoded, as far as it is parked. */
uint64_t park_size(struct arena *arena);
/* Those of the op's buffers that are parked are not any more. */
void unpark_rows(struct core *core, const struct op *op);
