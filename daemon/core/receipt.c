#include "daemon/core/receipt.h"

#include <stdio.h>

#include "daemon/core/core.h"

/* What a lossy codec took away is not back when a lossless one has encoded what was left. */
void receipt_take(struct buffer *buffer, unsigned codec, const struct hbm_receipt *receipt,
                  const struct hbm_quality *quality)
{
    bool whole = !buffer->has_receipt || buffer->quality.lossless;

    buffer->receipt = *receipt;
    buffer->quality = *quality;
    buffer->quality.lossless = whole && hbm_codec_lossless(codec);
    buffer->has_receipt = true;
}

void receipt_tell(const struct buffer *buffer)
{
    const struct packed *packed = buffer_packed(buffer);
    const struct hbm_receipt *receipt = &buffer->receipt;
    const struct hbm_quality *quality = &buffer->quality;
    const struct owner owner = buffer->arena->owner;
    char encoding[64], method[48];

    hbm_encoding_text(packed ? &packed->encoding : &buffer->encoding, encoding, sizeof(encoding));
    hbm_calibration_text(quality->method, quality->parameter, method, sizeof(method));
    event_emit(&buffer->core->events, "buffer.encoded", buffer->id, buffer->name, owner.listener, owner.uid, 0,
               "%s by %s, %llu of %llu bytes, %.2f dB, %.2f of what is not clipped, largest error %g, %llu clipped", encoding,
               method, (unsigned long long)receipt->bytes_after, (unsigned long long)receipt->bytes_before,
               receipt->sqnr_db, quality->sqnr_inlier_db, receipt->max_abs_error, (unsigned long long)quality->clipped);
}
