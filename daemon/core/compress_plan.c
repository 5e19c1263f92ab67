#include "daemon/core/compress_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"

/* Of codecs that take nothing but groups. */
#define DEFAULT_GROUP 128

/* Of a codec that splits: one scale of all, and a hundredth of the channels apart, where nothing else is said. */
static void split_defaults(const struct buffer *buffer, struct hbm_encoding *encoding)
{
    uint64_t channels = encoding->axis < buffer->rank ? buffer->dims[encoding->axis] : 0;

    if (encoding->granularity == HBM_PER_CHANNEL)
        encoding->granularity = HBM_PER_TENSOR;
    if (!encoding->group)
        encoding->group = channels < 200 ? 1 : channels / 100 < UINT32_MAX ? (uint32_t)(channels / 100) : UINT32_MAX;
}

static struct hbm_encoding with_defaults(const struct buffer *buffer, struct hbm_encoding encoding)
{
    encoding.stored = (uint8_t)hbm_codec_stored_dtype(encoding.codec);
    if (!hbm_codec_scale_bytes(encoding.codec))
        encoding.granularity = HBM_PER_TENSOR;
    if (encoding.granularity == 0xff) {
        bool channels = buffer->rank >= 2 && hbm_codec_takes(encoding.codec, HBM_PER_CHANNEL);
        bool tensor = hbm_codec_takes(encoding.codec, HBM_PER_TENSOR);
        encoding.granularity = channels ? HBM_PER_CHANNEL : tensor ? HBM_PER_TENSOR : HBM_PER_GROUP;
        encoding.axis = 0;
        encoding.group = hbm_codec_splits(encoding.codec) ? 0 : DEFAULT_GROUP;
    }
    if (hbm_codec_splits(encoding.codec)) {
        split_defaults(buffer, &encoding);
        return encoding;
    }
    if (encoding.granularity != HBM_PER_CHANNEL)
        encoding.axis = 0;
    if (encoding.granularity != HBM_PER_GROUP)
        encoding.group = 0;
    return encoding;
}

int encoding_for(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                 const char **why)
{
    uint64_t elements = 0, units;

    *encoding = with_defaults(buffer, *asked);
    hbm_shape_elements(buffer->dims, buffer->rank, &elements);
    if (buffer->parent)
        *why = "it holds the scales or zero points of another buffer";
    else if (buffer->encoding.codec != HBM_CODEC_RAW)
        *why = "it is compressed already: decompress it first";
    else if (!hbm_dtype_codable(buffer->dtype))
        *why = "codecs take F32, F16 and BF16";
    else if (hbm_codec_varies(encoding->codec) && buffer->dtype == HBM_F32)
        *why = "that codec takes BF16 and F16";
    else if (!elements)
        *why = "it has no elements";
    else if (encoding->stored == buffer->dtype)
        *why = "it has that dtype already";
    else
        *why = NULL;
    if (*why)
        return HBM_E_UNSUPPORTED;
    if (!hbm_codec_takes(encoding->codec, encoding->granularity))
        *why = "the codec does not take that granularity";
    else if (!hbm_encoding_units(encoding, buffer->dims, buffer->rank, &units))
        *why = "the granularity does not fit its shape";
    else if (hbm_codec_splits(encoding->codec) && !hbm_split_elements(encoding, buffer->dims, buffer->rank, &elements))
        *why = "it has no such axis, or no more channels along it than are to stay in fp16";
    else
        return 0;
    return HBM_E_INVALID;
}

int park_encoding(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                  const char **why)
{
    int error = encoding_for(buffer, asked, encoding, why);

    if (error || !hbm_codec_splits(encoding->codec))
        return error;
    *why = "that codec is for what stays on the device: park by int8 per channel or per group, or by fp16";
    return HBM_E_UNSUPPORTED;
}

int compress_encoding(const struct buffer *buffer, const struct hbm_encoding *asked, struct hbm_encoding *encoding,
                      const char **why)
{
    int error = encoding_for(buffer, asked, encoding, why);

    if (!error && hbm_codec_varies(encoding->codec)) {
        *why = "that codec is for memory off the device, where nobody maps it: ask for the mode park";
        return HBM_E_INVALID;
    }
    if (error || arena_tier(buffer->arena) == HBM_TIER_DEVICE)
        return error;
    *why = "it is offloaded: restore it first";
    return HBM_E_UNSUPPORTED;
}

/* ---- Plans ---- */

struct choice {
    struct recode *recodes;
    size_t n;
    struct buffer **chosen; /* whose arenas get a plan */
};

static void choice_clear(struct choice *choice)
{
    free(choice->recodes);
    free(choice->chosen);
}

static int out_of_memory(char *detail)
{
    snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
    return HBM_E_NO_MEMORY;
}

static int choose_all(struct moving *moving, const struct principal *who, const struct selection *selection,
                      recode_choose choose, const void *context, struct choice *choice, char *detail)
{
    const char *why = "";
    size_t taken = 0;
    int last = 0;

    choice->recodes = calloc(selection->n + 1, sizeof(*choice->recodes));
    choice->chosen = calloc(selection->n + 1, sizeof(struct buffer *));
    if (!choice->recodes || !choice->chosen)
        return out_of_memory(detail);
    for (size_t i = 0; i < selection->n; i++) {
        struct buffer *buffer = selection->buffers[i];
        struct recode *recode = &choice->recodes[choice->n];

        *recode = (struct recode){.buffer = buffer->id};
        int error = choose(buffer, who, context, recode, &why);
        if (error && !selection->by_pattern) {
            snprintf(detail, HBM_DETAIL_MAX, "%.150s: %s", buffer->name ? buffer->name : "the buffer", why);
            return error;
        }
        moving_row(moving, buffer, who, error ? why : NULL);
        taken += !error;
        if (error)
            last = error;
        else if (recode->encoding.codec != buffer->encoding.codec) /* else only its policy changes */
            choice->chosen[choice->n++] = buffer;
    }
    if (taken)
        return 0;
    snprintf(detail, HBM_DETAIL_MAX, "none of the %zu buffers named can: of the last one, %s", selection->n, why);
    return last;
}

static int plan_all(struct moving *moving, const struct choice *choice, bool only, char *detail)
{
    const struct selection chosen = {.buffers = choice->chosen, .n = choice->n};
    _cleanup_(arenas_clear) struct arenas arenas = {0};
    int error = arenas_of(&chosen, &arenas, detail);

    recodes_sort(choice->recodes, choice->n);
    for (size_t i = 0; i < arenas.n && !error; i++) {
        struct plan *plan = &moving->transition.plans[moving->transition.n++];
        if (plan_recode(plan, arenas.at[i], choice->recodes, choice->n, only))
            error = out_of_memory(detail);
    }
    return error;
}

struct moving *recoding(struct core *core, const struct principal *who, const struct selection *selection,
                        recode_choose choose, const void *context, bool only, int *error, char *detail)
{
    struct moving *moving = moving_new(core, selection->n, selection->n);
    _cleanup_(choice_clear) struct choice choice = {0};

    *error = moving ? choose_all(moving, who, selection, choose, context, &choice, detail) : out_of_memory(detail);
    if (!*error)
        *error = plan_all(moving, &choice, only, detail);
    return *error ? moving_free(moving) : moving;
}
