/* What operators do to buffers and models: each an operation, waited for or not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/calibration.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/encoding.h"
#include "daemon/rpc/op_answer.h"

void handle_HASH(struct request *request, const struct HASH_args *args)
{
    verb_hash(request->core, request_call(request, answer_with_rows), args->sel);
}

static double bound(double value)
{
    return isnan(value) ? 0 : value;
}

void handle_COMPRESS(struct request *request, const struct COMPRESS_args *args)
{
    struct compress_args compress = {.min_sqnr_db = bound(args->min_sqnr), .max_error = bound(args->max_error)};
    bool copy = args->mode && !strcmp(args->mode, "copy"), park = args->mode && !strcmp(args->mode, "park");
    const char *why;

    if (!encoding_parse(args->codec, args->granularity, &compress.encoding, &why))
        return answer_refuse(request, HBM_E_INVALID, "%s", why);
    if (!calibration_parse(args->calibrate, &compress.encoding, &compress.calibration, &why))
        return answer_refuse(request, HBM_E_INVALID, "%s", why);
    if (args->observed && !(compress.calibration.method & HBM_CALIBRATE_OBSERVED))
        return answer_refuse(request, HBM_E_INVALID, "`observed` names the buffer whose observed ranges are used: `calibrate` is to be observed");
    if (args->mode && !copy && !park && strcmp(args->mode, "replace"))
        return answer_refuse(request, HBM_E_INVALID, "`mode` is to be replace, copy or park");
    if (args->as && !copy)
        return answer_refuse(request, HBM_E_INVALID, "`as` names a copy: it needs mode copy");
    if (compress.max_error < 0 || compress.min_sqnr_db < 0)
        return answer_refuse(request, HBM_E_INVALID, "`min_sqnr` and `max_error` may not be negative");
    compress.mode = copy ? WIRE_MODE_COPY : park ? WIRE_MODE_PARK : WIRE_MODE_REPLACE;
    snprintf(compress.sel, sizeof(compress.sel), "%s", args->sel);
    snprintf(compress.as, sizeof(compress.as), "%s", args->as ? args->as : "");
    snprintf(compress.observed, sizeof(compress.observed), "%s", args->observed ? args->observed : "");
    request->async = args->async;
    verb_compress(request->core, request_call(request, answer_with_rows), &compress);
}

void handle_OBSERVE(struct request *request, const struct OBSERVE_args *args)
{
    request->async = args->async;
    if (!args->forget)
        return verb_observe(request->core, request_call(request, answer_with_rows), args->sel,
                            isnan(args->momentum) ? HBM_MOMENTUM : args->momentum);
    if (!isnan(args->momentum))
        return answer_refuse(request, HBM_E_INVALID, "`forget` counts nothing, and takes no `momentum`");
    verb_forget(request->core, request_call(request, answer_with_rows), args->sel);
}

void handle_ADVISE_CODEC(struct request *request, const struct ADVISE_CODEC_args *args)
{
    struct advise_args advise = {
        .min_sqnr_db = isnan(args->min_sqnr) ? ADVICE_MIN_SQNR_DB : args->min_sqnr,
        .max_error = bound(args->max_error),
        .apply = args->apply,
    };
    int codec = args->codec ? hbm_codec_by_name(args->codec) : HBM_CODEC_RAW;

    if (codec < 0 || (args->codec && codec == HBM_CODEC_RAW))
        return answer_refuse(request, HBM_E_INVALID, "`codec` is to be one of " HBM_CODEC_CHOICES);
    if (advise.max_error < 0 || advise.min_sqnr_db < 0)
        return answer_refuse(request, HBM_E_INVALID, "`min_sqnr` and `max_error` may not be negative");
    advise.codec = (unsigned)codec;
    snprintf(advise.sel, sizeof(advise.sel), "%s", args->sel);
    request->async = args->async;
    verb_advise(request->core, request_call(request, answer_with_rows), &advise);
}

void handle_DECOMPRESS(struct request *request, const struct DECOMPRESS_args *args)
{
    request->async = args->async;
    verb_decompress(request->core, request_call(request, answer_with_rows), args->sel);
}

/* False, and the request is answered, unless it is a tier to move away to. */
static bool away_tier(struct request *request, const char *to, enum hbm_tier *tier)
{
    int number = to ? hbm_tier_by_name(to) : HBM_TIER_HOST;

    if (number != HBM_TIER_HOST && number != HBM_TIER_DISK) {
        answer_refuse(request, HBM_E_INVALID, "`to` is to be host or disk");
        return false;
    }
    *tier = (enum hbm_tier)number;
    return true;
}

static bool is_peer(const char *to)
{
    return to && hbm_tier_by_name(to) == HBM_TIER_PEER;
}

void handle_OFFLOAD(struct request *request, const struct OFFLOAD_args *args)
{
    enum hbm_tier tier = HBM_TIER_PEER;

    if (!is_peer(args->to) && !away_tier(request, args->to, &tier))
        return;
    if (args->live && tier != HBM_TIER_HOST)
        return answer_refuse(request, HBM_E_INVALID, "only host memory can be used where it lies: `live` needs `to` host");
    request->async = args->async;
    if (args->live)
        return verb_demote(request->core, request_call(request, answer_with_rows), args->sel, args->force);
    verb_offload(request->core, request_call(request, answer_with_rows), args->sel, tier, args->force);
}

void handle_RESTORE(struct request *request, const struct RESTORE_args *args)
{
    request->async = args->async;
    verb_restore(request->core, request_call(request, answer_with_rows), args->sel);
}

void handle_PREFETCH(struct request *request, const struct PREFETCH_args *args)
{
    request->async = args->async;
    verb_prefetch(request->core, request_call(request, answer_with_rows), args->sel);
}

void handle_SLEEP(struct request *request, const struct SLEEP_args *args)
{
    enum hbm_tier tier;

    struct parking park = {.min_sqnr_db = bound(args->min_sqnr), .max_error = bound(args->max_error)};
    const char *why;

    if (!away_tier(request, args->to, &tier))
        return;
    if (!args->codec && (args->granularity || park.min_sqnr_db || park.max_error))
        return answer_refuse(request, HBM_E_INVALID, "`granularity`, `min_sqnr` and `max_error` go with a `codec`");
    if (args->codec && !encoding_parse(args->codec, args->granularity, &park.encoding, &why))
        return answer_refuse(request, HBM_E_INVALID, "%s", why);
    if (park.max_error < 0 || park.min_sqnr_db < 0)
        return answer_refuse(request, HBM_E_INVALID, "`min_sqnr` and `max_error` may not be negative");
    request->async = args->async;
    verb_sleep(request->core, request_call(request, answer_with_rows), args->model, tier, args->codec ? &park : NULL);
}

void handle_WAKE(struct request *request, const struct WAKE_args *args)
{
    request->async = args->async;
    verb_wake(request->core, request_call(request, answer_with_rows), args->model);
}

void handle_FREE(struct request *request, const struct FREE_args *args)
{
    verb_free_sel(request->core, request_call(request, answer_with_rows), args->sel);
}

void handle_DRAIN(struct request *request, const struct DRAIN_args *args)
{
    verb_drain(request->core, request_call(request, answer_with_rows), args->device);
}

/* NULL, and the request is answered, if there is no such op or it is another's: in the same words. */
static struct op *op_of(struct request *request, uint64_t id)
{
    struct op *op = op_get(request->core, id);

    if (op && op_visible(op, &request->connection->who))
        return op;
    answer_refuse(request, HBM_E_NOT_FOUND, "operation 0x%016llx", (unsigned long long)id);
    return NULL;
}

void handle_WAIT(struct request *request, const struct WAIT_args *args)
{
    if (args->timeout_seconds < 0)
        return answer_refuse(request, HBM_E_INVALID, "`timeout_seconds` may not be negative");
    struct op *op = op_of(request, args->op);
    if (op)
        answer_with_op(request, op, args->timeout_seconds);
}

static void cancel_taken(struct call *call, int error, void *result)
{
    struct request *request = request_returned(call);

    (void)result;
    if (!request)
        return;
    if (error)
        return answer_error(request, error, call->detail, 0);
    struct op *op = op_of(request, request->about);
    if (op)
        answer_with_op(request, op, (double)NAN);
}

void handle_CANCEL(struct request *request, const struct CANCEL_args *args)
{
    request->about = args->op;
    if (op_of(request, args->op))
        verb_op_cancel(request->core, request_call(request, cancel_taken), args->op);
}
