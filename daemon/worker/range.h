/* The range that a codec is to clip to, as the owner asked for it. */
#pragma once

#include "daemon/worker/device.h"

/* With min/max there is none. Reads the original, on the device, once for each side that is looked at apart, or (of F32) twice; or, where it is to be looked for in
 * what was observed, the counts in `bins`, which else is not used. */
int range_find(const struct job_calibration *calibration, int bins, struct codec_job *codec, struct failure *failure);
