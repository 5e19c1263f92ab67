/* Encoded copies: new buffers of the caller's, outside any model, one new arena for each arena that something is
 * taken from. */
#pragma once

#include "daemon/core/compress_plan.h"

/* NULL with error and detail. */
struct moving *compress_copy(struct core *core, const struct principal *who, const struct selection *selection,
                             const struct compress_args *args, int *error, char *detail);
