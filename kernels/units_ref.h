/* What the plain-C codecs with units have in common: the amax of every unit gathers in scale[], becomes the scale
 * there, then the elements are coded. Inlined with the functions that a codec passes, for the sake of speed. */
#pragma once

#include "kernels/reference.h"

#define UNITS_FN static inline __attribute__((always_inline))

struct unit_code {
    float (*scale)(float amax);
    int (*code)(float x, float scale, bool *clipped);
    float (*value)(int code, float scale);
    int (*get)(const void *data, uint64_t index);
    void (*put)(void *data, uint64_t index, int code);
};

UNITS_FN void units_measure(const struct codec_job *job, const struct codec_view *view, const struct unit_code *how)
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
        job->scale[i] = how->scale(job->scale[i]);
}

UNITS_FN void units_encode(const struct codec_job *job, const struct codec_view *view, struct codec_tally *tally,
                           const struct unit_code *how)
{
    struct codec_walk walk = {0};

    if (job->ranged)
        job->scale[0] = how->scale(job->hi);
    else
        units_measure(job, view, how);
    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk)) {
        float x = element_load(job->raw_in, job->dtype, i), scale = job->scale[walk.unit];
        bool clipped = false;
        int code = how->code(x, scale, &clipped);

        how->put(job->data, i, code);
        codec_tally_add(tally, x, how->value(code, scale), clipped);
    }
}

UNITS_FN void units_decode(const struct codec_job *job, const struct codec_view *view, const struct unit_code *how)
{
    struct codec_walk walk = {0};

    for (uint64_t i = 0; i < view->count; i++, codec_walk_step(view, &walk))
        element_store(job->raw_out, job->dtype, i, how->value(how->get(job->data, i), job->scale[walk.unit]));
}

UNITS_FN int units_get_byte(const void *data, uint64_t index)
{
    return ((const uint8_t *)data)[index];
}

UNITS_FN void units_put_byte(void *data, uint64_t index, int code)
{
    ((uint8_t *)data)[index] = (uint8_t)code;
}

/* A codec's row of reference.h, from its struct unit_code of the same name. */
#define UNITS_REFERENCE(name)                                                                                      \
    static void name##_encode(const struct codec_job *job, const struct codec_view *view,                          \
                              struct codec_tally *tally)                                                           \
    {                                                                                                              \
        units_encode(job, view, tally, &name);                                                                     \
    }                                                                                                              \
    static void name##_decode(const struct codec_job *job, const struct codec_view *view)                          \
    {                                                                                                              \
        units_decode(job, view, &name);                                                                            \
    }                                                                                                              \
    const struct codec_reference codec_reference_##name = {name##_encode, name##_decode}
