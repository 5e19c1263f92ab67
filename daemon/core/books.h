/* The books against the driver: what it says is used of a device, beside what the ledger knows of. The driver is asked
 * by the device's worker, and only when somebody wants to know. */
#pragma once

#include "daemon/core/device.h"

/* Asks anew, unless a question is under way. */
void books_ask(struct core *core, struct device *device);

struct books_wait {
    struct list node;
    void (*ready)(struct books_wait *wait);
};
/* Asks for all devices (NULL) or one, where there is a worker; wait->ready is called when no question is under way any
 * more, possibly at once.
 * The node is unlinked before; who no longer wants it unlinks the node. A worker that hangs is waited for as long as
 * for any job. */
void books_await(struct core *core, struct device *device, struct books_wait *wait);

/* Bytes that the driver counts as used and that are neither extents of ours nor our worker's own. False where the
 * driver has not told, or the device is the machine's memory, of which anybody may take. */
bool books_unaccounted(const struct core *core, const struct device *device, uint64_t *bytes);
