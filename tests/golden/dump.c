/* Prints both packet protocols as they are compiled: every message and job with its opcode and sizes, each field
 * with its type, offset and size. The output stands in protocol.txt, where a change of the wire shows in review,
 * and where tests/flow/wire.py learns the layouts. */
#include <stddef.h>
#include <stdio.h>

#include "proto/jobs.h"
#include "proto/lockword.h"
#include "proto/messages.h"
#include "proto/table.h"

/* The tables' F and A do not know whose fields they list: `self` is that struct, for the length of a function. */
#define PRINT_FIELD(type, name) print_field(#type, 1, #name, offsetof(self, name), sizeof(((self *)0)->name));
#define PRINT_ARRAY(type, name, count)                                                                             \
    print_field(#type, count, #name, offsetof(self, name), sizeof(((self *)0)->name));
#define SIZE_FIELD(type, name) +sizeof(type)
#define SIZE_ARRAY(type, name, count) +sizeof(type) * (count)

static void print_field(const char *type, size_t count, const char *name, size_t offset, size_t size)
{
    printf("    %s %s count %zu offset %zu size %zu\n", name, type, count, offset, size);
}

#define PRINT_STRUCT(title, tag, FIELDS)                                                                           \
    do {                                                                                                           \
        typedef struct tag self;                                                                                   \
        printf("  %s size %zu\n", title, sizeof(self));                                                            \
        FIELDS(PRINT_FIELD, PRINT_ARRAY)                                                                           \
    } while (0)

/* Structs within messages. They are plain C, so their fields stand here again; the sum of sizes keeps the lists
 * whole. */
#define packet_header_FIELDS(F, A)                                                                                 \
    F(uint32_t, opcode) F(uint32_t, serial) F(int32_t, status) F(uint16_t, n_fds) F(uint16_t, more)
#define packet_refusal_FIELDS(F, A) A(char, detail, 256)
#define hbm_encoding_FIELDS(F, A)                                                                                  \
    F(uint8_t, codec) F(uint8_t, granularity) F(uint8_t, axis) F(uint8_t, stored) F(uint32_t, group)
#define hbm_receipt_FIELDS(F, A)                                                                                   \
    F(uint64_t, bytes_before)                                                                                      \
    F(uint64_t, bytes_after) F(double, sqnr_db) F(double, max_abs_error) F(double, clipped_fraction)               \
        F(double, seconds) F(uint64_t, elements) F(uint64_t, nonfinite)
#define hbm_quality_FIELDS(F, A)                                                                                   \
    F(double, sqnr_inlier_db)                                                                                      \
    F(double, max_rel_error) F(uint64_t, zeroed) F(uint64_t, nans) F(uint64_t, infinities) F(float, lo)            \
        F(float, hi) F(double, parameter) F(uint32_t, method) F(uint32_t, lossless) F(uint64_t, clipped)
#define wire_spec_FIELDS(F, A)                                                                                     \
    F(uint64_t, size)                                                                                              \
    A(uint64_t, dims, HBM_RANK_MAX) F(uint32_t, device) F(uint32_t, dtype) F(uint32_t, rank) F(uint32_t, handle)   \
        F(uint32_t, mode) F(uint32_t, flags) A(char, name, HBM_NAME_MAX) A(char, group, HBM_GROUP_MAX)
#define wire_grant_FIELDS(F, A)                                                                                    \
    F(uint64_t, lease)                                                                                             \
    F(uint64_t, buffer) F(uint64_t, arena) F(uint64_t, arena_size) F(uint64_t, offset) F(uint64_t, size)           \
        A(uint64_t, dims, HBM_RANK_MAX) F(struct hbm_encoding, encoding) F(uint32_t, slot) F(uint32_t, device)     \
            F(uint32_t, handle) F(uint32_t, access) F(uint32_t, dtype) F(uint32_t, rank) F(uint32_t, version)      \
                F(uint32_t, present) A(uint8_t, ipc_handle, 64) A(char, name, HBM_NAME_MAX)
#define wire_range_FIELDS(F, A)                                                                                    \
    F(uint64_t, buffer) F(uint64_t, buffer_offset) F(uint64_t, file_offset) F(uint64_t, bytes)
#define table_header_FIELDS(F, A)                                                                                  \
    F(uint32_t, magic)                                                                                             \
    F(uint32_t, version) F(uint32_t, n_arenas) F(uint32_t, n_buffers) F(uint64_t, strings_bytes)                   \
        F(uint64_t, metadata_bytes)
#define table_arena_FIELDS(F, A)                                                                                   \
    F(uint64_t, arena)                                                                                             \
    F(uint64_t, size) F(uint32_t, group) F(uint32_t, slot) F(uint32_t, device) F(uint32_t, handle)                 \
        F(uint32_t, present) F(uint32_t, unused) A(uint8_t, ipc_handle, 64)
#define table_buffer_FIELDS(F, A)                                                                                  \
    F(uint64_t, buffer)                                                                                            \
    F(uint64_t, offset) F(uint64_t, size) A(uint64_t, dims, HBM_RANK_MAX) F(struct hbm_encoding, encoding)         \
        F(uint32_t, arena) F(uint32_t, name) F(uint32_t, dtype) F(uint32_t, rank) F(uint32_t, version)             \
            F(uint32_t, unused)
#define job_extent_FIELDS(F, A) F(uint32_t, kind) F(uint32_t, encrypted) F(uint64_t, size) F(uint64_t, token)
#define job_spill_key_FIELDS(F, A) F(uint64_t, id) A(uint8_t, key, 64)
#define job_code_FIELDS(F, A)                                                                                      \
    F(uint64_t, raw_offset)                                                                                        \
    F(uint64_t, data_offset) F(uint64_t, scale_offset) A(uint64_t, dims, HBM_RANK_MAX) F(uint32_t, rank)           \
        F(uint32_t, dtype) F(struct hbm_encoding, encoding)
#define job_calibration_FIELDS(F, A)                                                                               \
    F(double, parameter) F(float, lo) F(float, hi) F(uint32_t, method) F(uint32_t, dtype)
#define job_range_FIELDS(F, A) F(uint64_t, extent_offset) F(uint64_t, file_offset) F(uint64_t, bytes)

#define STRUCTS(S)                                                                                                 \
    S(packet_header)                                                                                               \
    S(packet_refusal) S(hbm_encoding) S(hbm_receipt) S(hbm_quality) S(wire_spec) S(wire_grant) S(wire_range) S(table_header)      \
        S(table_arena) S(table_buffer) S(job_extent) S(job_spill_key) S(job_code) S(job_calibration) S(job_range)

#define STRUCT(tag)                                                                                                \
    _Static_assert(sizeof(struct tag) == 0 tag##_FIELDS(SIZE_FIELD, SIZE_ARRAY), #tag);                            \
    static void print_##tag(void)                                                                                  \
    {                                                                                                              \
        printf("struct %s\n", #tag);                                                                               \
        PRINT_STRUCT("fields", tag, tag##_FIELDS);                                                                 \
    }
STRUCTS(STRUCT)

#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may)                                        \
    static void print_message_##name(void)                                                                         \
    {                                                                                                              \
        printf("message %s opcode %d since %d fds_in %d-%d fds_out %d needs %s may %s\n", #name, opcode, since,    \
               in_min, in_max, out, #needs, #may);                                                                 \
        PRINT_STRUCT("request", wire_##name##_request, NAME##_REQUEST);                                            \
        PRINT_STRUCT("reply", wire_##name##_reply, NAME##_REPLY);                                                  \
    }
#include "proto/messages.def"
#undef MESSAGE

#define JOB(NAME, opcode, name, in, out)                                                                           \
    static void print_job_##name(void)                                                                             \
    {                                                                                                              \
        printf("job %s opcode %d fds_in %d fds_out %d\n", #name, opcode, in, out);                                 \
        PRINT_STRUCT("request", job_##name##_request, NAME##_REQUEST);                                             \
        PRINT_STRUCT("reply", job_##name##_reply, NAME##_REPLY);                                                   \
    }
#include "proto/jobs.def"
#undef JOB

int main(void)
{
    printf("version %u packet_bytes %d packet_fds %d lock_slots %d\n", WIRE_VERSION, PACKET_BYTES_MAX,
           PACKET_FDS_MAX, LOCKWORD_SLOTS);
#define STRUCT_CALL(tag) print_##tag();
    STRUCTS(STRUCT_CALL)
#define MESSAGE(NAME, opcode, name, since, in_min, in_max, out, needs, may) print_message_##name();
#include "proto/messages.def"
#undef MESSAGE
#define JOB(NAME, opcode, name, in, out) print_job_##name();
#include "proto/jobs.def"
#undef JOB
    return 0;
}
