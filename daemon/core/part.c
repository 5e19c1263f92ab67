#include "daemon/core/part.h"

#include <stdio.h>

#include "daemon/core/ledger.h"
#include "daemon/core/transition.h"

static const struct {
    const char *suffix, *what;
    unsigned dtype;
} rows[PARTS] = {
    [PART_SCALE] = {".scale", "scales", HBM_F32},
    [PART_ZERO] = {".zero", "zero points", HBM_I32},
    [PART_CHANNELS] = {".channels", "channels' numbers", HBM_I32},
    [PART_OUTLIERS] = {".outliers", "channels in fp16", HBM_F16},
};

const char *part_suffix(unsigned part)
{
    return rows[part].suffix;
}

const char *part_what(unsigned part)
{
    return rows[part].what;
}

bool part_has(unsigned part, unsigned codec)
{
    if (part == PART_SCALE)
        return hbm_codec_scale_bytes(codec);
    return part == PART_ZERO ? hbm_codec_zero_bytes(codec) : hbm_codec_splits(codec);
}

uint64_t part_bytes(unsigned part, const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank)
{
    uint64_t n = encoding->group;
    bool known = part == PART_CHANNELS || (part == PART_OUTLIERS ? hbm_split_elements(encoding, dims, rank, &n)
                                                                 : hbm_encoding_units(encoding, dims, rank, &n));

    return part_has(part, encoding->codec) && known ? n * (hbm_dtype_bits(rows[part].dtype) / 8) : 0;
}

unsigned part_of_dtype(unsigned dtype, unsigned codec)
{
    for (unsigned part = 0; part < PARTS; part++)
        if (rows[part].dtype == dtype && part_has(part, codec))
            return part;
    return PART_SCALE;
}

bool part_name(unsigned part, const char *name, char *full, unsigned long size)
{
    int n = snprintf(full, size, "%s%s", name, rows[part].suffix);

    return n >= 0 && (unsigned long)n < size;
}

static uint64_t units_of(unsigned part, const struct placement *placement)
{
    return placement->parts[part].size / (hbm_dtype_bits(rows[part].dtype) / 8);
}

struct buffer *part_new(struct buffer *parent, unsigned part, const struct placement *placement, int *error, char *detail)
{
    uint64_t units = units_of(part, placement);
    char name[HBM_NAME_MAX];
    struct buffer_spec spec = {
        .dtype = rows[part].dtype,
        .rank = 1,
        .dims = &units,
        .offset = placement->parts[part].offset,
        .size = placement->parts[part].size,
        .unlisted = parent->name && !parent->listed,
    };

    if (parent->name) {
        if (!part_name(part, parent->name, name, sizeof(name))) {
            snprintf(detail, HBM_DETAIL_MAX, "%.180s%s is longer than a name may be", parent->name, rows[part].suffix);
            *error = HBM_E_INVALID;
            return NULL;
        }
        spec.name = name;
    }
    struct buffer *buffer = buffer_new(parent->arena, &spec, error, detail);
    if (!buffer)
        return NULL;
    buffer->parent = parent;
    parent->parts[part] = buffer;
    return buffer;
}

void parts_place(struct buffer *parent, const struct placement *placement)
{
    for (unsigned i = 0; i < PARTS; i++) {
        struct buffer *buffer = parent->parts[i];
        if (!buffer)
            continue;
        buffer->dims[0] = units_of(i, placement);
        buffer->offset = placement->parts[i].offset;
        buffer->size = placement->parts[i].size;
        buffer->version = parent->version;
        ledger_put_buffer(buffer->core, buffer);
    }
}
