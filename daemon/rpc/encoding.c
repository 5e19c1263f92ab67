#include "daemon/rpc/encoding.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static bool refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return false;
}

/* Decimal digits and nothing else before the end or that character, up to `most`. */
static bool parse_count(const char *text, char end, uint32_t most, uint32_t *count)
{
    uint64_t value = 0;

    if (!*text || *text == end)
        return false;
    for (; *text && *text != end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
        if (value > most)
            return false;
    }
    *count = (uint32_t)value;
    return true;
}

static bool granularity_parse(const char *text, struct hbm_encoding *encoding, const char **why)
{
    uint32_t axis = 0;

    if (!strcmp(text, "tensor")) {
        encoding->granularity = HBM_PER_TENSOR;
        return true;
    }
    if (!strcmp(text, "channel") || !strncmp(text, "channel:", 8)) {
        const char *kept = text[7] ? strchr(text + 8, ':') : NULL;
        if (kept && (!hbm_codec_splits(encoding->codec) || !parse_count(kept + 1, '\0', INT32_MAX, &encoding->group) || !encoding->group))
            return refuse(why, "the K of `channel:AXIS:K` is to be how many channels int8-split keeps in fp16, from 1; "
                               "other codecs take none");
        if (text[7] && !parse_count(text + 8, ':', HBM_RANK_MAX - 1, &axis))
            return refuse(why, "the axis of `channel:AXIS` is to be 0 to 7");
        encoding->granularity = HBM_PER_CHANNEL;
        encoding->axis = (uint8_t)axis;
        return true;
    }
    if (!strncmp(text, "group:", 6)) {
        if (!parse_count(text + 6, '\0', UINT32_MAX, &encoding->group) || !encoding->group)
            return refuse(why, "the N of `group:N` is to be a count of elements from 1");
        encoding->granularity = HBM_PER_GROUP;
        return true;
    }
    return refuse(why, "`granularity` is to be tensor, channel, channel:AXIS, channel:AXIS:K or group:N");
}

bool encoding_parse(const char *codec, const char *granularity, struct hbm_encoding *encoding, const char **why)
{
    int number = hbm_codec_by_name(codec);

    if (number <= HBM_CODEC_RAW)
        return refuse(why, "`codec` is to be one of " HBM_CODEC_CHOICES);
    *encoding = (struct hbm_encoding){
        .codec = (uint8_t)number,
        .granularity = GRANULARITY_DEFAULT,
        .stored = (uint8_t)hbm_codec_stored_dtype((unsigned)number),
    };
    if (granularity && !granularity_parse(granularity, encoding, why))
        return false;
    if (hbm_codec_scale_bytes(encoding->codec))
        return true;
    if (granularity && encoding->granularity != HBM_PER_TENSOR)
        return refuse(why, "this codec has no scales, so it takes no granularity");
    encoding->granularity = HBM_PER_TENSOR;
    return true;
}

const char *granularity_text(const struct hbm_encoding *encoding, char *text, size_t size)
{
    if (!hbm_codec_scale_bytes(encoding->codec))
        return NULL;
    if (hbm_codec_splits(encoding->codec) && encoding->group)
        snprintf(text, size, "channel:%u:%u", encoding->axis, encoding->group);
    else if (encoding->granularity == HBM_PER_CHANNEL || hbm_codec_splits(encoding->codec))
        snprintf(text, size, "channel:%u", encoding->axis);
    else if (encoding->granularity == HBM_PER_GROUP)
        snprintf(text, size, "group:%u", encoding->group);
    else
        snprintf(text, size, "tensor");
    return text;
}
