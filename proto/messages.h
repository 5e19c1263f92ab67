/* messages.def as C: opcodes, request and reply structs, a table of rows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/packet.h"
#include "proto/vocab.h"

#define WIRE_VERSION 1u
#define WIRE_DEVICE_ANY 0xffffffffu /* the first device */
#define WIRE_EVENT_FIRST 64u
#define WIRE_OPCODES 67u
#define WIRE_SLOTS_MAX 128u               /* that one message names */
#define WIRE_RESUME_LEASES_MAX (1u << 20) /* that a session can present */

/* Flags, one namespace. */
#define WIRE_WAIT 1u     /* wait for what is being built */
#define WIRE_UNLOCKED 2u /* attach without making resident: map at the first lock */
#define WIRE_KEEP 4u     /* the buffer outlives its last lease */
#define WIRE_SHARED 8u   /* a global name, trusted to all who may use its listener */
#define WIRE_REPLACE 16u /* publish: replace a sealed model of that name */
#define WIRE_FORCE 32u   /* offload, window: past offload_limit */
#define WIRE_LIVE 64u    /* offload to host: under whoever has it mapped, who goes on there */
#define WIRE_IN_PLACE 128u /* attach: host memory is mapped as it lies, not brought to the device */
#define WIRE_FORGET 256u   /* observe: forget what was observed */
#define WIRE_PRIORITY(priority) (((priority) + 1u) << 16) /* allocate, publish: 0 to 9, or 10 = never moved away for want of room */
#define WIRE_PRIORITY_MASK 0xf0000u

/* The priority in such flags, 0 to 10; `none` where they have none. False: no such priority. */
static inline bool wire_priority(uint32_t flags, uint32_t none, uint32_t *priority)
{
    uint32_t field = (flags & WIRE_PRIORITY_MASK) >> 16;

    *priority = field ? field - 1 : none;
    return *priority <= 10;
}

/* Compress: what becomes of the original. */
enum wire_mode { WIRE_MODE_REPLACE = 0, WIRE_MODE_COPY = 1, WIRE_MODE_PARK = 2 };

enum wire_op_state { WIRE_OP_QUEUED = 0, WIRE_OP_RUNNING = 1, WIRE_OP_DONE = 2, WIRE_OP_FAILED = 3, WIRE_OP_CANCELLED = 4 };

struct wire_spec {
    uint64_t size; /* bytes; 0: from dtype and dims, which must agree with it otherwise */
    uint64_t dims[HBM_RANK_MAX];
    uint32_t device; /* index, or WIRE_DEVICE_ANY */
    uint32_t dtype;
    uint32_t rank;   /* 0 with a size and no shape: a flat run of bytes is one dimension of `size` U8 */
    uint32_t handle; /* enum hbm_handle */
    uint32_t mode;   /* permission bits as of a file, e.g. 0600, 0644; x bits are zero */
    uint32_t flags;  /* WIRE_KEEP, WIRE_SHARED */
    char name[HBM_NAME_MAX];
    char group[HBM_GROUP_MAX];
};

/* A lease as the client sees it: where the buffer lies and how to map it. */
struct wire_grant {
    uint64_t lease;
    uint64_t buffer;
    uint64_t arena;
    uint64_t arena_size; /* exact: an import maps at no other size */
    uint64_t offset;     /* of the buffer in the arena */
    uint64_t size;
    uint64_t dims[HBM_RANK_MAX];
    struct hbm_encoding encoding;
    uint32_t slot; /* residency word */
    uint32_t device;
    uint32_t handle;
    uint32_t access;
    uint32_t dtype; /* logical; the stored one is encoding.stored unless RAW */
    uint32_t rank;
    uint32_t version;
    uint32_t present; /* 0: away, no fd came (WIRE_UNLOCKED) */
    uint8_t ipc_handle[64];
    char name[HBM_NAME_MAX];
};

struct wire_range {
    uint64_t buffer;
    uint64_t buffer_offset;
    uint64_t file_offset;
    uint64_t bytes;
};

#define WIRE_FIELD(type, name) type name;
#define WIRE_ARRAY(type, name, count) type name[count];
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                  \
    struct wire_##name##_request {                                                                           \
        NAME##_REQUEST(WIRE_FIELD, WIRE_ARRAY)                                                               \
    };                                                                                                       \
    struct wire_##name##_reply {                                                                             \
        NAME##_REPLY(WIRE_FIELD, WIRE_ARRAY)                                                                 \
    };
#include "proto/messages.def"
#undef MESSAGE

enum wire_opcode {
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may) WIRE_##NAME = (opcode),
#include "proto/messages.def"
#undef MESSAGE
};

enum wire_needs { WIRE_NEEDS_FRESH, WIRE_NEEDS_OPEN };
enum wire_may { WIRE_MAY_ANYONE, WIRE_MAY_ADMIN };

struct wire_row {
    const char *name;
    uint32_t opcode;
    uint32_t since;
    size_t request_size, reply_size;
    unsigned fds_in_min, fds_in_max, fds_out_max;
    enum wire_needs needs;
    enum wire_may may;
};

/* Serial 0, and no reply. */
static inline bool wire_is_one_way(uint32_t opcode)
{
    return opcode == WIRE_RELEASED || opcode == WIRE_AHEAD || opcode == WIRE_BEHIND || opcode == WIRE_ORDER;
}

/* NULL for an opcode that is none. */
const struct wire_row *wire_row(uint32_t opcode);
