/* Making the arenas and buffers of a model from its table. */
#pragma once

#include "daemon/core/verbs.h"

/* Ends the call with the builder's lease (rw), or refuses. listed: the model takes its name now, so that others wait for
 * it; else it is a replacement and takes it at the commit. */
void model_build(struct core *core, struct call *call, const struct publish_args *args, bool listed);
/* Ledger rows of a sealed model and its arenas. Its buffers have had theirs since they were made. */
void model_remember(struct model *model);
