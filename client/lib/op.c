/* Operations in the daemon: started by one message each, then waited for. */
#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/lease.h"
#include "proto/memfd.h"

_Static_assert(sizeof(struct hbm_range) == sizeof(struct wire_range) &&
                   offsetof(struct hbm_range, bytes) == offsetof(struct wire_range, bytes),
               "ranges are those of the wire");

_Static_assert(sizeof(struct hbm_observation) == sizeof(struct wire_observed_reply), "what was observed is the answer's fields");

/* An op ends with the life that it was started in; how it ended then, nobody knows. */
static int op_lost(struct hbm_op_status *status)
{
    if (status)
        *status = (struct hbm_op_status){.done = 1, .error = HBM_E_RETRY};
    return conn_retry();
}

static int wait_for(hbm_session *session, uint64_t op, uint64_t life, uint32_t timeout_ms,
                    struct hbm_op_status *status)
{
    struct wire_op_wait_request request = {.op = op, .timeout_ms = timeout_ms};
    struct wire_op_wait_reply reply;
    int error = conn_call_in(&session->conn, life, WIRE_OP_WAIT, &request, &reply);

    if (error > 0)
        return op_lost(status);
    if (error)
        return error;
    if (reply.state == WIRE_OP_CANCELLED)
        error = HBM_E_CANCELLED;
    else if (reply.state == WIRE_OP_FAILED)
        error = reply.error < 0 ? reply.error : HBM_E_INTERNAL;
    bool done = error || reply.state == WIRE_OP_DONE;
    if (status)
        *status = (struct hbm_op_status){
            .done = done,
            .error = error,
            .bytes_done = reply.bytes_done,
            .bytes_total = reply.bytes_total,
            .receipt = reply.receipt,
        };
    if (!done)
        return set_error(HBM_E_TIMEOUT, "%llu of %llu bytes are done", (unsigned long long)reply.bytes_done,
                         (unsigned long long)reply.bytes_total);
    return error ? set_error(error, "%.*s", (int)sizeof(reply.detail), reply.detail) : 0;
}

static void list_op(hbm_op *op)
{
    pthread_mutex_lock(&op->session->mutex);
    node_append(&op->session->ops, &op->node);
    pthread_mutex_unlock(&op->session->mutex);
}

/* Sends a request whose reply is an op, then waits for it or makes a handle. Every such reply is one uint64_t. */
static int start(hbm_session *session, uint32_t opcode, const void *request, const int *fds, unsigned n_fds,
                 struct hbm_receipt *receipt, hbm_op **ret)
{
    struct hbm_op_status status = {0};
    uint64_t id;
    CONN_FDS none = {0};
    hbm_op *op = NULL;

    if (ret) {
        *ret = NULL;
        op = calloc(1, sizeof(*op));
        if (!op)
            return set_system_error("malloc", ENOMEM);
    }
    int error = conn_call(&session->conn, opcode, request, &id, fds, n_fds, &none);
    if (error) {
        free(op);
        return error;
    }
    if (op) {
        op->session = session;
        op->id = id;
        op->life = none.life;
        list_op(op);
        *ret = op;
        return 0;
    }
    error = wait_for(session, id, none.life, HBM_FOREVER, &status);
    if (receipt)
        *receipt = status.receipt;
    return error;
}

static int check_selector(hbm_session *session, const char *sel, char *into)
{
    int error = session_check(session);

    if (!error)
        error = check_text("the selector", sel, HBM_NAME_MAX);
    if (!error)
        strcpy(into, sel);
    return error;
}

static int transfer(hbm_session *session, int fd, const struct hbm_range *ranges, unsigned n, uint32_t write,
                    hbm_op **op)
{
    struct wire_transfer_request request = {.n_ranges = n, .write = write};
    int error = session_check(session);

    if (error)
        return error;
    if (fd < 0 || !ranges || n == 0)
        return set_error(HBM_E_INVALID, "%s", fd < 0 ? "fd is negative" : "there are no ranges");
    int CLOSE_FD list = memfd_sealed("hbm-ranges", ranges, n * sizeof(*ranges));
    if (list < 0)
        return set_system_error("memfd of the ranges", -list);
    error = start(session, WIRE_TRANSFER, &request, (int[]){fd, list}, 2, NULL, op);
    if (error == HBM_E_NOT_FOUND && model_was_discarded(session, ranges[0].buffer))
        return model_set_discarded();
    return error;
}

int hbm_fill(hbm_session *session, int fd, const struct hbm_range *ranges, unsigned n, hbm_op **op)
{
    return transfer(session, fd, ranges, n, 0, op);
}

int hbm_write_out(hbm_session *session, int fd, const struct hbm_range *ranges, unsigned n, hbm_op **op)
{
    return transfer(session, fd, ranges, n, 1, op);
}

/* NULL leaves it empty. */
static int take_text(const char *what, const char *text, char *into, size_t size)
{
    int error = text ? check_text(what, text, size) : 0;

    if (text && !error)
        strcpy(into, text);
    return error;
}

int hbm_compress(hbm_session *session, const struct hbm_compress *spec, struct hbm_receipt *receipt, hbm_op **op)
{
    struct wire_compress_by_request request = {0};

    if (!spec)
        return set_error(HBM_E_INVALID, "spec is NULL");
    int error = check_selector(session, spec->sel, request.sel);
    if (!error)
        error = take_text("as", spec->as, request.as, sizeof(request.as));
    if (!error)
        error = take_text("calibrate", spec->calibrate, request.calibrate, sizeof(request.calibrate));
    if (!error)
        error = take_text("observed", spec->observed, request.observed, sizeof(request.observed));
    if (error)
        return error;
    if (!hbm_codec_name(spec->codec) || spec->granularity > HBM_PER_GROUP || spec->axis >= HBM_RANK_MAX)
        return set_error(HBM_E_INVALID, "codec, granularity or axis is none");
    request.encoding = (struct hbm_encoding){
        .codec = (uint8_t)spec->codec,
        .granularity = (uint8_t)spec->granularity,
        .axis = (uint8_t)spec->axis,
        .stored = (uint8_t)hbm_codec_stored_dtype(spec->codec),
        .group = spec->group,
    };
    if (spec->copy && spec->park)
        return set_error(HBM_E_INVALID, "a compression makes a copy or parks, not both");
    request.mode = spec->copy ? WIRE_MODE_COPY : spec->park ? WIRE_MODE_PARK : WIRE_MODE_REPLACE;
    request.min_sqnr_db = spec->min_sqnr_db;
    request.max_error = spec->max_error;
    /* Older daemons know the first alone, which the other begins as. */
    bool plain = !spec->calibrate && !spec->observed;
    return start(session, plain ? WIRE_COMPRESS : WIRE_COMPRESS_BY, &request, NULL, 0, receipt, op);
}

int hbm_decompress(hbm_session *session, const char *sel, hbm_op **op)
{
    struct wire_decompress_request request = {0};
    int error = check_selector(session, sel, request.sel);

    return error ? error : start(session, WIRE_DECOMPRESS, &request, NULL, 0, NULL, op);
}

int hbm_observe(hbm_session *session, const char *sel, double momentum, unsigned flags, hbm_op **op)
{
    struct wire_observe_batch_request request = {.momentum = momentum, .flags = flags};
    int error = check_selector(session, sel, request.sel);

    if (!error && flags & ~(unsigned)HBM_FORGET)
        error = set_error(HBM_E_INVALID, "flags has bits that hbm_observe does not take (0x%x)", flags);
    if (!error && !(flags & HBM_FORGET) && !(momentum >= 0 && momentum < 1))
        error = set_error(HBM_E_INVALID, "momentum is not 0 or more and less than 1");
    return error ? error : start(session, WIRE_OBSERVE_BATCH, &request, NULL, 0, NULL, op);
}

int hbm_observed(hbm_session *session, const char *name, struct hbm_observation *ret)
{
    struct wire_observed_request request = {0};
    struct wire_observed_reply reply;

    if (!ret)
        return set_error(HBM_E_INVALID, "ret is NULL");
    int error = session_check(session);
    if (!error)
        error = check_text("the name", name, HBM_NAME_MAX);
    if (error)
        return error;
    strcpy(request.name, name);
    error = conn_call(&session->conn, WIRE_OBSERVED, &request, &reply, NULL, 0, NULL);
    if (!error)
        memcpy(ret, &reply, sizeof(*ret));
    return error;
}

int hbm_offload(hbm_session *session, const char *sel, unsigned tier, unsigned flags, hbm_op **op)
{
    struct wire_offload_request request = {.tier = tier, .flags = flags};
    int error = check_selector(session, sel, request.sel);

    if (!error && (tier == HBM_TIER_DEVICE || tier >= HBM_PLACES))
        error = set_error(HBM_E_INVALID, "tier is none of HBM_TIER_HOST, HBM_TIER_DISK and HBM_TIER_PEER");
    if (!error && flags & ~(unsigned)(HBM_FORCE | HBM_LIVE))
        error = set_error(HBM_E_INVALID, "flags has bits that hbm_offload does not take (0x%x)", flags);
    if (!error && (flags & HBM_LIVE) && tier != HBM_TIER_HOST)
        error = set_error(HBM_E_INVALID, "HBM_LIVE needs HBM_TIER_HOST: only host memory can be used where it lies");
    return error ? error : start(session, WIRE_OFFLOAD, &request, NULL, 0, NULL, op);
}

int hbm_restore(hbm_session *session, const char *sel, hbm_op **op)
{
    struct wire_restore_request request = {0};
    int error = check_selector(session, sel, request.sel);

    return error ? error : start(session, WIRE_RESTORE, &request, NULL, 0, NULL, op);
}

int hbm_prefetch(hbm_session *session, const char *sel, hbm_op **op)
{
    struct wire_prefetch_request request = {0};
    int error = check_selector(session, sel, request.sel);

    return error ? error : start(session, WIRE_PREFETCH, &request, NULL, 0, NULL, op);
}

static int op_check(const hbm_op *op)
{
    return op ? session_check(op->session) : set_error(HBM_E_INVALID, "the op is NULL");
}

int hbm_op_wait(hbm_op *op, uint32_t timeout_ms, struct hbm_op_status *status)
{
    int error = op_check(op);

    return error ? error : wait_for(op->session, op->id, op->life, timeout_ms, status);
}

int hbm_op_cancel(hbm_op *op)
{
    struct wire_op_cancel_reply reply;
    int error = op_check(op);

    if (error)
        return error;
    error = conn_call_in(&op->session->conn, op->life, WIRE_OP_CANCEL,
                         &(struct wire_op_cancel_request){.op = op->id}, &reply);
    return error > 0 ? conn_retry() : error;
}

uint64_t hbm_op_id(const hbm_op *op)
{
    return op->id;
}

hbm_op *hbm_op_free(hbm_op *op)
{
    if (op)
        session_remove(op->session, &op->node);
    free(op);
    return NULL;
}
