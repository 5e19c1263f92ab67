/* Candidates tried on groups of buffers, one group and candidate after the other: encoded on the device into memory that
 * goes again with its receipts read. So there has to be room for the largest group's encoded form, and nothing is moved
 * away to make it. */
#pragma once

#include "daemon/core/advice.h"
#include "daemon/core/transition.h"

struct trial {
    struct core *core;
    struct advice *advice; /* borrowed; each group is judged when it has been through */
    const uint64_t *buffers; /* ids, one a row; borrowed */
    struct account *account; /* pays for the memory meanwhile */
    uint64_t op;
    uint64_t bytes_done, worked_ns;
    int error;
    char detail[HBM_DETAIL_MAX];
    void (*progress)(struct trial *trial);
    void (*done)(struct trial *trial);
    /* own */
    size_t group;
    unsigned candidate;
    struct transition transition;
};

/* done follows exactly once, possibly before this returns. */
void trial_start(struct trial *trial);
/* done follows, with CANCELLED, unless it has ended. */
void trial_cancel(struct trial *trial, const char *why);
/* Drops what it holds, wherever it stands. */
void trial_clear(struct trial *trial);
