/* The histogram on the host. */
#include "kernels/histogram.h"

#include "kernels/reference.h"
#include "kernels/tally.h"

static void count_words(const struct histogram_job *job, uint64_t *counts)
{
    const uint16_t *words = job->raw;
    const uint32_t mask = histogram_mask(job), wanted = histogram_wanted(job);

    for (uint64_t i = 0; i < job->count; i++)
        if ((words[i] & mask) == wanted)
            counts[words[i] & 0x7fffu]++;
}

static void count_floats(const struct histogram_job *job, uint64_t *counts)
{
    const uint32_t *bits = job->raw;
    const uint32_t mask = histogram_mask(job), wanted = histogram_wanted(job);

    for (uint64_t i = 0; i < job->count; i++)
        if ((bits[i] >> 16 & mask) == wanted)
            counts[job->within == HISTOGRAM_ALL ? bits[i] >> 16 & 0x7fffu : bits[i] & 0xffffu]++;
}

static void find_ends(const struct histogram_job *job)
{
    for (uint64_t i = 0; i < job->count; i++) {
        float x = element_load(job->raw, job->dtype, i);

        if (!element_finite(x))
            continue;
        tally_raise(&job->ends->highest, tally_key(x));
        tally_raise(&job->ends->lowest, ~tally_key(x));
    }
}

void histogram_host(const struct histogram_job *job, uint64_t *counts)
{
    if (job->dtype == HBM_F32)
        count_floats(job, counts);
    else
        count_words(job, counts);
    if (job->ends)
        find_ends(job);
}
