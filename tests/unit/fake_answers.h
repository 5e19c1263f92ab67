/* What the fake daemon says to whom it is connected to, if it behaves. */
#pragma once

#include <stdint.h>

#include "proto/packet.h"

void fake_answer(struct packet *request);
void fake_refuse(const struct packet_header *request, int error, const char *detail);
void fake_event(uint32_t opcode, const void *body);

/* Other memory with the bytes of the arena's. */
int fake_copy(unsigned arena);
