#include "proto/jobs.h"

#include <assert.h>

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
