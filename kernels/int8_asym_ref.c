/* int8-asym on the host. What a unit reaches below 0 and above it gathers in zero[] (as the bits of a float) and scale[],
 * which become the zero point and the scale there. */
#include "kernels/int8_asym.h"
#include "kernels/reference.h"

static void put_params(const struct codec_job *job, uint64_t unit, float below, float above)
{
    struct int8_asym_params params = int8_asym_params_of(below, above);

    job->scale[unit] = params.scale;
    job->zero[unit] = params.zero;
}

static void measure(const struct codec_job *job, const struct codec_view *view)
{
    struct codec_walk walk = {0}; /* element 0 is the start of unit 0 */

    for (uint64_t i = 0; i < view->units; i++) {
        job->scale[i] = 0;
        job->zero[i] = 0;
    }
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        float x = element_load(job->raw_in, job->dtype, i);

        if (!element_finite(x))
            continue;
        if (x > job->scale[walk.unit])
            job->scale[walk.unit] = x;
        if (-x > element_float((uint32_t)job->zero[walk.unit]))
            job->zero[walk.unit] = (int32_t)element_bits(-x);
    }
    for (uint64_t i = 0; i < view->units; i++)
        put_params(job, i, element_float((uint32_t)job->zero[i]), job->scale[i]);
}

static void encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally)
{
    struct codec_walk walk = {0};

    if (job->ranged)
        put_params(job, 0, -job->lo, job->hi);
    else
        measure(job, view);
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        const struct int8_asym_params params = {job->scale[walk.unit], job->zero[walk.unit]};
        float x = element_load(job->raw_in, job->dtype, i);
        bool clipped;
        int code = int8_asym_code(x, params, &clipped);

        ((int8_t *)job->data)[i] = (int8_t)code;
        codec_tally_add(tally, x, int8_asym_value(code, params), clipped);
    }
}

static void decode(const struct codec_job *job, const struct codec_view *view)
{
    struct codec_walk walk = {0};

    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        const struct int8_asym_params params = {job->scale[walk.unit], job->zero[walk.unit]};

        element_store(job->raw_out, job->dtype, i, int8_asym_value(((const int8_t *)job->data)[i], params));
    }
}

const struct codec_reference codec_reference_int8_asym = {encode, decode};
