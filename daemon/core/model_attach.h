/* Waiting for a model and bringing all of it in: shared by attach and publish. */
#pragma once

#include "daemon/core/verbs.h"

/* Grants a lease on a sealed model once every arena is resident (at once with WIRE_UNLOCKED). Ends the call. */
void model_grant(struct core *core, struct call *call, struct model *model, const struct attach_args *args);
