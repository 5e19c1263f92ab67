/* jobs.def as C: opcodes, request and reply structs, a table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/vocab.h"

enum job_extent_kind {
    JOB_EXTENT_DEVICE = 0,   /* GPU: VMM memory; host device: memfd */
    JOB_EXTENT_CUDA_IPC = 1, /* cudaMalloc block inside the worker, known by token */
    JOB_EXTENT_HOST = 2,     /* GPU: host-NUMA memory; host device: memfd */
    JOB_EXTENT_DISK = 3,     /* a file */
};

struct job_extent {
    uint32_t kind;
    uint32_t encrypted; /* DISK: 1 with the spill key, in the extent's name */
    uint64_t size;      /* whole extent, exact: an import maps at no other size */
    uint64_t token;     /* CUDA_IPC: the block. HOST, DISK: the owner's identity of the extent; 0: it has none */
};

/* A buffer inside two extents, for ENCODE and DECODE: raw elements on one side, data and scales on the other,
 * zero points behind the scales (job_units_layout), or what lies apart (job_split_layout). */
struct job_code {
    uint64_t raw_offset;
    uint64_t data_offset;
    uint64_t scale_offset;
    uint64_t dims[HBM_RANK_MAX];
    uint32_t rank;
    uint32_t dtype; /* of the raw side */
    struct hbm_encoding encoding;
};

struct job_range {
    uint64_t extent_offset;
    uint64_t file_offset;
    uint64_t bytes;
};

struct job_span {
    uint64_t offset, bytes;
};

/* A run of a packed extent. Elements of one buffer between their raw form and the packed one (data, scales, zero points), or with
 * encoding RAW dims[2] bytes as they are. By a codec whose size varies scale_offset is where the data end. dims: PER_CHANNEL outer, channels, inner (axis 1); PER_GROUP 1, rows, last axis;
 * else 1, 1, elements. */
struct job_piece {
    uint64_t raw_offset, data_offset, scale_offset;
    uint64_t dims[3];
    struct hbm_encoding encoding;
    uint32_t dtype; /* of the raw side */
    uint32_t receipt; /* which of the receipts it counts for */
};

/* How a codec's range is chosen. */
struct job_calibration {
    double parameter; /* PERCENTILE: percent, above 0 */
    float lo, hi;     /* GIVEN: the range; OBSERVED: the ends of what was observed, or their averages */
    uint32_t method;  /* enum hbm_calibration */
    uint32_t dtype;   /* OBSERVED: of the elements that were counted */
};

/* What OBSERVE counts: finite magnitudes, by the upper 15 bits of their patterns (kernels/histogram.h). */
#define JOB_OBSERVE_BINS 32768u
#define JOB_OBSERVE_BYTES (JOB_OBSERVE_BINS * sizeof(uint64_t))

/* Whether the range is searched for in such counts. */
static inline bool job_takes_bins(const struct job_calibration *calibration)
{
    unsigned method = calibration->method & ~(unsigned)HBM_CALIBRATE_OBSERVED;

    return method != calibration->method && method != HBM_CALIBRATE_MINMAX && method != HBM_CALIBRATE_AVERAGE;
}

/* Whether an asymmetric range could be found only in counts that have signs. */
static inline bool job_wants_signs(const struct job_calibration *calibration)
{
    return calibration->lo < 0 && calibration->hi > 0 &&
           (calibration->method == (HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_PERCENTILE) ||
            calibration->method == (HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_MSE));
}

struct job_receipt {
    struct hbm_receipt receipt;
    struct hbm_quality quality;
};

/* Of a buffer by a codec whose size varies: a piece of it has so many bytes besides those of its grains, which it is cut at. */
#define JOB_GRAIN 65536u /* elements */
#define JOB_CODE_BYTES 256
struct job_measured {
    uint64_t head, n_grains;
    uint8_t code[JOB_CODE_BYTES]; /* what PACK encodes by, as the codec has it */
};

/* A process that the driver names as using the device. */
struct job_holder {
    uint32_t pid;
    uint32_t unused;
    uint64_t bytes; /* UINT64_MAX: it does not say how much */
};

/* What START's memfd holds. */
struct job_spill_key {
    uint64_t id;     /* which key this is, for the owner's books; never 0 */
    uint8_t key[64]; /* AES-256-XTS: two of 32 */
};

#define JOB_SPANS_MAX 65536u /* of a HASH */

#define JOB_CHECKSUM 1u
#define JOB_VERIFY 2u
#define JOB_MAKE_TARGET 4u
#define JOB_FROM_PEER 8u
#define JOB_TO_PEER 16u
#define JOB_HASHES 32u
#define JOB_AHEAD 64u
#define JOB_IN_PIECES 128u

#define JOB_PEERS_MAX 16
#define JOB_PEERS_TEXT ((size_t)JOB_PEERS_MAX * 48) /* UUIDs and what is between them */

/* The ways of a device's bytes. */
enum job_link {
    JOB_LINK_DEVICE_TO_HOST,
    JOB_LINK_HOST_TO_DEVICE,
    JOB_LINK_DISK_WRITE,
    JOB_LINK_DISK_READ,
    JOB_LINKS
};
#define JOB_LINK_NONE JOB_LINKS /* bytes that stay where they are, or a client's own file */

/* GPUDirect Storage between disk and device. */
enum job_gpudirect {
    JOB_GPUDIRECT_OFF,    /* not wanted */
    JOB_GPUDIRECT_ABSENT, /* driver or device do not offer it */
    JOB_GPUDIRECT_THERE,
    JOB_GPUDIRECT_FAILED /* and is not tried any more */
};

#define JOB_FIELD(type, name) type name;
#define JOB_ARRAY(type, name, count) type name[count];
#define JOB(NAME, opcode, name, in, out)                                                                     \
    struct job_##name##_request {                                                                            \
        NAME##_REQUEST(JOB_FIELD, JOB_ARRAY)                                                                 \
    };                                                                                                       \
    struct job_##name##_reply {                                                                              \
        NAME##_REPLY(JOB_FIELD, JOB_ARRAY)                                                                   \
    };
#include "proto/jobs.def"
#undef JOB

enum job_opcode {
#define JOB(NAME, opcode, name, in, out) JOB_##NAME = (opcode),
#include "proto/jobs.def"
#undef JOB
};

union job_request {
#define JOB(NAME, opcode, name, in, out) struct job_##name##_request name;
#include "proto/jobs.def"
#undef JOB
};

union job_reply {
#define JOB(NAME, opcode, name, in, out) struct job_##name##_reply name;
#include "proto/jobs.def"
#undef JOB
};

struct job_row {
    const char *name;
    size_t request_size, reply_size;
    unsigned fds_in_max, fds_out_max;
};

#define JOB_OPCODES 18
/* NULL for an opcode that is none. */
const struct job_row *job_row(unsigned opcode);
/* The link that a job keeps busy; of several the slowest. */
enum job_link job_link_of(unsigned opcode, const union job_request *request);
/* Of the scales and zero points of so many units, counted from the scales: where the zero points begin, at a multiple of
 * HBM_ALIGN, and where all ends. False on overflow. */
bool job_units_layout(unsigned codec, uint64_t units, uint64_t *zero, uint64_t *end);
/* Of a codec that splits, counted from the scale: where the numbers of so many channels begin, where their elements do, each at a
 * multiple of HBM_ALIGN, and where all ends. */
void job_split_layout(uint32_t channels, uint64_t elements, uint64_t *numbers, uint64_t *outliers, uint64_t *end);
