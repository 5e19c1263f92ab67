/* Codecs: one buffer encoded or decoded, by a plain-C reference and by CUDA kernels that agree with it
 * bit for bit (data and scales; the receipt's sums may differ in the last digits by order of addition).
 *
 * int8, symmetric, min/max: amax = largest finite |x| of the unit; scale = amax/127 (1 if amax is 0, the smallest
 * subnormal if it underflows to 0); q = round-half-even(x/scale) clamped to [-127, 127]; NaN encodes as 0, +-inf as
 * +-127. x' = q*scale, held within the finite floats. An element counts as clipped if it is finite and the clamp
 * changed it, which takes a subnormal scale, or a range that was given (codec_job.ranged): amax is that range's then.
 * fp16/bf16: round to nearest even; finite values beyond the largest finite one saturate to it and count
 * as clipped; NaN stays NaN (sign and as much of its payload as fits), infinities stay infinities.
 * fp8-e4m3, fp8-e5m2: scale = amax/448, or amax/57344 (1 if amax is 0, the least normal if it is less); x * (1/scale) is
 * rounded to the nearest code, half to even. NaN stays NaN, with its sign. e5m2 keeps infinities; e4m3 has none, and
 * +-inf encodes as +-448. x' = value*scale, held within the finite floats. What would round to a code beyond the largest one
 * becomes that, and counts as clipped, which takes a range that was given.
 * fp16-scaled: scale = the power of two that brings amax to 2^14 .. 2^15 (1 if amax is 0, at least the least normal);
 * x * (1/scale) is rounded as by fp16, NaN and infinities too. x' = value*scale, held within the finite floats. Nothing
 * is clipped.
 * int4, symmetric: scale = amax/7 (1 if amax is 0, the least normal if it is less); q = x * (1/scale), rounded half to
 * even, -7 to 7; NaN encodes as 0, +-inf as +-7. x' = q*scale, held within the finite floats. Nothing is clipped.
 * int8-asym: above and below are how far the finite x of the unit reach from 0; scale = (above + below)/255 (the least normal
 * if it is less), zero point = -128 + k, k = round-half-even(below/scale). If below/scale lies within 1/4 of k and
 * that is not the least normal, the scale is below/k or above/(255 - k) instead, of the two by that which is farther; if
 * above = below, it is above/127, and 1 if both are 0, and the zero point is 0. q = round-half-even(x/scale) + zero point, held
 * within [-128, 127]; NaN encodes as the zero point, +-inf as 127 and -128. x' = (q - zero point)*scale, held within the finite
 * floats. A finite element whose x/scale lies a step or more beyond the codes counts as clipped, which takes a range that was given:
 * above and below are that range's then.
 * int8-split: int8 with one scale for the tensor, but for the `group` loudest channels of `axis`: those whose largest finite |x|
 * is the largest, of equal ones the first. Of these the codes are 0 and count for no amax; their elements lie apart, as by
 * fp16. So codes * scale, with what lies apart put in its place, is the tensor; a product with it is the sum of two.
 * bf16-lossless: of bf16 and fp16 only, one stream of bytes (kernels/lossless.h) that decodes to the same bits, whatever they
 * are. How long it is, is known when it has been measured.
 * Decoding ends with the same saturating rounding to the raw dtype. A receipt's errors are those of x' before it:
 * what a reader of the stored form sees.
 * All arithmetic on elements is in binary32 with no fused multiply-add, so that every machine agrees. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "proto/vocab.h"

struct lossless_code;

struct codec_job {
    const void *raw_in; /* encode: the original, elements of dtype */
    void *raw_out;      /* decode: elements of dtype */
    void *data;         /* stored elements: written by encode, read by decode */
    float *scale;       /* one binary32 a unit, or NULL where the codec has none */
    int32_t *zero;      /* one zero point a unit, or NULL where the codec has none */
    int32_t *channels; /* of a codec that splits: the numbers of the channels that lie apart, ascending, `group` of them */
    uint16_t *outliers; /* and their elements, fp16, in the order of the tensor that has them alone */
    uint32_t *marks;   /* and, to encode on the host, a word a channel to work with */
    uint64_t data_bytes; /* of a codec whose size varies: what `data` has room for, or holds */
    const struct lossless_code *code; /* of that codec, to encode by */
    uint64_t dims[HBM_RANK_MAX];
    unsigned rank;
    unsigned dtype; /* F32, F16 or BF16: of the raw side */
    struct hbm_encoding encoding;
    bool ranged; /* encode, one unit: its range is lo to hi, and not what its elements span */
    float lo, hi; /* finite, lo <= 0 <= hi; of a symmetric codec lo = -hi */
};

/* How it lies: codes in the order of the elements, those of 4 bits two a byte, the first in the low bits, over the whole
 * tensor (the last byte of an odd one ends with 0): as ONNX's INT4 and INT8, and as torch's int8, float8_e4m3fn and
 * float8_e5m2. Scales multiply what is stored, as those of ONNX's DequantizeLinear (of groups: blocked) and of
 * torch._scaled_mm do. Zero points are 32-bit integers, one a scale, subtracted from what is stored before that: as those
 * of torch.fake_quantize_per_channel_affine, torchao and oneDNN; ONNX's DequantizeLinear takes them cast to the codes' own type.
 * Units lie in the order of the tensor: channel i has scale[i]; group g of row r has scale[r*groups_a_row + g],
 * a row being one run along the last axis. */

/* True if (dtype, encoding, shape) is something the codecs take: `stored` must be the codec's own, and a codec
 * without scales takes only HBM_PER_TENSOR. The functions below expect a job for which this is true. */
bool codec_supported(unsigned dtype, const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank);

/* Reference, on host memory, single-threaded. encode fills *receipt except seconds and bytes_*. */
void codec_encode_host(const struct codec_job *job, struct hbm_receipt *receipt);
/* The same for a part of a tensor, whose sums are added up by the caller (kernels/tally.h). */
struct codec_tally;
void codec_tally_host(const struct codec_job *job, struct codec_tally *tally);
void codec_decode_host(const struct codec_job *job);

/* CUDA, on device memory, asynchronous on `stream` (a cudaStream_t). Return a cudaError_t as int.
 * Pointers are aligned to their elements, and a stream of bf16-lossless to 16 bytes; 16-byte alignment of the raw and
 * stored sides makes it fast.
 * `workspace` is device memory of codec_workspace_bytes(job) (0 is possible), aligned to 8; the receipt's raw sums
 * land in it and codec_receipt_cuda, called after the stream has finished, copies them out and fills *receipt. */
uint64_t codec_workspace_bytes(const struct codec_job *job);
int codec_encode_cuda(const struct codec_job *job, void *workspace, void *stream);
int codec_decode_cuda(const struct codec_job *job, void *stream);
/* After an encode in the same workspace, what was stored beside the original: a second read of both. Without it a quality has
 * nothing but `clipped`. */
int codec_measure_cuda(const struct codec_job *job, void *workspace, void *stream);
/* quality may be NULL. */
int codec_receipt_cuda(const struct codec_job *job, const void *workspace, struct hbm_receipt *receipt,
                       struct hbm_quality *quality);

#ifdef __cplusplus
}
#endif
