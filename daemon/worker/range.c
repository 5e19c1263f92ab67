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

/* The magnitude of that rank, of the side that was counted; 0 of rank 0. */
static int magnitude_of(struct histogram_job job, const uint64_t *bins, uint64_t rank, float *magnitude, struct failure *failure)
{
    if (!rank)
        return 0;
    uint32_t bin = calibrate_bin(bins, &rank);

    *magnitude = histogram_value(job.dtype, bin);
    if (job.dtype != HBM_F32)
        return 0;
    _cleanup_free_ uint64_t *fine = malloc(HISTOGRAM_FINE * sizeof(*fine));
    if (!fine)
        return fail(failure, HBM_E_SYSTEM, "out of memory for a histogram");
    job.within = bin;
    if (count(&job, fine, failure))
        return failure->error;
    *magnitude = element_float(bin << 16 | calibrate_bin(fine, &rank));
    return 0;
}

static int choose(const struct calibrate_counts *counts, struct codec_job *codec, unsigned method, float below, float above, struct failure *failure)
{
    struct calibrate_range range = {-below, above};

    if (!calibrate_search(counts, &codec->encoding, method, &range))
        return fail(failure, HBM_E_SYSTEM, "out of memory for the search of a range");
    codec->lo = range.lo < 0 ? range.lo : 0;
    codec->hi = range.hi;
    return 0;
}

static int search_symmetric(const struct job_calibration *c, struct histogram_job *job, uint64_t *bins, struct codec_job *codec,
                            struct failure *failure)
{
    float most = 0;

    if (count(job, bins, failure))
        return failure->error;
    uint64_t finite = calibrate_finite(bins, job->dtype);
    if (finite && magnitude_of(*job, bins, calibrate_rank(finite, c->method, c->parameter), &most, failure))
        return failure->error;
    return choose(&(struct calibrate_counts){.above = bins, .dtype = job->dtype}, codec, c->method, most, most, failure);
}

/* bins: HISTOGRAM_BINS for what lies above 0, and as many for what lies below. */
static int search_ends(const struct job_calibration *c, struct histogram_job *job, uint64_t *bins, struct codec_job *codec,
                       struct failure *failure)
{
    float reach[2] = {0, 0};
    uint64_t finite[2];

    for (unsigned side = 0; side < 2; side++) {
        job->side = side ? HISTOGRAM_BELOW : HISTOGRAM_ABOVE;
        if (count(job, bins + side * HISTOGRAM_BINS, failure))
            return failure->error;
        finite[side] = calibrate_finite(bins + side * HISTOGRAM_BINS, job->dtype);
    }
    for (unsigned side = 0; side < 2; side++) {
        job->side = side ? HISTOGRAM_BELOW : HISTOGRAM_ABOVE;
        uint64_t rank = calibrate_side_rank(finite[side], finite[0] + finite[1], c->method, c->parameter);
        if (magnitude_of(*job, bins + side * HISTOGRAM_BINS, rank, &reach[side], failure))
            return failure->error;
    }
    const struct calibrate_counts counts = {bins, bins + HISTOGRAM_BINS, job->dtype};
    return choose(&counts, codec, c->method, reach[1], reach[0], failure);
}

static bool is_asymmetric(const struct codec_job *codec)
{
    return hbm_codec_zero_bytes(codec->encoding.codec) != 0;
}

static int search(const struct job_calibration *c, struct codec_job *codec, struct failure *failure)
{
    struct histogram_job job = {.raw = codec->raw_in, .dtype = codec->dtype, .within = HISTOGRAM_ALL};
    _cleanup_free_ uint64_t *bins = malloc(2 * HISTOGRAM_BINS * sizeof(*bins));

    if (!bins)
        return fail(failure, HBM_E_SYSTEM, "out of memory for a histogram");
    hbm_shape_elements(codec->dims, codec->rank, &job.count);
    return is_asymmetric(codec) ? search_ends(c, &job, bins, codec, failure) : search_symmetric(c, &job, bins, codec, failure);
}

static float farther(const struct job_calibration *c)
{
    return c->hi > -c->lo ? c->hi : -c->lo;
}

/* The counts of F32 tell a magnitude to one of 128 steps between powers of two: its upper end is taken. */
static float observed_magnitude(const uint64_t *bins, const struct job_calibration *c, uint64_t rank)
{
    uint32_t bin = calibrate_bin(bins, &rank);

    return fminf(c->dtype == HBM_F32 ? element_float(bin << 16 | 0xffffu) : histogram_value(c->dtype, bin), farther(c));
}

/* Of magnitudes. An asymmetric range is found in them where all lie on one side, or where the search asks for no signs. */
static int search_counts(const struct job_calibration *c, const uint64_t *bins, struct codec_job *codec, struct failure *failure)
{
    unsigned method = c->method & ~(unsigned)HBM_CALIBRATE_OBSERVED;
    uint64_t finite = calibrate_finite(bins, c->dtype);
    struct calibrate_counts counts = {.above = bins, .dtype = c->dtype};

    if (!is_asymmetric(codec)) {
        float most = observed_magnitude(bins, c, calibrate_rank(finite, method, c->parameter));
        return choose(&counts, codec, method, most, most, failure);
    }
    if (job_wants_signs(c))
        return fail(failure, HBM_E_UNSUPPORTED, "what was observed on both sides of 0 was counted without signs");
    if (c->lo < 0 && c->hi <= 0)
        counts = (struct calibrate_counts){.below = bins, .dtype = c->dtype};
    float most = observed_magnitude(bins, c, calibrate_side_rank(finite, finite, method, c->parameter));
    return choose(&counts, codec, method, fminf(-c->lo, most), fminf(c->hi, most), failure);
}

static int search_observed(const struct job_calibration *c, int fd, struct codec_job *codec, struct failure *failure)
{
    size_t size = 0;
    uint64_t *bins = memfd_map_sealed(fd, JOB_OBSERVE_BYTES, &size);

    if (!bins || size != JOB_OBSERVE_BYTES || !calibrate_finite(bins, c->dtype))
        fail(failure, HBM_E_BAD_REQUEST, "what was observed is no histogram, or one of nothing");
    else
        search_counts(c, bins, codec, failure);
    if (bins)
        munmap(bins, size);
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
    codec->hi = is_asymmetric(codec) ? calibration->hi : farther(calibration);
    codec->lo = is_asymmetric(codec) ? calibration->lo : -codec->hi;
    return 0;
}
