/* Compress: buffers take an encoded form. In place of the raw one (their arenas are rewritten, with what was not
 * named copied along, so that what is saved comes free), as copies beside it (compress_copy.c), or whenever they leave the
 * device (park.c). */
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/calibration.h"
#include "daemon/core/compress_copy.h"
#include "daemon/core/park.h"

int compress_choose(const struct buffer *buffer, const struct principal *who, const void *context,
                    struct recode *recode, const char **why)
{
    const struct compress_args *args = context;
    char name[HBM_NAME_MAX];

    recode->min_sqnr_db = args->min_sqnr_db;
    recode->max_error = args->max_error;
    if (!arena_may_write(buffer->arena, who)) {
        *why = "it is another owner's, and not yours to write";
        return HBM_E_DENIED;
    }
    int error = compress_encoding(buffer, &args->encoding, &recode->encoding, why);
    if (!error)
        error = calibration_for(buffer, who, args, recode, why);
    /* Looked at before the work is done; taken when it is. */
    for (unsigned i = 0; !error && buffer->name && i < PARTS; i++) {
        if (!part_has(i, recode->encoding.codec))
            continue;
        if (!part_name(i, buffer->name, name, sizeof(name))) {
            *why = "its name is too long for that of its scales to follow from it";
            return HBM_E_INVALID;
        }
        if (names_find(&buffer->core->buffer_names, owner_scope(buffer->arena->owner, buffer->arena->shared), name)) {
            *why = i == PART_SCALE  ? "another buffer has the name that its scales would get (NAME.scale)"
                   : i == PART_ZERO ? "another buffer has the name that its zero points would get (NAME.zero)"
                                    : "another buffer has the name that what stays in fp16 would get (NAME.channels, NAME.outliers)";
            return HBM_E_EXISTS;
        }
    }
    return error;
}

static int check_args(const struct compress_args *args, char *detail)
{
    unsigned granularity = args->encoding.granularity;

    if (args->encoding.codec == HBM_CODEC_RAW || !hbm_codec_name(args->encoding.codec))
        snprintf(detail, HBM_DETAIL_MAX, "the codec is one of " HBM_CODEC_CHOICES " (the way back is decompress)");
    else if (granularity > HBM_PER_GROUP && granularity != 0xff)
        snprintf(detail, HBM_DETAIL_MAX, "the granularity is tensor, channel or group");
    else if (args->calibration.method != HBM_CALIBRATE_MINMAX && args->mode == WIRE_MODE_PARK)
        snprintf(detail, HBM_DETAIL_MAX, "what parks is encoded whenever it leaves, and a range that clips would take more from it each "
                                         "time: park by minmax");
    else if (args->mode > WIRE_MODE_PARK)
        snprintf(detail, HBM_DETAIL_MAX, "the mode is replace, copy or park");
    else if (args->as[0] && args->mode != WIRE_MODE_COPY)
        snprintf(detail, HBM_DETAIL_MAX, "only a copy gets a name of its own");
    else
        return 0;
    return HBM_E_INVALID;
}

void verb_compress(struct core *core, struct call *call, const struct compress_args *args)
{
    _cleanup_(selection_clear) struct selection selection = {0};
    char detail[HBM_DETAIL_MAX] = "";
    struct moving *moving = NULL;
    int error = check_args(args, detail);

    if (!error)
        error = select_buffers(core, &call->who, args->sel, &selection, detail);
    if (!error && args->mode == WIRE_MODE_COPY)
        moving = compress_copy(core, &call->who, &selection, args, &error, detail);
    else if (!error && args->mode == WIRE_MODE_PARK)
        moving = park_buffers(core, &call->who, &selection, args, &error, detail);
    else if (!error)
        moving = recoding(core, &call->who, &selection, compress_choose, args, false, &error, detail);
    if (error)
        call_refuse(call, error, "%s", detail);
    else
        moving_answer(moving, "compress", call);
}
