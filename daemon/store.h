/* What outlives this process: fds handed to whoever restarts us (systemd's fd store, or `hbmd --supervise`), which
 * both speak NOTIFY_SOCKET. A stored fd is safe only after a barrier; one barrier serves all fds sent before it. */
#pragma once

#include <uv.h>

#include "daemon/core/core.h"

struct store;

/* max: fds that the keeper takes (FileDescriptorStoreMax). Without a keeper every request is done at once. */
int store_new(uv_loop_t *loop, uint32_t max, struct store **ret);
/* An fd of that name was there when we started. 0 or -ENOMEM: then it would stay there for ever. */
int store_count(struct store *store, const char *name);
/* There is a keeper. */
bool store_keeps(const struct store *store);
/* request->done follows, from the loop or at once; with `refused` if the store is full. */
void store_put(struct store *store, struct store_request *request);
void store_remove(struct store *store, const char *name);
/* The keeper is systemd, whose store ends with the unit: restarted it keeps all, stopped nothing. */
bool store_ends_with_unit(const struct store *store);
/* We are going: requests under way are done now, whether confirmed or not, and so are those to come. */
void store_flush(struct store *store);
/* Memory goes with the loop's close callbacks. Returns NULL. */
struct store *store_free(struct store *store);
