/* By what the range of a codec is to be chosen: as text, and for one buffer. */
#pragma once

#include "daemon/core/recode.h"
#include "daemon/core/verbs.h"

/* "minmax", "percentile:P", "mse", "entropy", "range:T", or "observed", "observed:" with one of these or "average".
 * NULL: minmax. What is no text of these, or nothing for that codec and granularity, is refused in *why (static).
 */
bool calibration_parse(const char *text, struct hbm_encoding *encoding, struct job_calibration *calibration,
                       const char **why);
/* recode->calibration, for that buffer: where it goes by what was observed, with the range of that. 0, or an error
 * with *why. */
int calibration_for(const struct buffer *buffer, const struct principal *who, const struct compress_args *args,
                    struct recode *recode, const char **why);
/* Of a step: what was observed, as its job takes it. An fd; or -errno, -ESTALE where it is not there any more. */
int calibration_table(struct core *core, uint64_t observation);
