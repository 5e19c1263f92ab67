/* What was tried on a buffer, and what is advised. */
#include <math.h>

#include "daemon/rpc/encoding.h"
#include "daemon/rpc/rows.h"

static void write_try(struct writer *writer, const struct advised *row, const struct hbm_encoding *encoding,
                      const struct tried *tried)
{
    uint64_t moved = row->bytes_before + tried->bytes_after;
    char text[64];

    write_open(writer, NULL, '{');
    hbm_encoding_text(encoding, text, sizeof(text));
    write_string(writer, "encoding", text);
    write_string(writer, "codec", hbm_codec_name(encoding->codec));
    write_string(writer, "granularity", granularity_text(encoding, text, sizeof(text)));
    write_number(writer, "bytes_after", tried->bytes_after);
    write_real(writer, "sqnr_db", tried->sqnr_db);
    write_real(writer, "max_abs_error", tried->max_abs_error);
    write_real(writer, "clipped_fraction", tried->clipped_fraction);
    write_real(writer, "zeroed_fraction", tried->zeroed_fraction);
    write_real(writer, "seconds", tried->seconds);
    write_real(writer, "gb_per_s", tried->seconds > 0 ? (double)moved / tried->seconds / 1e9 : (double)NAN);
    write_bool(writer, "holds", tried->holds);
    write_close(writer, '}');
}

void write_advice(struct writer *writer, const struct op *op, const struct op_row *op_row)
{
    const struct advice *advice = op->advice;
    size_t at = (size_t)(op_row - op->rows);
    const struct advised *row = &advice->rows[at];
    const struct advised_group *group = &advice->groups[row->group];
    static const struct hbm_encoding none;
    char text[64];

    write_string(writer, "group", *group->name ? group->name : NULL);
    write_number(writer, "bytes_before", row->bytes_before);
    write_string(writer, "left", row->left);
    write_open(writer, "tries", '[');
    for (unsigned i = 0; i < advice->n_candidates && !writer_has_failed(writer); i++)
        if (advice_tried(advice, at, i)->done)
            write_try(writer, row, &advice->candidates[i], advice_tried(advice, at, i));
    write_close(writer, ']');
    write_park(writer, "first", row->left ? &none : &group->first);
    write_park(writer, "advice", row->left ? &none : &group->take);
    write_string(writer, "why", row->left ? row->left : group->why);
    hbm_encoding_text(&op_row->encoding, text, sizeof(text));
    write_string(writer, "encoding", text);
}
