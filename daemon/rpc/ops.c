/* Operations as rows, and hbm.ops. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

static double seconds_of(const struct op *op)
{
    uint64_t until = op_has_ended(op) ? op->ended_ms : core_now(op->core);

    return op->worked_ns && op_has_ended(op) ? (double)op->worked_ns / 1e9 : (double)(until - op->started_ms) / 1e3;
}

/* NAN, written as null, where nothing was measured. */
static double rate(uint64_t bytes, double seconds)
{
    return bytes && seconds > 0 ? (double)bytes / seconds / 1e9 : (double)NAN;
}

static void write_code(struct writer *writer, const struct op *op, const struct op_row *row)
{
    /* A buffer keeps its receipt when it is decoded: of an earlier op then. */
    bool measured = row->has_receipt && !strcmp(op->verb, "compress");
    char encoding[64];

    hbm_encoding_text(&row->encoding, encoding, sizeof(encoding));
    write_string(writer, "encoding", encoding);
    if (row->park.codec != HBM_CODEC_RAW) {
        write_string(writer, "tier", hbm_tier_name(row->tier));
        write_park(writer, "parks_as", &row->park);
        return;
    }
    write_number(writer, "bytes_before", row->bytes_before);
    write_number(writer, "bytes_after", row->bytes_after);
    if (measured) {
        write_quality(writer, &row->receipt, &row->quality);
    } else {
        write_real(writer, "seconds", seconds_of(op));
        write_real(writer, "gb_per_s", rate(op->bytes_done, (double)op->worked_ns / 1e9));
    }
}

void write_park(struct writer *writer, const char *key, const struct hbm_encoding *encoding)
{
    char text[64];

    hbm_encoding_text(encoding, text, sizeof(text));
    write_string(writer, key, encoding->codec == HBM_CODEC_RAW ? NULL : text);
}

static void write_move(struct writer *writer, const struct op *op, const struct op_row *row)
{
    write_string(writer, "tier", hbm_tier_name(row->tier));
    if (row->peer)
        write_string(writer, "peer", row->peer->uuid);
    write_number(writer, "size", row->size);
    write_number(writer, "stored_size", row->stored);
    write_park(writer, "parked", &row->packed);
    write_real(writer, "seconds", seconds_of(op));
    write_real(writer, "gb_per_s", rate(op->bytes_done, (double)op->worked_ns / 1e9));
}

static void write_hash(struct writer *writer, const struct op *op, const struct op_row *row)
{
    (void)op;
    write_text(writer, "hash", "%016" PRIx64, row->hash);
    write_number(writer, "size", row->size);
}

static void write_size(struct writer *writer, const struct op *op, const struct op_row *row)
{
    (void)op;
    write_number(writer, "size", row->size);
}

/* As it is by now. */
static void write_observation(struct writer *writer, const struct op *op, const struct op_row *row)
{
    write_observed(writer, buffer_get(op->core, row->buffer));
}

static const struct {
    const char *verb;
    void (*write)(struct writer *writer, const struct op *op, const struct op_row *row);
} shapes[] = {
    {"advise-codec", write_advice},
    {"compress", write_code},
    {"decompress", write_code},
    {"hash", write_hash},
    {"observe", write_observation},
    {"free", write_size},
};

static void write_op_row(struct writer *writer, const struct op *op, const struct op_row *row)
{
    void (*write)(struct writer * writer, const struct op *op, const struct op_row *row) = write_move;

    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        if (!strcmp(shapes[i].verb, op->verb))
            write = shapes[i].write;
    write_open(writer, NULL, '{');
    write_id(writer, "id", row->buffer);
    write_string(writer, "name", *row->name ? row->name : NULL);
    if (row->error) {
        write_string(writer, "error", hbm_error_name(row->error));
        write_string(writer, "detail", row->skipped ? row->skipped : hbm_error_what(row->error));
    } else if (row->skipped) {
        write_string(writer, "skipped", row->skipped);
    } else {
        write(writer, op, row);
    }
    write_close(writer, '}');
}

void write_op_rows(struct writer *writer, const char *key, const struct op *op)
{
    write_open(writer, key, '[');
    for (size_t i = 0; i < op->n_rows; i++)
        write_op_row(writer, op, &op->rows[i]);
    write_close(writer, ']');
}

/* Of one under way: as fast as it has been, waiting included, and how long it takes at that rate. */
static void write_progress(struct writer *writer, const struct op *op)
{
    bool ended = op_has_ended(op);
    double seconds = seconds_of(op);
    uint64_t left = op->bytes_total > op->bytes_done ? op->bytes_total - op->bytes_done : 0;

    write_number(writer, "bytes_done", op_progress(op));
    write_number(writer, "bytes_total", op->bytes_total);
    if (op->links)
        write_number(writer, "links", op->links);
    write_real(writer, "seconds", seconds);
    write_real(writer, "gb_per_s", rate(op->bytes_done, ended ? (double)op->worked_ns / 1e9 : seconds));
    write_real(writer, "seconds_left",
               !ended && op->bytes_done ? (double)left * seconds / (double)op->bytes_done : (double)NAN);
}

static const char *state_text(enum wire_op_state state)
{
    static const char *const names[] = {"queued", "running", "done", "failed", "cancelled"};
    return names[state];
}

void write_op(struct writer *writer, const char *key, const struct op *op, bool rows)
{
    write_open(writer, key, '{');
    write_id(writer, "op", op->id);
    write_string(writer, "verb", op->verb);
    write_string(writer, "state", state_text(op->state));
    write_string(writer, "error", op->error ? hbm_error_name(op->error) : NULL);
    write_string(writer, "detail", *op->detail ? op->detail : NULL);
    write_progress(writer, op);
    write_number(writer, "owner", op->who.owner.uid);
    write_number(writer, "n_rows", op->n_rows);
    if (rows)
        write_op_rows(writer, "rows", op);
    write_close(writer, '}');
}

/* Every op, without the rows: those of a large model's ops would make each look at the list megabytes long. */
void handle_OPS(struct request *request, const struct OPS_args *args)
{
    struct writer *writer = answer_begin(request);

    (void)args;
    write_open(writer, "result", '[');
    list_for_each (node, &request->core->ops) {
        const struct op *op = list_entry(node, struct op, node);
        if (op_visible(op, &request->connection->who))
            write_op(writer, NULL, op, false);
    }
    write_close(writer, ']');
    answer_end(request);
}
