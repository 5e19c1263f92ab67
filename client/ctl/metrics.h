/* What hbm.status says, as Prometheus reads it. */
#pragma once

#include <cjson/cJSON.h>
#include <stdio.h>

/* NULL: no daemon answered, and that is all that is known. How many series there are depends on devices,
 * listeners and the node's pods, never on buffers, models, clients or users. */
void metrics_write(FILE *out, const cJSON *status);
