#include "proto/vocab.h"

#include <stdio.h>
#include <string.h>

struct dtype_row {
    const char *name;
    unsigned bits;
    bool codable;
};

static const struct dtype_row dtypes[] = {
#define DTYPE(name, number, text, bits, codable) [number] = {text, bits, codable},
#include "proto/dtypes.def"
#undef DTYPE
};

struct codec_row {
    const char *name;
    unsigned stored;
    unsigned scale_bytes, zero_bytes;
    unsigned granularities; /* bit g: enum hbm_granularity g */
    bool lossless;
};

enum { TENSOR = 1u << HBM_PER_TENSOR, GROUP = 1u << HBM_PER_GROUP, ANY = TENSOR | 1u << HBM_PER_CHANNEL | GROUP };

static const struct codec_row codecs[] = {
#define CODEC(name, number, text, stored, scale_bytes, zero_bytes, granularities, lossless)                  \
    [number] = {text, HBM_##stored, scale_bytes, zero_bytes, granularities, lossless},
#include "proto/codecs.def"
#undef CODEC
};

static const char *const tiers[] = {"device", "host", "disk", "peer"};
static const char *const handles[] = {"fd", "cuda-ipc"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const char *hbm_dtype_name(unsigned dtype)
{
    return dtype < COUNT(dtypes) ? dtypes[dtype].name : NULL;
}

int hbm_dtype_by_name(const char *name)
{
    for (unsigned i = 0; i < COUNT(dtypes); i++)
        if (!strcmp(dtypes[i].name, name))
            return (int)i;
    return -1;
}

unsigned hbm_dtype_bits(unsigned dtype)
{
    return dtype < COUNT(dtypes) ? dtypes[dtype].bits : 0;
}

bool hbm_dtype_codable(unsigned dtype)
{
    return dtype < COUNT(dtypes) && dtypes[dtype].codable;
}

const char *hbm_codec_name(unsigned codec)
{
    return codec < COUNT(codecs) ? codecs[codec].name : NULL;
}

int hbm_codec_by_name(const char *name)
{
    for (unsigned i = 0; i < COUNT(codecs); i++)
        if (codecs[i].name && !strcmp(codecs[i].name, name))
            return (int)i;
    return -1;
}

unsigned hbm_codec_stored_dtype(unsigned codec)
{
    return codec < COUNT(codecs) ? codecs[codec].stored : HBM_U8;
}

unsigned hbm_codec_scale_bytes(unsigned codec)
{
    return codec < COUNT(codecs) ? codecs[codec].scale_bytes : 0;
}

unsigned hbm_codec_zero_bytes(unsigned codec)
{
    return codec < COUNT(codecs) ? codecs[codec].zero_bytes : 0;
}

bool hbm_codec_takes(unsigned codec, unsigned granularity)
{
    return codec < COUNT(codecs) && granularity <= HBM_PER_GROUP && codecs[codec].granularities >> granularity & 1;
}

bool hbm_codec_lossless(unsigned codec)
{
    return codec < COUNT(codecs) && codecs[codec].lossless;
}

bool hbm_codec_varies(unsigned codec)
{
    return codec != HBM_CODEC_RAW && hbm_codec_lossless(codec);
}

bool hbm_codec_splits(unsigned codec)
{
    return codec == HBM_CODEC_INT8_SPLIT;
}

const char *hbm_tier_name(unsigned tier)
{
    return tier < COUNT(tiers) ? tiers[tier] : "?";
}

int hbm_tier_by_name(const char *name)
{
    for (unsigned i = 0; i < COUNT(tiers); i++)
        if (!strcmp(tiers[i], name))
            return (int)i;
    return -1;
}

const char *hbm_handle_name(unsigned handle)
{
    return handle < COUNT(handles) ? handles[handle] : "?";
}

void hbm_encoding_text(const struct hbm_encoding *encoding, char *text, unsigned long size)
{
    const char *name = hbm_codec_name(encoding->codec);

    if (!name)
        name = "?";
    if (!hbm_codec_scale_bytes(encoding->codec))
        snprintf(text, size, "%s", name);
    else if (hbm_codec_splits(encoding->codec) && !encoding->group)
        snprintf(text, size, "%s of axis %u", name, encoding->axis);
    else if (hbm_codec_splits(encoding->codec))
        snprintf(text, size, "%s but %u of axis %u", name, encoding->group, encoding->axis);
    else if (encoding->granularity == HBM_PER_CHANNEL)
        snprintf(text, size, "%s per channel %u", name, encoding->axis);
    else if (encoding->granularity == HBM_PER_GROUP)
        snprintf(text, size, "%s per group of %u", name, encoding->group);
    else
        snprintf(text, size, "%s per tensor", name);
}

void hbm_calibration_text(unsigned method, double parameter, char *text, unsigned long size)
{
    static const char *const names[] = {"minmax", "percentile", "mse", "entropy", "range", "average"};
    const char *observed = method & HBM_CALIBRATE_OBSERVED ? "observed:" : "";

    method &= ~(unsigned)HBM_CALIBRATE_OBSERVED;
    const char *name = method < sizeof(names) / sizeof(names[0]) ? names[method] : "?";
    if (method == HBM_CALIBRATE_PERCENTILE)
        snprintf(text, size, "%s%s:%.10g", observed, name, parameter);
    else
        snprintf(text, size, "%s%s", observed, name);
}

bool hbm_shape_elements(const uint64_t *dims, unsigned rank, uint64_t *count)
{
    uint64_t n = 1;
    bool empty = false;

    if (rank > HBM_RANK_MAX)
        return false;
    for (unsigned i = 0; i < rank; i++) {
        /* A zero dimension makes the tensor empty, but must not hide another dimension's overflow. */
        if (dims[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(n, dims[i], &n))
            return false;
    }
    *count = empty ? 0 : n;
    return true;
}

bool hbm_shape_bytes(const uint64_t *dims, unsigned rank, unsigned dtype, uint64_t *bytes)
{
    uint64_t count, bits = hbm_dtype_bits(dtype);

    if (!bits || !hbm_shape_elements(dims, rank, &count))
        return false;
    if (bits % 8 == 0)
        return !__builtin_mul_overflow(count, bits / 8, bytes);
    if (__builtin_mul_overflow(count, bits, &count))
        return false;
    *bytes = count / 8 + (count % 8 != 0);
    return true;
}

bool hbm_encoding_units(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t *units)
{
    uint64_t count;

    if (!hbm_shape_elements(dims, rank, &count))
        return false;
    switch (encoding->granularity) {
    case HBM_PER_TENSOR:
        *units = 1;
        return true;
    case HBM_PER_CHANNEL:
        if (encoding->axis >= rank)
            return false;
        *units = dims[encoding->axis];
        return true;
    case HBM_PER_GROUP:
        if (encoding->group == 0 || rank == 0)
            return false;
        if (count == 0) {
            *units = 0;
            return true;
        }
        uint64_t last = dims[rank - 1];
        *units = count / last * (last / encoding->group + (last % encoding->group != 0));
        return true;
    }
    return false;
}

bool hbm_split_elements(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t *elements)
{
    uint64_t count;

    if (!hbm_shape_elements(dims, rank, &count) || encoding->axis >= rank)
        return false;
    uint64_t channels = dims[encoding->axis];
    if (!encoding->group || encoding->group >= channels || channels > INT32_MAX)
        return false;
    *elements = count / channels * encoding->group;
    return true;
}
