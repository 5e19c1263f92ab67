#include "daemon/core/calibration.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/names.h"
#include "daemon/core/observation.h"
#include "proto/memfd.h"

#define GRANULARITY_DEFAULT 0xff

static bool refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return false;
}

/* ---- As text ---- */

/* Digits first: neither a sign nor a word for what is no number. */
static bool parse_real(const char *text, double most, double *value)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    *value = strtod(text, &end);
    return !*end && *value > 0 && *value <= most;
}

static bool parse_method(const char *text, struct job_calibration *calibration)
{
    double most;

    if (!strcmp(text, "minmax"))
        calibration->method = HBM_CALIBRATE_MINMAX;
    else if (!strcmp(text, "mse"))
        calibration->method = HBM_CALIBRATE_MSE;
    else if (!strcmp(text, "entropy"))
        calibration->method = HBM_CALIBRATE_ENTROPY;
    else if (!strncmp(text, "percentile:", 11) && parse_real(text + 11, 100, &calibration->parameter))
        calibration->method = HBM_CALIBRATE_PERCENTILE;
    else if (!strncmp(text, "range:", 6) && parse_real(text + 6, (double)FLT_MAX, &most))
        *calibration =
            (struct job_calibration){.method = HBM_CALIBRATE_GIVEN, .lo = -(float)most, .hi = (float)most};
    else
        return false;
    return true;
}

static bool parse_observed(const char *text, struct job_calibration *calibration)
{
    if (strncmp(text, "observed", 8) || (text[8] && text[8] != ':'))
        return false;
    if (text[8] && !strcmp(text + 9, "average"))
        calibration->method = HBM_CALIBRATE_AVERAGE;
    else if (text[8] && (!parse_method(text + 9, calibration) || calibration->method == HBM_CALIBRATE_GIVEN))
        return false;
    calibration->method |= HBM_CALIBRATE_OBSERVED;
    return true;
}

bool calibration_parse(const char *text, struct hbm_encoding *encoding, struct job_calibration *calibration,
                       const char **why)
{
    bool is_int8 = encoding->codec == HBM_CODEC_INT8 || encoding->codec == HBM_CODEC_INT8_ASYM;

    *calibration = (struct job_calibration){.method = HBM_CALIBRATE_MINMAX};
    if (text && !parse_observed(text, calibration) && !parse_method(text, calibration))
        return refuse(why, "`calibrate` is to be minmax, percentile:P (above 0, at most 100), mse, entropy or "
                           "range:T (above 0); or "
                           "observed, or observed: with minmax, average, percentile:P, mse or entropy");
    if (calibration->method == HBM_CALIBRATE_MINMAX)
        return true;
    if (!is_int8 && encoding->codec != HBM_CODEC_FP8_E4M3 && encoding->codec != HBM_CODEC_FP8_E5M2)
        return refuse(why,
                      "a range that clips is for int8, int8-asym, fp8-e4m3 and fp8-e5m2: others are calibrated by minmax");
    if ((calibration->method & ~(unsigned)HBM_CALIBRATE_OBSERVED) == HBM_CALIBRATE_ENTROPY && !is_int8)
        return refuse(why, "entropy is for int8 and int8-asym, whose codes are even: take mse or a percentile");
    if (encoding->granularity == GRANULARITY_DEFAULT)
        encoding->granularity = HBM_PER_TENSOR;
    if (encoding->granularity != HBM_PER_TENSOR)
        return refuse(why, "all but minmax find one range for the tensor: `granularity` is to be tensor");
    return true;
}

/* ---- For a buffer ---- */

static int from_observation(const struct buffer *from, unsigned codec, struct recode *recode, const char **why)
{
    struct job_calibration *calibration = &recode->calibration;
    bool average = calibration->method == (HBM_CALIBRATE_AVERAGE | HBM_CALIBRATE_OBSERVED);
    const struct hbm_observation *seen = from->observation ? &from->observation->seen : NULL;

    if (!seen) {
        *why = "nothing was observed of it: see `hbmctl observe`, or hbm_observe()";
        return HBM_E_INVALID;
    }
    if (seen->imported && calibration->method != (HBM_CALIBRATE_MINMAX | HBM_CALIBRATE_OBSERVED)) {
        *why = "its range was imported, and no elements were counted: calibrate by observed";
        return HBM_E_INVALID;
    }
    float lo = average ? seen->average_lo : seen->lo, hi = average ? seen->average_hi : seen->hi;
    calibration->lo = lo < 0 ? lo : 0;
    calibration->hi = hi > 0 ? hi : 0;
    calibration->dtype = from->dtype;
    recode->observation = job_takes_bins(calibration) ? from->observation->id : 0;
    if (hbm_codec_zero_bytes(codec) && job_wants_signs(calibration)) {
        *why = "elements on both sides of 0 were observed, and counted without signs, which an asymmetric range by percentile or mse needs: "
               "calibrate by observed, observed:average or observed:entropy, or without observed";
        return HBM_E_INVALID;
    }
    if (calibration->lo < 0 || calibration->hi > 0)
        return 0;
    *why = "nothing but zeros was observed, or nothing finite: that is no range";
    return HBM_E_INVALID;
}

int calibration_for(const struct buffer *buffer, const struct principal *who, const struct compress_args *args,
                    struct recode *recode, const char **why)
{
    const struct buffer *from = buffer;

    recode->calibration = args->calibration;
    if (!(args->calibration.method & HBM_CALIBRATE_OBSERVED))
        return 0;
    if (*args->observed)
        from = names_resolve(&buffer->core->buffer_names, who, args->observed);
    if (from && buffer_visible(from, who))
        return from_observation(from, args->encoding.codec, recode, why);
    *why = "no buffer has the name of the one whose observed ranges are to be used";
    return HBM_E_NOT_FOUND;
}

int calibration_table(struct core *core, uint64_t observation)
{
    const struct observation *found = observation_get(core, observation);

    return found && found->bins ? memfd_sealed("hbm-observed", found->bins, JOB_OBSERVE_BYTES)
                                          : -ESTALE;
}
