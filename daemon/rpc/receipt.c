/* What a lossy operation cost, and what was observed before one: in rows of operations and with the buffer. */
#include <math.h>

#include "daemon/core/observation.h"
#include "daemon/rpc/rows.h"

static void write_pair(struct writer *writer, const char *key, float lo, float hi)
{
    write_open(writer, key, '[');
    write_real(writer, NULL, (double)lo);
    write_real(writer, NULL, (double)hi);
    write_close(writer, ']');
}

static void write_range(struct writer *writer, const struct hbm_quality *quality)
{
    char method[48];

    hbm_calibration_text(quality->method, quality->parameter, method, sizeof(method));
    if (quality->lo == 0 && quality->hi == 0) { /* a codec without one */
        write_null(writer, "method");
        write_null(writer, "range");
        return;
    }
    write_string(writer, "method", method);
    write_pair(writer, "range", quality->lo, quality->hi);
}

void write_observed(struct writer *writer, const struct buffer *buffer)
{
    const struct hbm_observation *seen = buffer && buffer->observation ? &buffer->observation->seen : NULL;

    if (!seen) {
        write_null(writer, "observed");
        return;
    }
    write_open(writer, "observed", '{');
    write_number(writer, "batches", seen->batches);
    write_number(writer, "elements", seen->elements);
    write_number(writer, "nonfinite", seen->nonfinite);
    write_pair(writer, "range", seen->lo, seen->hi);
    if (seen->imported) {
        write_null(writer, "average");
        write_null(writer, "last");
    } else {
        write_pair(writer, "average", seen->average_lo, seen->average_hi);
        write_pair(writer, "last", seen->last_lo, seen->last_hi);
    }
    write_bool(writer, "imported", seen->imported);
    write_close(writer, '}');
}

void write_quality(struct writer *writer, const struct hbm_receipt *receipt, const struct hbm_quality *quality)
{
    uint64_t bytes = receipt->bytes_before + receipt->bytes_after;
    bool saves = receipt->bytes_before > receipt->bytes_after;

    write_number(writer, "bytes_saved", saves ? receipt->bytes_before - receipt->bytes_after : 0);
    write_real(writer, "sqnr_db", receipt->sqnr_db);
    write_real(writer, "sqnr_inlier_db", quality->sqnr_inlier_db);
    write_real(writer, "max_abs_error", receipt->max_abs_error);
    write_real(writer, "max_rel_error", quality->max_rel_error);
    write_real(writer, "clipped_fraction", receipt->clipped_fraction);
    write_number(writer, "clipped", quality->clipped);
    write_number(writer, "zeroed", quality->zeroed);
    write_number(writer, "nans", quality->nans);
    write_number(writer, "infinities", quality->infinities);
    write_range(writer, quality);
    write_real(writer, "seconds", receipt->seconds);
    write_real(writer, "gb_per_s", receipt->seconds > 0 ? (double)bytes / receipt->seconds / 1e9 : (double)NAN);
}
