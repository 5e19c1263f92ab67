#include "proto/jobs.h"

#include <assert.h>
#include <stdbool.h>

/* Padding would leak stack bytes and break agreement between builds: the sum of the fields is the size. */
#define SIZE_FIELD(type, name) +sizeof(type)
#define SIZE_ARRAY(type, name, count) +sizeof(type) * (count)
#define JOB(NAME, opcode, name, in, out)                                                                     \
    static_assert(sizeof(struct job_##name##_request) == 0 NAME##_REQUEST(SIZE_FIELD, SIZE_ARRAY), #name);   \
    static_assert(sizeof(struct job_##name##_reply) == 0 NAME##_REPLY(SIZE_FIELD, SIZE_ARRAY), #name);
#include "proto/jobs.def"
#undef JOB
static_assert(sizeof(struct job_extent) == 24, "no padding");
static_assert(sizeof(struct job_code) == 24 + 64 + 8 + 8, "no padding");
static_assert(sizeof(struct hbm_receipt) == 64, "no padding");
static_assert(sizeof(struct hbm_quality) == 72, "no padding");
static_assert(sizeof(struct job_calibration) == 24, "no padding");
static_assert(sizeof(struct hbm_observation) == 56, "no padding");
static_assert(sizeof(struct job_measured) == 16 + JOB_CODE_BYTES, "no padding");

static const struct job_row rows[JOB_OPCODES] = {
#define JOB(NAME, opcode, name, in, out)                                                                     \
    [opcode] = {#name, sizeof(struct job_##name##_request), sizeof(struct job_##name##_reply), in, out},
#include "proto/jobs.def"
#undef JOB
};

const struct job_row *job_row(unsigned opcode)
{
    return opcode < JOB_OPCODES && rows[opcode].name ? &rows[opcode] : NULL;
}

enum job_link job_link_of(unsigned opcode, const union job_request *request)
{
    const struct job_copy_request *copy = &request->copy;

    if (opcode == JOB_PACK)
        return request->pack.packed.kind == JOB_EXTENT_DISK ? JOB_LINK_DISK_WRITE : JOB_LINK_DEVICE_TO_HOST;
    if (opcode == JOB_UNPACK)
        return request->unpack.packed.kind == JOB_EXTENT_DISK ? JOB_LINK_DISK_READ : JOB_LINK_HOST_TO_DEVICE;
    if (opcode == JOB_HASH)
        return request->hash.extent.kind == JOB_EXTENT_DISK ? JOB_LINK_DISK_READ : JOB_LINK_NONE;
    if (opcode != JOB_COPY)
        return JOB_LINK_NONE;
    if (copy->source.kind == JOB_EXTENT_DISK)
        return JOB_LINK_DISK_READ;
    if (copy->target.kind == JOB_EXTENT_DISK)
        return JOB_LINK_DISK_WRITE;
    bool from_host = copy->source.kind == JOB_EXTENT_HOST, to_host = copy->target.kind == JOB_EXTENT_HOST;
    return from_host == to_host ? JOB_LINK_NONE : from_host ? JOB_LINK_HOST_TO_DEVICE : JOB_LINK_DEVICE_TO_HOST;
}

bool job_units_layout(unsigned codec, uint64_t units, uint64_t *zero, uint64_t *end)
{
    uint64_t zeros;

    if (__builtin_mul_overflow(units, (uint64_t)hbm_codec_scale_bytes(codec), end) ||
        __builtin_mul_overflow(units, (uint64_t)hbm_codec_zero_bytes(codec), &zeros))
        return false;
    *zero = *end;
    if (!zeros)
        return true;
    if (__builtin_add_overflow(*end, (uint64_t)HBM_ALIGN - 1, zero))
        return false;
    *zero -= *zero % HBM_ALIGN;
    return !__builtin_add_overflow(*zero, zeros, end);
}

void job_split_layout(uint32_t channels, uint64_t elements, uint64_t *numbers, uint64_t *outliers, uint64_t *end)
{
    *numbers = HBM_ALIGN; /* behind one scale */
    *outliers = *numbers + (channels * (uint64_t)sizeof(int32_t) + HBM_ALIGN - 1) / HBM_ALIGN * HBM_ALIGN;
    *end = *outliers + elements * sizeof(uint16_t);
}
