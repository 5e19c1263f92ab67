/* The histogram on the host. */
#include "kernels/histogram.h"

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

void histogram_host(const struct histogram_job *job, uint64_t *counts)
{
    if (job->dtype == HBM_F32)
        count_floats(job->raw, job->count, job->within, counts);
    else
        count_words(job->raw, job->count, counts);
}
