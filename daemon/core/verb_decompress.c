/* Decompress: encoded buffers get their logical dtype back, and parked ones lose their policy (those that lie encoded now
 * are decoded when they come back). What a lossy codec took away stays away. */
#include "daemon/base/cleanup.h"
#include "daemon/core/park.h"

static int choose_raw(const struct buffer *buffer, const struct principal *who, const void *context,
                      struct recode *recode, const char **why)
{
    bool parked = buffer->park.encoding.codec != HBM_CODEC_RAW;

    (void)context;
    recode->encoding = (struct hbm_encoding){.codec = HBM_CODEC_RAW, .stored = (uint8_t)buffer->dtype};
    if (buffer->parent)
        *why = "it holds the scales or zero points of another buffer";
    else if (buffer->encoding.codec == HBM_CODEC_RAW && !parked)
        *why = "it is not compressed";
    else if (buffer_lacks_scales(buffer))
        *why = "it is a private copy, of the elements without their scales: decompress the original";
    else if (arena_tier(buffer->arena) != HBM_TIER_DEVICE && !parked)
        *why = "it is offloaded: restore it first";
    else
        *why = NULL;
    if (*why)
        return HBM_E_UNSUPPORTED;
    if (!arena_may_write(buffer->arena, who)) {
        *why = "it is another owner's, and not yours to write";
        return HBM_E_DENIED;
    }
    if (buffer_parts_are_leased(buffer)) {
        *why = "its scales or zero points are attached by themselves, and would go";
        return HBM_E_BUSY;
    }
    return 0;
}

static void fill_rows(struct moving *moving, struct op *op)
{
    unpark_rows(moving->core, op);
    moving_fill_rows(op);
}

void verb_decompress(struct core *core, struct call *call, const char *sel)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "";
    struct moving *moving = NULL;
    int error = select_buffers(core, &call->who, sel, &selection, detail);

    if (!error)
        moving = recoding(core, &call->who, &selection, choose_raw, NULL, false, &error, detail);
    if (moving)
        moving->fill = fill_rows;
    if (error)
        call_refuse(call, error, "%s", detail);
    else
        moving_answer(moving, "decompress", call);
}
