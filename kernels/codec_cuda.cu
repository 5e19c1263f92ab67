/* The CUDA side of codec.h: one table says which kernel does what; the rest of the host names none. */
#include "kernels/chunk.cuh"
#include "kernels/launch.cuh"

/* A unit longer than this is spread over many blocks rather than read by one. */
#define FUSED_MAX 32768u
/* Long units are still one block's work when there are enough of them to fill the device. */
#define FUSED_UNITS 1024u
#define FUSED_LONG_MAX (1u << 18)

struct codec_row {
    codec_launch *encode;       /* takes any view */
    codec_launch *encode_short; /* for contiguous, short units; NULL if the same */
    codec_launch *decode;
    codec_launch *measure;
};

enum { RAW_F32, RAW_F16, RAW_BF16, RAW_TYPES };
enum { CODECS = HBM_CODEC_INT8_ASYM + 1, GRANULARITIES = HBM_PER_GROUP + 1 };

/* clang-format off */
#define NONE {nullptr, nullptr, nullptr, nullptr}
#define ONE_UNIT(codec, raw) {codec##_two_pass_encode<raw>, nullptr, codec##_decode<raw>, codec##_measure<raw>}
#define MANY_UNITS(codec, raw) {codec##_two_pass_encode<raw>, codec##_fused_encode<raw>, codec##_decode<raw>, codec##_measure<raw>}

#define OF_RAW_TYPES(row, codec) {row(codec, f32), row(codec, f16), row(codec, bf16)}
#define NO_CODEC_ROW(codec, raw) {NONE, NONE, NONE}
#define HALVES_ROW(stored, raw) {{halves_encode<raw, stored>, nullptr, halves_decode<raw, stored>, halves_measure<raw, stored>}, NONE, NONE}
#define ANY_UNITS_ROW(codec, raw) {ONE_UNIT(codec, raw), MANY_UNITS(codec, raw), MANY_UNITS(codec, raw)}
#define TENSOR_ROW(codec, raw) {ONE_UNIT(codec, raw), NONE, NONE}
#define GROUPS_ROW(codec, raw) {NONE, NONE, MANY_UNITS(codec, raw)}
/* clang-format on */

/* Rows by enum hbm_codec, then raw type, then enum hbm_granularity. */
static const struct codec_row table[CODECS][RAW_TYPES][GRANULARITIES] = {
    OF_RAW_TYPES(NO_CODEC_ROW, ),
    OF_RAW_TYPES(HALVES_ROW, f16),
    OF_RAW_TYPES(HALVES_ROW, bf16),
    OF_RAW_TYPES(ANY_UNITS_ROW, int8),
    OF_RAW_TYPES(ANY_UNITS_ROW, fp8_e4m3),
    OF_RAW_TYPES(ANY_UNITS_ROW, fp8_e5m2),
    OF_RAW_TYPES(TENSOR_ROW, fp16_scaled),
    OF_RAW_TYPES(GROUPS_ROW, int4_packed),
    OF_RAW_TYPES(ANY_UNITS_ROW, int8_asym),
};

static_assert(HBM_CODEC_RAW == 0 && HBM_CODEC_FP16 == 1 && HBM_CODEC_BF16 == 2 && HBM_CODEC_INT8 == 3 &&
                  HBM_CODEC_FP8_E4M3 == 4 && HBM_CODEC_FP8_E5M2 == 5 &&
                  HBM_CODEC_FP16_SCALED == 6 && HBM_CODEC_INT4 == 7 &&
                  HBM_CODEC_INT8_ASYM == 8,
              "the table's rows follow codecs.def");

static const struct codec_row *row_of(const struct codec_job *job)
{
    unsigned raw = job->dtype == HBM_F32 ? RAW_F32 : job->dtype == HBM_F16 ? RAW_F16 : RAW_BF16;

    if (job->encoding.codec >= CODECS || job->encoding.granularity >= GRANULARITIES)
        return nullptr;
    const struct codec_row *row = &table[job->encoding.codec][raw][job->encoding.granularity];
    return row->encode ? row : nullptr;
}

static bool vectors_fit(const void *a, const void *b)
{
    return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

static bool units_are_short(const struct codec_view &view)
{
    if (!view.count || view.period != view.rows)
        return false;
    return view.group <= FUSED_MAX || (view.units >= FUSED_UNITS && view.group <= FUSED_LONG_MAX);
}

uint64_t codec_workspace_bytes(const struct codec_job *job)
{
    uint64_t channels = hbm_codec_splits(job->encoding.codec) ? job->dims[job->encoding.axis] : 0;

    return sizeof(struct codec_tally) + channels * sizeof(*job->marks);
}

/* Of what lies raw and what is stored of it. */
static struct codec_call call_of(const struct codec_job *job, void *workspace, void *stream)
{
    return {job->raw_in,
            job->data,
            job->scale,
            job->zero,
            static_cast<struct codec_tally *>(workspace),
            codec_view_of(job),
            vectors_fit(job->raw_in, job->data),
            static_cast<cudaStream_t>(stream),
            job->ranged,
            job->lo,
            job->hi};
}

int codec_encode_cuda(const struct codec_job *job, void *workspace, void *stream)
{
    const struct codec_row *row = row_of(job);
    struct codec_call call = call_of(job, workspace, stream);

    if (!row && !hbm_codec_varies(job->encoding.codec) && !hbm_codec_splits(job->encoding.codec))
        return cudaErrorInvalidValue;
    cudaError_t error = cudaMemsetAsync(workspace, 0, sizeof(struct codec_tally), call.stream);
    if (error)
        return error;
    if (hbm_codec_splits(job->encoding.codec))
        return split_encode_cuda(job, call);
    if (!row)
        return lossless_encode_cuda(job, call.tally, call.stream);
    return row->encode_short && units_are_short(call.view) ? row->encode_short(call) : row->encode(call);
}

int codec_measure_cuda(const struct codec_job *job, void *workspace, void *stream)
{
    const struct codec_row *row = row_of(job);
    struct codec_call call = call_of(job, workspace, stream);

    if (hbm_codec_varies(job->encoding.codec)) /* there is no error, and what is not finite was counted on the way */
        return cudaSuccess;
    if (hbm_codec_splits(job->encoding.codec))
        return split_measure_cuda(job, call);
    return row ? row->measure(call) : cudaErrorInvalidValue;
}

int codec_decode_cuda(const struct codec_job *job, void *stream)
{
    const struct codec_row *row = row_of(job);
    struct codec_call call = {job->data,
                              job->raw_out,
                              job->scale,
                              job->zero,
                              nullptr,
                              codec_view_of(job),
                              vectors_fit(job->data, job->raw_out),
                              static_cast<cudaStream_t>(stream),
                              false,
                              0,
                              0};

    if (hbm_codec_varies(job->encoding.codec))
        return lossless_decode_cuda(job, call.stream);
    if (hbm_codec_splits(job->encoding.codec))
        return split_decode_cuda(job, call);
    return row ? row->decode(call) : cudaErrorInvalidValue;
}

int codec_receipt_cuda(const struct codec_job *job, const void *workspace, struct hbm_receipt *receipt,
                       struct hbm_quality *quality)
{
    struct codec_tally tally;
    cudaError_t error = cudaMemcpy(&tally, workspace, sizeof(tally), cudaMemcpyDeviceToHost);

    if (!error)
        codec_receipt_of(&tally, codec_view_of(job).count, receipt);
    if (!error && quality)
        codec_quality_of(&tally, &job->encoding, quality);
    return error;
}
