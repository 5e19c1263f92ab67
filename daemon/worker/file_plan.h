/* The windows in which the ranges of a FILE job go through staging: sorted, and few for many neighbouring ranges.
 */
#pragma once

#include "daemon/worker/job.h"

#define FILE_RANGES_MAX (1u << 22)

struct file_window {
    uint64_t offset, bytes; /* in the file; at most CHECKSUM_CHUNK bytes */
    uint64_t first;         /* no range before this one reaches into the window */
};

struct file_plan {
    struct job_range *ranges; /* sorted by file_offset */
    uint64_t n_ranges;
    struct file_window *windows;
    uint64_t n_windows;
    uint64_t bytes; /* over all ranges */
    uint64_t end;   /* of the last range in the file */
};

/* `ranges_fd` is the sealed memfd. For reading, windows start aligned and swallow small gaps between ranges; for
 * writing they hold no byte that is in no range. */
int file_plan_make(struct file_plan *plan, int ranges_fd, uint64_t n_ranges, uint64_t extent_size, bool write,
                   struct failure *failure);
void file_plan_free(struct file_plan *plan);
