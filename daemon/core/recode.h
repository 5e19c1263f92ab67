/* More plans: a copy of any extent, and a new layout in which some buffers change their encoding. */
#pragma once

#include "daemon/core/transition.h"

/* A copy (transition->copy) of a whole extent into another tier. 0 or NO_MEMORY. */
int plan_copy(struct plan *plan, struct extent *source, enum hbm_tier tier);

struct recode {
    uint64_t buffer;              /* first: sorted by it */
    struct hbm_encoding encoding; /* what it shall have: RAW decodes */
    double min_sqnr_db, max_error;
    struct job_calibration calibration;
    uint64_t observation; /* what its range is searched for in; 0: nothing */
};
void recodes_sort(struct recode *recodes, size_t n);
/* The arena anew on the device: buffers of `recodes` (sorted) in their new form, the others copied, or left out
 * with `only`. 0 or NO_MEMORY. */
int plan_recode(struct plan *plan, struct arena *arena, const struct recode *recodes, size_t n, bool only);
