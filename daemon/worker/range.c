#include "daemon/worker/range.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "kernels/calibrate.h"

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

static bool is_sound(const struct job_calibration *c)
{
    return isfinite(c->lo) && isfinite(c->hi) && c->lo <= 0 && c->hi >= 0;
}

int range_find(const struct job_calibration *calibration, struct codec_job *codec, struct failure *failure)
{
    if (calibration->method == HBM_CALIBRATE_MINMAX)
        return 0;
    if (!calibrate_takes(&codec->encoding, calibration->method, calibration->parameter) || !is_sound(calibration))
        return fail(failure, HBM_E_UNSUPPORTED, "no such range is chosen for this codec and granularity");
    if (calibration->method != HBM_CALIBRATE_GIVEN) {
        if (search(calibration, codec, failure))
            return failure->error;
    } else {
        codec->hi = calibration->hi > -calibration->lo ? calibration->hi : -calibration->lo;
        codec->lo = -codec->hi;
    }
    codec->ranged = true;
    return 0;
}
