/* From a packet to the handler that asks core. */
#pragma once

#include "daemon/wire/link.h"

void wire_dispatch(struct link *link, struct packet *packet);
