/* fp16 and bf16 on the host: one rounding an element, no scales. */
#include "kernels/reference.h"

static void encode(const struct codec_job *job, unsigned stored, uint32_t most, const struct codec_view *view,
                   struct codec_tally *tally)
{
    for (uint64_t i = 0; i < view->count; i++) {
        float x = element_load(job->raw_in, job->dtype, i);

        element_store(job->data, stored, i, x);
        codec_tally_add(tally, x, element_load(job->data, stored, i), element_magnitude(x) > most);
    }
}

static void decode(const struct codec_job *job, unsigned stored, const struct codec_view *view)
{
    for (uint64_t i = 0; i < view->count; i++)
        element_store(job->raw_out, job->dtype, i, element_load(job->data, stored, i));
}

static void fp16_encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally)
{
    encode(job, HBM_F16, ELEMENT_F16_MAX, view, tally);
}

static void fp16_decode(const struct codec_job *job, const struct codec_view *view)
{
    decode(job, HBM_F16, view);
}

static void bf16_encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally)
{
    encode(job, HBM_BF16, ELEMENT_BF16_MAX, view, tally);
}

static void bf16_decode(const struct codec_job *job, const struct codec_view *view)
{
    decode(job, HBM_BF16, view);
}

const struct codec_reference codec_reference_fp16 = {fp16_encode, fp16_decode};
const struct codec_reference codec_reference_bf16 = {bf16_encode, bf16_decode};
