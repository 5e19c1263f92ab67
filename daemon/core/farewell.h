/* Workers that may keep an extent mapped, by its token, and so have to be told of its end: the job for each is made
 * before it is needed, and goes out with or without memory. */
#pragma once

#include "daemon/core/device.h"

/* That device's worker is told, too. False: memory is out. */
bool farewells_add(struct list *farewells, const struct device *device);
bool farewells_reach(const struct list *farewells, uint32_t device);
/* To every worker that there is. None is left. */
void farewells_say(struct core *core, struct list *farewells, enum job_extent_kind kind, uint64_t token);
/* Nobody is told. */
void farewells_clear(struct list *farewells);
