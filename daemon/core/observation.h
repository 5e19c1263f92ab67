/* What was observed of a buffer: the ranges of the batches that were written into it, and how their elements are
 * distributed. The buffer's, and freed with it; charged to its owner; it survives a restart. */
#pragma once

#include "daemon/core/buffer.h"

struct observation {
    uint64_t id;
    struct buffer *buffer;
    struct hbm_observation seen;
    uint64_t *bins; /* JOB_OBSERVE_BINS, of all batches, of the buffer's dtype; NULL: its range was imported */
};

/* The buffer's, made (and charged) where it has none. NULL with error (LIMIT, NO_MEMORY) and detail. */
struct observation *observation_of(struct buffer *buffer, int *error, char *detail);
/* One more batch; `counts` are JOB_OBSERVE_BINS. Writes its row. False: memory is out, and nothing was added. */
bool observation_add(struct observation *observation, const struct job_observe_reply *batch, uint64_t elements,
                     const uint64_t *counts, double momentum);
/* A range from elsewhere takes the place of all that was observed. Writes its row. */
void observation_import(struct observation *observation, float lo, float hi);
/* NULL is fine. Returns NULL. */
struct observation *observation_free(struct observation *observation);
struct observation *observation_get(struct core *core, uint64_t id);
