/* What it cost to encode a buffer: kept with it, and told in the event ring. */
#pragma once

#include "daemon/core/buffer.h"

/* What it cost to encode the buffer by this codec is the buffer's receipt from now on. */
void receipt_take(struct buffer *buffer, unsigned codec, const struct hbm_receipt *receipt,
                  const struct hbm_quality *quality);
/* buffer.encoded, with the receipt in a line. */
void receipt_tell(const struct buffer *buffer);
