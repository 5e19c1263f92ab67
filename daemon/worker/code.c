/* ENCODE and DECODE: one buffer between its raw form in one extent and its stored form in another, a piece after the other. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/worker/code_cut.h"
#include "daemon/worker/job.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/range.h"

#define AHEAD 2u /* pieces queued: the device goes from one to the next while we look at what is done */

struct forms {
    struct codec_job codec;
    struct view source, target;
    uint64_t raw_bytes, data_bytes;
    uint64_t zero, units_bytes;  /* from the scales: zero points, and the end of all */
    uint64_t channels, outliers; /* likewise, of a codec that splits */
    uint64_t stored_bytes;      /* without what aligns them */
};

static bool fits(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset % HBM_ALIGN == 0 && offset <= size && bytes <= size - offset;
}

/* Of a codec that splits, what lies behind the scale. */
static bool measure_split(struct forms *f, const struct job_code *code, uint64_t *bytes)
{
    uint64_t elements;

    *bytes = 0;
    if (!hbm_codec_splits(code->encoding.codec))
        return true;
    if (!hbm_split_elements(&code->encoding, code->dims, code->rank, &elements))
        return false;
    job_split_layout(code->encoding.group, elements, &f->channels, &f->outliers, &f->units_bytes);
    *bytes = code->encoding.group * sizeof(*f->codec.channels) + elements * sizeof(*f->codec.outliers);
    return true;
}

/* Sizes of both forms from the shape; refuses what the codecs do not take or the extents do not hold. */
static int measure(struct forms *f, const struct job_code *code, const struct job_extent *raw,
                   const struct job_extent *stored, struct failure *failure)
{
    const struct hbm_encoding *e = &code->encoding;
    uint64_t units = 0, split;

    if (hbm_codec_varies(e->codec))
        return fail(failure, HBM_E_UNSUPPORTED, "by that codec memory is packed and unpacked, and no buffer by itself");
    if (code->rank > HBM_RANK_MAX || !codec_supported(code->dtype, e, code->dims, code->rank))
        return fail(failure, HBM_E_UNSUPPORTED, "no codec takes this element type, shape and encoding together");
    if (!hbm_shape_bytes(code->dims, code->rank, code->dtype, &f->raw_bytes) ||
        !hbm_shape_bytes(code->dims, code->rank, hbm_codec_stored_dtype(e->codec), &f->data_bytes) ||
        (hbm_codec_scale_bytes(e->codec) && !hbm_encoding_units(e, code->dims, code->rank, &units)))
        return fail(failure, HBM_E_BAD_REQUEST, "the shape overflows");
    if (!job_units_layout(e->codec, units, &f->zero, &f->units_bytes) || !measure_split(f, code, &split))
        return fail(failure, HBM_E_BAD_REQUEST, "the scales overflow");
    if (!fits(code->raw_offset, f->raw_bytes, raw->size) || !fits(code->data_offset, f->data_bytes, stored->size) ||
        !fits(code->scale_offset, f->units_bytes, stored->size))
        return fail(failure, HBM_E_BAD_REQUEST, "a buffer is not aligned or reaches beyond its extent");
    f->stored_bytes = f->data_bytes + units * (hbm_codec_scale_bytes(e->codec) + hbm_codec_zero_bytes(e->codec)) + split;
    f->codec.rank = code->rank;
    f->codec.dtype = code->dtype;
    f->codec.encoding = *e;
    memcpy(f->codec.dims, code->dims, sizeof(f->codec.dims));
    return 0;
}

static int open_forms(struct job *job, struct forms *f, const struct job_extent *source,
                      const struct job_extent *target)
{
    unsigned next = 0;
    int source_fd = source->kind == JOB_EXTENT_CUDA_IPC ? -1 : job->fds[next++];
    int target_fd = target->kind == JOB_EXTENT_CUDA_IPC ? -1 : job->fds[next];

    if (source->kind == JOB_EXTENT_DISK || target->kind == JOB_EXTENT_DISK)
        return fail(&job->failure, HBM_E_UNSUPPORTED, "codecs work on device and host memory, not on disk");
    if (device_map(source, source_fd, &f->source, &job->failure))
        return job->failure.error;
    if (device_map(target, target_fd, &f->target, &job->failure)) {
        device_unmap(&f->source);
        return job->failure.error;
    }
    return 0;
}

static void place_stored(struct forms *f, const struct job_code *code, unsigned char *stored)
{
    unsigned char *scale = stored + code->scale_offset;

    f->codec.data = stored + code->data_offset;
    f->codec.scale = hbm_codec_scale_bytes(code->encoding.codec) ? (float *)scale : NULL;
    f->codec.zero = hbm_codec_zero_bytes(code->encoding.codec) ? (int32_t *)(scale + f->zero) : NULL;
    if (hbm_codec_splits(code->encoding.codec)) {
        f->codec.channels = (int32_t *)(scale + f->channels);
        f->codec.outliers = (uint16_t *)(scale + f->outliers);
    }
}

static void close_forms(struct forms *f)
{
    device_unmap(&f->target);
    device_unmap(&f->source);
}

static int check_quality(const struct job_encode_request *r, const struct hbm_receipt *receipt,
                         struct failure *failure)
{
    /* Written so that a NaN is outside of every bound. */
    if (r->min_sqnr_db > 0 && !(receipt->sqnr_db >= r->min_sqnr_db))
        return fail(failure, HBM_E_QUALITY, "signal to noise is %.2f dB, at least %.2f dB was asked for",
                    receipt->sqnr_db, r->min_sqnr_db);
    if (r->max_error > 0 && !(receipt->max_abs_error <= r->max_error))
        return fail(failure, HBM_E_QUALITY, "the largest error is %g, at most %g was asked for",
                    receipt->max_abs_error, r->max_error);
    return 0;
}

/* ---- Pieces ---- */

struct coding {
    struct job *job;
    struct code_cut cut;
    unsigned char *sums; /* scratch memory of the device's, a tally a piece; NULL: it decodes */
    struct device_mark marks[AHEAD];
};

static int queue_piece(struct coding *c, uint64_t index, struct failure *failure)
{
    struct codec_job piece = code_cut_piece(&c->cut, index);
    struct device_mark *mark = &c->marks[index % AHEAD];

    if (pace_wait(c->job, code_cut_bytes(&c->cut, index), failure) || (!mark->event && device_mark_new(mark, failure)))
        return failure->error;
    if (c->sums ? device_encode_queued(DEVICE_COMPUTE, &piece, (struct codec_tally *)c->sums + index, failure)
                : device_decode_queued(DEVICE_COMPUTE, &piece, failure))
        return failure->error;
    return device_mark(DEVICE_COMPUTE, mark, failure);
}

static int land_piece(struct coding *c, uint64_t index, struct failure *failure)
{
    if (!device_wait(&c->marks[index % AHEAD], failure))
        job_advance(c->job, code_cut_bytes(&c->cut, index));
    return failure->error;
}

static int run_pieces(struct coding *c, struct failure *failure)
{
    uint64_t landed = 0;

    for (uint64_t i = 0; i < c->cut.pieces; i++)
        if ((i >= AHEAD && land_piece(c, landed++, failure)) || queue_piece(c, i, failure))
            return failure->error;
    while (landed < c->cut.pieces)
        if (land_piece(c, landed++, failure))
            return failure->error;
    return 0;
}

/* Nothing is queued any more when this returns. */
static int code_pieces(struct coding *c, struct failure *failure)
{
    if (run_pieces(c, failure))
        device_drain(DEVICE_COMPUTE);
    for (unsigned i = 0; i < AHEAD; i++)
        device_mark_free(&c->marks[i]);
    return failure->error;
}

static int join_sums(struct coding *c, struct hbm_receipt *receipt, struct hbm_quality *quality, struct failure *failure)
{
    uint64_t n = c->cut.pieces, elements = 0;
    _cleanup_free_ struct codec_tally *tallies = calloc(n, sizeof(*tallies));
    struct codec_tally sum = {0};

    if (!tallies)
        return fail(failure, HBM_E_SYSTEM, "out of memory for the sums of %llu pieces", (unsigned long long)n);
    if (device_copy(DEVICE_COMPUTE, tallies, c->sums, n * sizeof(*tallies), failure))
        return failure->error;
    device_drain(DEVICE_COMPUTE);
    for (uint64_t i = 0; i < n; i++) {
        codec_tally_join(&sum, &tallies[i]);
        elements += code_cut_bytes(&c->cut, i) / (hbm_dtype_bits(c->cut.whole.dtype) / 8);
    }
    codec_receipt_of(&sum, elements, receipt);
    codec_quality_of(&sum, &c->cut.whole.encoding, quality);
    return 0;
}

static int encode_pieces(struct coding *c, struct hbm_receipt *receipt, struct hbm_quality *quality, struct failure *failure)
{
    uint64_t bytes = c->cut.pieces * sizeof(struct codec_tally), start = monotonic_ns();

    if (device_scratch_new(bytes, &c->sums, failure))
        return failure->error;
    if (!device_clear(DEVICE_COMPUTE, c->sums, bytes, failure) && !code_pieces(c, failure))
        join_sums(c, receipt, quality, failure);
    receipt->seconds = (double)(monotonic_ns() - start) / 1e9;
    device_scratch_free(c->sums, bytes);
    return failure->error;
}

static int encode(struct job *job, const struct codec_job *codec, struct hbm_receipt *receipt, struct hbm_quality *quality)
{
    struct coding c = {.job = job, .cut = code_cut(codec, true, device_codes_at_once())};

    if (c.cut.pieces > 1)
        return encode_pieces(&c, receipt, quality, &job->failure);
    return pace_wait(job, 0, &job->failure) ? job->failure.error : device_encode(codec, receipt, quality, &job->failure);
}

static int decode(struct job *job, const struct codec_job *codec)
{
    struct coding c = {.job = job, .cut = code_cut(codec, false, device_codes_at_once())};

    if (c.cut.pieces > 1)
        return code_pieces(&c, &job->failure);
    return pace_wait(job, 0, &job->failure) ? job->failure.error : device_decode(codec, &job->failure);
}

/* Of one that was not measured from end to end. */
static void tell_range(const struct job_calibration *calibration, const struct codec_job *codec, struct hbm_quality *quality)
{
    quality->method = calibration->method;
    quality->parameter = calibration->parameter;
    if (codec->ranged) {
        quality->lo = codec->lo;
        quality->hi = codec->hi;
    }
}

/* ---- The jobs ---- */

void job_encode(struct job *job)
{
    const struct job_encode_request *r = &job->request.encode;
    struct hbm_receipt *receipt = &job->reply.encode.receipt;
    struct hbm_quality *quality = &job->reply.encode.quality;
    struct forms f = {0};

    if (measure(&f, &r->code, &r->source, &r->target, &job->failure) || job_poll(job, &job->failure) ||
        open_forms(job, &f, &r->source, &r->target))
        return;
    f.codec.raw_in = f.source.bytes + r->code.raw_offset;
    place_stored(&f, &r->code, f.target.bytes);
    if (!range_find(&r->calibration, job->n_fds ? job->fds[job->n_fds - 1] : -1, &f.codec, &job->failure) && !encode(job, &f.codec, receipt, quality)) {
        tell_range(&r->calibration, &f.codec, quality);
        receipt->bytes_before = f.raw_bytes;
        receipt->bytes_after = f.stored_bytes;
        check_quality(r, receipt, &job->failure);
    }
    close_forms(&f);
}

void job_decode(struct job *job)
{
    const struct job_decode_request *r = &job->request.decode;
    uint64_t start = monotonic_ns();
    struct forms f = {0};

    if (measure(&f, &r->code, &r->target, &r->source, &job->failure) || job_poll(job, &job->failure) ||
        open_forms(job, &f, &r->source, &r->target))
        return;
    f.codec.raw_out = f.target.bytes + r->code.raw_offset;
    place_stored(&f, &r->code, f.source.bytes);
    decode(job, &f.codec);
    close_forms(&f);
    job->reply.decode.nanoseconds = monotonic_ns() - start;
}
