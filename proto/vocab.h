/* The words that every layer shares: element types, codecs, granularity, tiers, handle kinds, access.
 * Numbers are wire, ledger and API. The one header of proto/ that kernels/ may include. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Part of libhbm's interface. */
#pragma GCC visibility push(default)

#define HBM_RANK_MAX 8
#define HBM_NAME_MAX 256  /* with the terminating NUL */
#define HBM_GROUP_MAX 128 /* with the terminating NUL */
#define HBM_UUID_MAX 48   /* "GPU-..." or "MIG-..." or "host" or "host-1", with the NUL */
#define HBM_DETAIL_MAX 256
#define HBM_ALIGN 256 /* bytes: every buffer, scale and zero point starts at a multiple of it in its arena */

enum hbm_dtype {
#define DTYPE(name, number, text, bits, codable) HBM_##name = (number),
#include "proto/dtypes.def"
#undef DTYPE
};

enum hbm_codec {
#define CODEC(name, number, text, stored, scale_bytes, zero_bytes, granularities, lossless) HBM_CODEC_##name = (number),
#include "proto/codecs.def"
#undef CODEC
};

/* What can be asked for, as sentences and choices name it. */
#define HBM_CODEC_CHOICES "fp16|bf16|fp16-scaled|fp8-e4m3|fp8-e5m2|int8|int8-asym|int8-split|int4|bf16-lossless"

enum hbm_granularity {
    HBM_PER_TENSOR = 0,
    HBM_PER_CHANNEL = 1, /* one scale an index of `axis` */
    HBM_PER_GROUP = 2,   /* one scale each `group` consecutive elements along the last axis */
};

/* PEER: the device memory of another device than the buffer's own. */
enum hbm_tier { HBM_TIER_DEVICE = 0, HBM_TIER_HOST = 1, HBM_TIER_DISK = 2, HBM_TIER_PEER = 3 };
#define HBM_TIERS 3  /* that a device has, each with its room: DEVICE, HOST, DISK */
#define HBM_PLACES 4 /* where a buffer can lie: those and PEER */

enum hbm_handle {
    HBM_HANDLE_FD = 0,       /* vmm-fd on a GPU, memfd on the host device */
    HBM_HANDLE_CUDA_IPC = 1, /* cudaIpcMemHandle_t */
};

enum hbm_access { HBM_RO = 0, HBM_RW = 1 };

/* How a buffer is stored; RAW means the bytes as published. Of INT8_SPLIT, which is PER_TENSOR, axis says of which axis the
 * loudest channels are kept in fp16, and group how many (0 where it is asked for: one of a hundred). 8 bytes, no padding. */
struct hbm_encoding {
    uint8_t codec;       /* enum hbm_codec */
    uint8_t granularity; /* enum hbm_granularity */
    uint8_t axis;        /* PER_CHANNEL only */
    uint8_t stored;      /* enum hbm_dtype of the stored elements */
    uint32_t group;      /* PER_GROUP only: elements a group */
};

/* What a lossy operation did, measured against the original. */
struct hbm_receipt {
    uint64_t bytes_before;
    uint64_t bytes_after; /* data, scales and zero points */
    double sqnr_db;       /* 10 log10(sum x^2 / sum (x - x')^2), over elements finite in x; INFINITY if exact */
    double max_abs_error;
    double clipped_fraction; /* elements whose code saturated */
    double seconds;          /* on the device */
    uint64_t elements;
    uint64_t nonfinite; /* NaN and infinities in the original */
};

/* By what the range of a codec's codes was chosen. */
enum hbm_calibration {
    HBM_CALIBRATE_MINMAX = 0,     /* the largest magnitude, or both ends: nothing is clipped */
    HBM_CALIBRATE_PERCENTILE = 1, /* the magnitude that so many percent of the elements do not exceed */
    HBM_CALIBRATE_MSE = 2,        /* that by which the squares of the errors have the least sum */
    HBM_CALIBRATE_ENTROPY = 3,    /* that whose codes tell the most of how the elements are distributed */
    HBM_CALIBRATE_GIVEN = 4,      /* one that was found elsewhere */
    HBM_CALIBRATE_AVERAGE = 5,    /* the moving average of the ends of batches; OBSERVED alone */
    HBM_CALIBRATE_OBSERVED = 0x100, /* with one of the others: of what was observed over many batches, and not of the elements themselves */
};

/* The rest of a receipt: what messages have no room for. 72 bytes, no padding. */
struct hbm_quality {
    double sqnr_inlier_db; /* sqnr_db over the elements that were not clipped */
    double max_rel_error;  /* of |x - x'|/|x|, over the elements that are finite and not 0 */
    uint64_t zeroed;       /* elements that were not 0, and are now */
    uint64_t nans, infinities; /* in the original */
    float lo, hi;          /* the range that the codes were made for, of several units the widest; 0, 0: there is none */
    double parameter;      /* of the method, where it takes one */
    uint32_t method;       /* enum hbm_calibration */
    uint32_t lossless;     /* of a buffer's: 1: no codec has taken anything from it, then or before; the daemon's to say */
    uint64_t clipped;      /* elements */
};

/* What was observed of a buffer, over the batches that were written into it. 56 bytes, no padding. */
struct hbm_observation {
    uint64_t batches;   /* 0: none; its range was imported */
    uint64_t elements;  /* of all of them */
    uint64_t nonfinite; /* of these, NaN and infinities, which the rest knows nothing of */
    float lo, hi;       /* the least and the largest element of all batches; or the range that was imported */
    float average_lo, average_hi; /* moving averages of those of each batch */
    float last_lo, last_hi;       /* of the last batch that had any */
    uint32_t imported; /* 1: the range comes from a file, and there is nothing else; the next batch takes its place */
    uint32_t unused;
};

#define HBM_MOMENTUM 0.99 /* how much of a moving average a batch leaves, where nothing else is said */

const char *hbm_dtype_name(unsigned dtype);          /* "BF16"; NULL if unknown */
int hbm_dtype_by_name(const char *name);             /* -1 if unknown; exact case, as safetensors writes it */
unsigned hbm_dtype_bits(unsigned dtype);             /* bits an element; 0 if unknown */
bool hbm_dtype_codable(unsigned dtype);              /* codecs take it: F32, F16, BF16 */
const char *hbm_codec_name(unsigned codec);          /* "int8"; NULL if unknown */
int hbm_codec_by_name(const char *name);             /* -1 if unknown */
unsigned hbm_codec_stored_dtype(unsigned codec);     /* enum hbm_dtype */
unsigned hbm_codec_scale_bytes(unsigned codec);      /* bytes of scale a unit */
unsigned hbm_codec_zero_bytes(unsigned codec);       /* bytes of zero point a unit */
bool hbm_codec_takes(unsigned codec, unsigned granularity);
bool hbm_codec_lossless(unsigned codec);
bool hbm_codec_varies(unsigned codec); /* its bytes are known when they have been measured, and not from the shape */
bool hbm_codec_splits(unsigned codec); /* some channels lie apart, in fp16 */
const char *hbm_tier_name(unsigned tier);            /* "device", "host", "disk", "peer" */
int hbm_tier_by_name(const char *name);              /* -1 if unknown */
const char *hbm_handle_name(unsigned handle);        /* "fd", "cuda-ipc" */
/* Writes "int8 per channel 0", "raw", ... into text (>= 48 bytes). */
void hbm_encoding_text(const struct hbm_encoding *encoding, char *text, unsigned long size);
/* Writes "minmax", "percentile:99.9", "observed:mse", ... into text (>= 48 bytes). */
void hbm_calibration_text(unsigned method, double parameter, char *text, unsigned long size);

/* Elements of a shape into *count; false on overflow or rank > HBM_RANK_MAX. Rank 0 is one element. */
bool hbm_shape_elements(const uint64_t *dims, unsigned rank, uint64_t *count);
/* Bytes of a shape of dtype into *bytes (sub-byte types round up at the end); false on overflow. */
bool hbm_shape_bytes(const uint64_t *dims, unsigned rank, unsigned dtype, uint64_t *bytes);
/* Units that share one scale; false if the granularity does not fit the shape (axis out of range, group 0).
 * A group that the last axis does not divide ends with a shorter one: ceil(last/group) a row. */
bool hbm_encoding_units(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t *units);
/* Of a codec that splits: elements of the channels that lie apart. False if the shape has no such axis, more than 2^31 - 1
 * channels along it, or no more than are to lie apart, or none is to. */
bool hbm_split_elements(const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank, uint64_t *elements);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
