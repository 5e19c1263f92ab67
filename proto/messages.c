#include "proto/messages.h"

#include <assert.h>

#define SIZE_FIELD(type, name) +sizeof(type)
#define SIZE_ARRAY(type, name, count) +sizeof(type) * (count)
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                  \
    static_assert(sizeof(struct wire_##name##_request) == 0 NAME##_REQUEST(SIZE_FIELD, SIZE_ARRAY), #name);  \
    static_assert(sizeof(struct wire_##name##_reply) == 0 NAME##_REPLY(SIZE_FIELD, SIZE_ARRAY), #name);      \
    static_assert(sizeof(struct packet_header) + sizeof(struct wire_##name##_request) <= PACKET_BYTES_MAX, #name); \
    static_assert(sizeof(struct packet_header) + sizeof(struct wire_##name##_reply) <= PACKET_BYTES_MAX, #name);
#include "proto/messages.def"
#undef MESSAGE
static_assert(sizeof(struct wire_spec) == 8 + 64 + 24 + HBM_NAME_MAX + HBM_GROUP_MAX, "no padding");
static_assert(sizeof(struct wire_grant) == 48 + 64 + 8 + 32 + 64 + HBM_NAME_MAX, "no padding");

static const struct wire_row rows[WIRE_OPCODES] = {
#define MESSAGE(NAME, opcode_, name_, since_, in_min, in_max, out, needs_, may_)                             \
    [opcode_] = {.name = #name_,                                                                             \
                 .opcode = opcode_,                                                                          \
                 .since = since_,                                                                            \
                 .request_size = sizeof(struct wire_##name_##_request),                                      \
                 .reply_size = sizeof(struct wire_##name_##_reply),                                          \
                 .fds_in_min = in_min,                                                                       \
                 .fds_in_max = in_max,                                                                       \
                 .fds_out_max = out,                                                                         \
                 .needs = WIRE_NEEDS_##needs_,                                                               \
                 .may = WIRE_MAY_##may_},
#include "proto/messages.def"
#undef MESSAGE
};

const struct wire_row *wire_row(uint32_t opcode)
{
    return opcode < WIRE_OPCODES && rows[opcode].name ? &rows[opcode] : NULL;
}
