/* int8 on the host: the amax of every unit gathers in scale[], becomes the scale there, then the elements are
 * coded. */
#include "kernels/reference.h"

static void measure(const struct codec_job *job, const struct codec_view *view)
{
    struct codec_walk walk = {0}; /* element 0 is the start of unit 0 */

    for (uint64_t i = 0; i < view->units; i++)
        job->scale[i] = 0;
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        float magnitude = element_float(element_magnitude(element_load(job->raw_in, job->dtype, i)));

        if (magnitude > job->scale[walk.unit])
            job->scale[walk.unit] = magnitude;
    }
    for (uint64_t i = 0; i < view->units; i++)
        job->scale[i] = int8_scale(job->scale[i]);
}

static void encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally)
{
    int8_t *data = job->data;
    struct codec_walk walk = {0};

    measure(job, view);
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        float x = element_load(job->raw_in, job->dtype, i), scale = job->scale[walk.unit];
        bool clipped;
        int code = int8_code(x, scale, &clipped);

        data[i] = (int8_t)code;
        codec_tally_add(tally, x, int8_value(code, scale), clipped);
    }
}

static void decode(const struct codec_job *job, const struct codec_view *view)
{
    const int8_t *data = job->data;
    struct codec_walk walk = {0};

    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk))
        element_store(job->raw_out, job->dtype, i, int8_value(data[i], job->scale[walk.unit]));
}

const struct codec_reference codec_reference_int8 = {encode, decode};
