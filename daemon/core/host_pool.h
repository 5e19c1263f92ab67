/* The host pool: host memory of GPUs that its owner has let go of, kept a while for the same owner. Making such
 * memory (pinning it) takes ten times as long as copying into it, and mapping it in the worker twice as long: an
 * engine that sleeps and wakes should pay for both once. What lies here is no extent any more: no id, no row in the
 * ledger, no fd in the store, no charge on the account. It still counts as used in its tier, and gives way to
 * whoever needs room there.
 *
 * It keeps its old bytes: only for extents of which every byte is written before anyone reads. What
 * was exported to a client does not come here, so nobody else writes into it. */
#pragma once

#include "daemon/core/extent.h"

/* Takes an extent's fd, token and room in the tier, if it is one to be kept: then the extent has neither any more.
 */
bool host_pool_put(struct extent *extent);

/* A piece of just that device, account and size, if there is one, or one made ahead (daemon/core/host_ahead.h): its fd and
 * token are the create's, and so is its room. */
bool host_pool_take(struct extent_create *create);
/* Drops pieces of the device, those made ahead first, then the oldest, until `bytes` are free in its host tier; none if all
 * of them would not do. */
void host_pool_make_room(struct core *core, struct device *device, uint64_t bytes);
/* Drops all, on all devices: the machine is short of memory, whatever the tiers say. False if there was none. */
bool host_pool_drop(struct core *core);
/* A piece that serves that owner's next move, and that this visit (of core->visits) has not counted yet. */
bool host_pool_covers(struct device *device, struct owner owner, uint64_t size, uint64_t visit);
/* Drops what has lain here long enough. */
void host_pool_expire(struct timer *timer);
/* As the core goes: closes the fds and tells nobody. */
void host_pool_clear(struct core *core);
