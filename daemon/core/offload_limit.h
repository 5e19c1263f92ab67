/* offload_limit: how much of a model may lie on host and disk at once. Sleep, buffers outside models and --force
 * are exempt. */
#pragma once

#include "daemon/core/moving.h"

/* 0, or OFFLOAD_LIMIT with the computed reason in detail. */
int offload_limit_check(struct core *core, const struct arenas *arenas, enum hbm_tier tier, char *detail);
/* The same for a window: of the model's arenas, in order of use, so many in a row stay, wherever it stands. */
int offload_limit_check_window(const struct core *core, const struct model *model, struct arena *const *arenas,
                               uint32_t stay, char *detail);
