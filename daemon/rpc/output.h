/* Lines on their way to a reader, in the order in which they were queued. */
#pragma once

#include "daemon/rpc/connection.h"

/* Takes text. False if memory is out: then text is freed. */
bool output_queue(struct connection *connection, char *text, size_t size);
/* Writes what the socket takes. 0, or -errno once the peer is gone. */
int output_flush(struct connection *connection);
void output_clear(struct connection *connection);
