#include "daemon/worker/range.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/base/cleanup.h"
#include "kernels/calibrate.h"
#include "proto/memfd.h"

static int count(const struct histogram_job *job, uint64_t *counts, struct failure *failure)
{
    uint64_t bytes = (job->within == HISTOGRAM_ALL ? HISTOGRAM_BINS : HISTOGRAM_FINE) * sizeof(*counts);
    unsigned char *there;

    if (device_scratch_new(bytes, &there, failure))
        return failure->error;
    if (!device_clear(DEVICE_COMPUTE, there, bytes, failure) &&
        !device_histogram_queued(DEVICE_COMPUTE, job, (uint64_t *)there, failure))
        device_copy(DEVICE_COMPUTE, counts, there, bytes, failure);
    device_drain(DEVICE_COMPUTE);
    device_scratch_free(there, bytes);
    return failure->error;
}

/* The magnitude of that rank. */
static int magnitude_of(struct histogram_job *job, const uint64_t *bins, uint64_t rank, float *magnitude, struct failure *failure)
{
    uint32_t bin = calibrate_bin(bins, &rank);

    *magnitude = histogram_value(job->dtype, bin);
    if (job->dtype != HBM_F32)
        return 0;
    _cleanup_free_ uint64_t *fine = malloc(HISTOGRAM_FINE * sizeof(*fine));
    if (!fine)
        return fail(failure, HBM_E_SYSTEM, "out of memory for a histogram");
    job->within = bin;
    if (count(job, fine, failure))
        return failure->error;
    *magnitude = element_float(bin << 16 | calibrate_bin(fine, &rank));
    return 0;
}

static int search(const struct job_calibration *calibration, struct codec_job *codec, struct failure *failure)
{
    struct histogram_job job = {.raw = codec->raw_in, .dtype = codec->dtype, .within = HISTOGRAM_ALL};
    _cleanup_free_ uint64_t *bins = malloc(HISTOGRAM_BINS * sizeof(*bins));
    float most = 0;

    if (!bins)
        return fail(failure, HBM_E_SYSTEM, "out of memory for a histogram");
    hbm_shape_elements(codec->dims, codec->rank, &job.count);
    if (count(&job, bins, failure))
        return failure->error;
    uint64_t finite = calibrate_finite(bins, codec->dtype);
    if (finite && magnitude_of(&job, bins, calibrate_rank(finite, calibration->method, calibration->parameter), &most, failure))
        return failure->error;
    if (!calibrate_search(bins, codec->dtype, &codec->encoding, calibration->method, most, &codec->hi))
        return fail(failure, HBM_E_SYSTEM, "out of memory for the search of a range");
    codec->lo = -codec->hi;
    return 0;
}

static float farther(const struct job_calibration *c)
{
    return c->hi > -c->lo ? c->hi : -c->lo;
}

/* The counts of F32 tell a magnitude to one of 128 steps between powers of two: its upper end is taken. */
static float observed_magnitude(const uint64_t *bins, const struct job_calibration *c)
{
    uint64_t rank = calibrate_rank(calibrate_finite(bins, c->dtype), c->method & ~(unsigned)HBM_CALIBRATE_OBSERVED, c->parameter);
    uint32_t bin = calibrate_bin(bins, &rank);

    return fminf(c->dtype == HBM_F32 ? element_float(bin << 16 | 0xffffu) : histogram_value(c->dtype, bin), farther(c));
}

static int search_observed(const struct job_calibration *c, int fd, struct codec_job *codec, struct failure *failure)
{
    size_t size = 0;
    uint64_t *bins = memfd_map_sealed(fd, JOB_OBSERVE_BYTES, &size);

    if (!bins || size != JOB_OBSERVE_BYTES || !calibrate_finite(bins, c->dtype))
        fail(failure, HBM_E_BAD_REQUEST, "what was observed is no histogram, or one of nothing");
    else if (!calibrate_search(bins, c->dtype, &codec->encoding, c->method & ~(unsigned)HBM_CALIBRATE_OBSERVED,
                               observed_magnitude(bins, c), &codec->hi))
        fail(failure, HBM_E_SYSTEM, "out of memory for the search of a range");
    if (bins)
        munmap(bins, size);
    codec->lo = -codec->hi;
    return failure->error;
}

static bool is_sound(const struct job_calibration *c)
{
    return isfinite(c->lo) && isfinite(c->hi) && c->lo <= 0 && c->hi >= 0;
}

int range_find(const struct job_calibration *calibration, int bins, struct codec_job *codec, struct failure *failure)
{
    if (calibration->method == HBM_CALIBRATE_MINMAX)
        return 0;
    if (!calibrate_takes(&codec->encoding, calibration->method, calibration->parameter) || !is_sound(calibration))
        return fail(failure, HBM_E_UNSUPPORTED, "no such range is chosen for this codec and granularity");
    codec->ranged = true;
    if (job_takes_bins(calibration))
        return search_observed(calibration, bins, codec, failure);
    if (calibration->method != HBM_CALIBRATE_GIVEN && !(calibration->method & HBM_CALIBRATE_OBSERVED))
        return search(calibration, codec, failure);
    codec->hi = farther(calibration);
    codec->lo = -codec->hi;
    return 0;
}
