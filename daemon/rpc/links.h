/* A device's links and its disk, as rows. */
#pragma once

#include "daemon/core/device.h"
#include "daemon/rpc/writer.h"

/* Members "links" and "disk_io" of a device. */
void write_links(struct writer *writer, const struct device *device);
