/* ENCODE and DECODE: one buffer between its raw form in one extent and its stored form in another. */
#include <string.h>

#include "daemon/worker/device.h"
#include "daemon/worker/job.h"

struct forms {
    struct codec_job codec;
    struct view source, target;
    uint64_t raw_bytes, data_bytes, scale_bytes;
};

static bool fits(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset % HBM_ALIGN == 0 && offset <= size && bytes <= size - offset;
}

/* Sizes of both forms from the shape; refuses what the codecs do not take or the extents do not hold. */
static int measure(struct forms *f, const struct job_code *code, const struct job_extent *raw,
                   const struct job_extent *stored, struct failure *failure)
{
    const struct hbm_encoding *e = &code->encoding;
    uint64_t units = 0;

    if (code->rank > HBM_RANK_MAX || !codec_supported(code->dtype, e, code->dims, code->rank))
        return fail(failure, HBM_E_UNSUPPORTED, "no codec takes this element type, shape and encoding together");
    if (!hbm_shape_bytes(code->dims, code->rank, code->dtype, &f->raw_bytes) ||
        !hbm_shape_bytes(code->dims, code->rank, hbm_codec_stored_dtype(e->codec), &f->data_bytes) ||
        (hbm_codec_scale_bytes(e->codec) && !hbm_encoding_units(e, code->dims, code->rank, &units)))
        return fail(failure, HBM_E_BAD_REQUEST, "the shape overflows");
    if (__builtin_mul_overflow(units, (uint64_t)hbm_codec_scale_bytes(e->codec), &f->scale_bytes))
        return fail(failure, HBM_E_BAD_REQUEST, "the scales overflow");
    if (!fits(code->raw_offset, f->raw_bytes, raw->size) || !fits(code->data_offset, f->data_bytes, stored->size) ||
        !fits(code->scale_offset, f->scale_bytes, stored->size))
        return fail(failure, HBM_E_BAD_REQUEST, "a buffer is not aligned or reaches beyond its extent");
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

void job_encode(struct job *job)
{
    const struct job_encode_request *r = &job->request.encode;
    struct hbm_receipt *receipt = &job->reply.encode.receipt;
    struct forms f = {0};

    if (measure(&f, &r->code, &r->source, &r->target, &job->failure) || job_poll(job, &job->failure) ||
        open_forms(job, &f, &r->source, &r->target))
        return;
    f.codec.raw_in = f.source.bytes + r->code.raw_offset;
    f.codec.data = f.target.bytes + r->code.data_offset;
    f.codec.scale = f.scale_bytes ? (float *)(f.target.bytes + r->code.scale_offset) : NULL;
    if (!device_encode(&f.codec, receipt, &job->failure)) {
        receipt->bytes_before = f.raw_bytes;
        receipt->bytes_after = f.data_bytes + f.scale_bytes;
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
    f.codec.data = f.source.bytes + r->code.data_offset;
    f.codec.scale = f.scale_bytes ? (float *)(f.source.bytes + r->code.scale_offset) : NULL;
    device_decode(&f.codec, &job->failure);
    close_forms(&f);
    job->reply.decode.nanoseconds = monotonic_ns() - start;
}
