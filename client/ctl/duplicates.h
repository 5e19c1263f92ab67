/* What lies in device memory more than once: models of one layout, loose buffers of one shape that different
 * processes hold, and by their hash the same bytes. */
#pragma once

#include "client/ctl/facts.h"
#include "client/ctl/rpc_client.h"

/* buffers, models: rows of hbm.ls and hbm.models. selected: rows of what is meant, NULL: everything; only what it
 * has a part in is looked at. Fills copies, copied_bytes, copied, alike_bytes, alike. An exit status. */
int duplicates_find(struct rpc *rpc, const cJSON *buffers, const cJSON *models, const cJSON *selected,
                    const char *device, struct facts *facts);
