/* Asks which container and pod a session's process is in, beside the loop: the kernel answers when nobody moves cgroups about. */
#pragma once

#include <uv.h>

#include "daemon/core/core.h"

struct origins;

int origins_new(uv_loop_t *loop, struct core *core, struct origins **ret);
/* session->origin follows, unless its process ends first. */
void origins_ask(struct origins *origins, uint64_t session, int32_t pid);
/* Nothing follows any more. The handle goes with the loop's close callbacks. */
void origins_stop(struct origins *origins);
/* After it was stopped and the loop has turned. NULL is fine; returns NULL. */
struct origins *origins_free(struct origins *origins);
