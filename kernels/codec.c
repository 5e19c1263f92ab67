/* What the host and the CUDA side share: which jobs are taken, how a shape becomes a view, how sums become a
 * receipt; and the dispatch of the reference. */
#include "kernels/codec.h"

#include <math.h>

#include "kernels/lossless.h"
#include "kernels/reference.h"

static const struct codec_reference *const references[] = {
    [HBM_CODEC_FP16] = &codec_reference_fp16,
    [HBM_CODEC_BF16] = &codec_reference_bf16,
    [HBM_CODEC_INT8] = &codec_reference_int8,
    [HBM_CODEC_FP8_E4M3] = &codec_reference_fp8_e4m3,
    [HBM_CODEC_FP8_E5M2] = &codec_reference_fp8_e5m2,
    [HBM_CODEC_FP16_SCALED] = &codec_reference_fp16_scaled,
    [HBM_CODEC_INT4] = &codec_reference_int4,
    [HBM_CODEC_INT8_ASYM] = &codec_reference_int8_asym,
    [HBM_CODEC_BF16_LOSSLESS] = &codec_reference_bf16_lossless,
    [HBM_CODEC_INT8_SPLIT] = &codec_reference_int8_split,
};

static const struct codec_reference *reference_of(unsigned codec)
{
    return codec < sizeof(references) / sizeof(references[0]) ? references[codec] : NULL;
}

bool codec_supported(unsigned dtype, const struct hbm_encoding *encoding, const uint64_t *dims, unsigned rank)
{
    uint64_t bytes, units, elements;

    if (!hbm_dtype_codable(dtype) || !reference_of(encoding->codec))
        return false;
    if (encoding->stored != hbm_codec_stored_dtype(encoding->codec))
        return false;
    if (hbm_codec_varies(encoding->codec) &&
        (dtype == HBM_F32 || !hbm_shape_elements(dims, rank, &elements) || elements > LOSSLESS_MAX))
        return false;
    if (hbm_codec_splits(encoding->codec) && !hbm_split_elements(encoding, dims, rank, &elements))
        return false;
    return hbm_codec_takes(encoding->codec, encoding->granularity) && hbm_shape_bytes(dims, rank, dtype, &bytes) &&
           hbm_encoding_units(encoding, dims, rank, &units);
}

static uint64_t product(const uint64_t *dims, unsigned from, unsigned to)
{
    uint64_t n = 1;

    for (unsigned i = from; i < to; i++)
        n *= dims[i];
    return n;
}

static uint64_t reciprocal(uint64_t n)
{
    return n > 1 ? (uint64_t)(((unsigned __int128)1 << 64) / n) : UINT64_MAX;
}

struct codec_view codec_view_of(const struct codec_job *job)
{
    struct codec_view view = {.count = product(job->dims, 0, job->rank), .groups = 1};

    if (!hbm_encoding_units(&job->encoding, job->dims, job->rank, &view.units) || !view.count)
        return view;
    switch (job->encoding.granularity) {
    case HBM_PER_CHANNEL:
        view.row = product(job->dims, job->encoding.axis + 1u, job->rank);
        view.period = job->dims[job->encoding.axis];
        break;
    case HBM_PER_GROUP:
        view.row = job->dims[job->rank - 1];
        view.period = view.count / view.row;
        break;
    default:
        view.row = view.count;
        view.period = 1;
    }
    view.rows = view.count / view.row;
    view.group = view.row;
    if (job->encoding.granularity == HBM_PER_GROUP && job->encoding.group < view.row) {
        view.group = job->encoding.group;
        view.groups = view.row / view.group + (view.row % view.group != 0);
    }
    view.per_row = reciprocal(view.row);
    view.per_period = reciprocal(view.period);
    view.per_group = reciprocal(view.group);
    view.per_groups = reciprocal(view.groups);
    return view;
}

static double ratio_db(double signal, double noise)
{
    return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

void codec_receipt_of(const struct codec_tally *tally, uint64_t elements, struct hbm_receipt *receipt)
{
    receipt->sqnr_db = ratio_db(tally->signal, tally->noise);
    receipt->max_abs_error = element_float(tally->max_error);
    receipt->clipped_fraction = elements ? (double)tally->clipped / (double)elements : 0;
    receipt->elements = elements;
    receipt->nonfinite = tally->nonfinite;
}

void codec_quality_of(const struct codec_tally *tally, const struct hbm_encoding *encoding, struct hbm_quality *quality)
{
    float high = tally->highest ? tally_of_key(tally->highest) : 0, low = tally->lowest ? tally_of_key(~tally->lowest) : 0;
    float most = high > -low ? high : -low;

    *quality = (struct hbm_quality){
        .sqnr_inlier_db = ratio_db(tally->inlier_signal, tally->inlier_noise),
        .max_rel_error = element_float(tally->max_relative),
        .clipped = tally->clipped,
        .zeroed = tally->zeroed,
        .nans = tally->nans,
        .infinities = tally->nonfinite - tally->nans,
    };
    if (hbm_codec_zero_bytes(encoding->codec)) {
        quality->lo = low < 0 ? low : 0;
        quality->hi = high > 0 ? high : 0;
    } else if (hbm_codec_scale_bytes(encoding->codec)) {
        quality->lo = -most;
        quality->hi = most;
    }
}

void codec_tally_host(const struct codec_job *job, struct codec_tally *tally)
{
    struct codec_view view = codec_view_of(job);

    *tally = (struct codec_tally){0};
    reference_of(job->encoding.codec)->encode(job, &view, tally);
}

void codec_encode_host(const struct codec_job *job, struct hbm_receipt *receipt)
{
    struct codec_tally tally;

    codec_tally_host(job, &tally);
    codec_receipt_of(&tally, codec_view_of(job).count, receipt);
}

void codec_decode_host(const struct codec_job *job)
{
    struct codec_view view = codec_view_of(job);

    reference_of(job->encoding.codec)->decode(job, &view);
}
