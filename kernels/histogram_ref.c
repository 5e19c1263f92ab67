/* The histogram on the host. */
#include "kernels/histogram.h"

#include "kernels/reference.h"
#include "kernels/tally.h"

static void count_words(const uint16_t *words, uint64_t n, uint64_t *counts)
{
    for (uint64_t i = 0; i < n; i++)
        counts[words[i] & 0x7fffu]++;
}

static void count_floats(const uint32_t *bits, uint64_t n, uint32_t within, uint64_t *counts)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t magnitude = bits[i] & ELEMENT_ABS;

        if (within == HISTOGRAM_ALL)
            counts[magnitude >> 16]++;
        else if (magnitude >> 16 == within)
            counts[magnitude & 0xffffu]++;
    }
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
        count_floats(job->raw, job->count, job->within, counts);
    else
        count_words(job->raw, job->count, counts);
    if (job->ends)
        find_ends(job);
}
