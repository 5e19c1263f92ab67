/* Everything that can be refused from the packet alone, before a job exists. */
#pragma once

#include "daemon/worker/failure.h"
#include "proto/packet.h"

/* 0, or HBM_E_BAD_REQUEST. */
int check_packet(const struct packet *packet, struct failure *failure);
