/* What a lossy operation cost, for the event ring. */
#pragma once

#include "daemon/core/buffer.h"

/* buffer.encoded, with the receipt in a line. */
void receipt_tell(const struct buffer *buffer);
