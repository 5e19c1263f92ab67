/* A transfer's ranges, checked and sorted into parts: what one FILE job does, in one arena. A request may have a million
 * of them, which is more than a turn of the loop has time for: they are added some at a time, and what was moved, freed
 * or recoded in between is looked at when the last one is in. */
#pragma once

#include "daemon/core/recode.h"
#include "proto/messages.h"

struct transfer_run;
struct transfer_place;

struct transfer_part {
    uint64_t arena;        /* id */
    struct extent *extent; /* one ref: as it was when the first range of it was added */
    struct plan decode; /* encoded buffers are written out as their logical dtype: into a temporary extent first */
    struct job_range *ranges;
    struct transfer_run *runs; /* of ranges of the same encoded buffer; of plain ones none */
    uint32_t n, n_runs;
    uint64_t bytes;
    bool encoded;
    bool fills, hold; /* from the file; hold: and nobody may move it meanwhile */
};

struct transfer_parts {
    struct transfer_part *at;
    size_t n;
    void *index; /* tsearch: the part that an extent's next range goes to */
    struct transfer_place *last; /* where the last one went; NULL: none yet */
};

/* The next ranges. 0, or an error with detail: NOT_FOUND, STALE, DENIED, NOT_READY, INVALID, UNSUPPORTED, NO_MEMORY. */
int transfer_parts_add(struct core *core, const struct call *call, const struct wire_range *ranges, uint32_t n,
                       bool write, struct transfer_parts *parts, char *detail);
/* All are there. 0, or an error with detail: STALE, BUSY, NO_MEMORY. */
int transfer_parts_finish(struct core *core, struct transfer_parts *parts, char *detail);
void transfer_part_clear(struct transfer_part *part);
void transfer_parts_clear(struct transfer_parts *parts);
