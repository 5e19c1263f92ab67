/* The OpenRPC 1.3 document of the method table: what rpc.discover answers. */
#pragma once

#include "daemon/rpc/writer.h"

void write_discovery(struct writer *writer, const char *key);
