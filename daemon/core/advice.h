/* What trying codecs on groups of buffers has shown, and what follows from it. Arithmetic alone: trial.c does the work. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/vocab.h"

/* 30 dB is an error of 3 % of what is there, by root mean square. Normally distributed weights keep 39 to 41 dB in eight
 * bits (int8, minmax) and 31.5 in fp8-e4m3, whose steps are a sixteenth; four bits have about 19. So what has less than
 * this in eight bits has outliers: ten of 100 among 2^18 leave int8 per tensor 14.3 dB. */
#define ADVICE_MIN_SQNR_DB 30.0
/* The louder outliers are, the more of the signal is theirs, and the less is heard in dB of what they do to the rest: it
 * becomes 0. Of normally distributed weights int8 makes 1.4 % so, four bits in groups of 128 make 16 %, and int8 makes 31 %
 * in the case above. Looked at wherever there is a bound on dB. */
#define ADVICE_MOST_ZEROED 0.25
#define ADVICE_ROWS_MAX 16384 /* buffers in one advice: an answer has room for no more */
#define CANDIDATES_MAX 32

/* One candidate on one buffer. */
struct tried {
    bool done; /* else the buffer would stay as it is: the candidate does not take it, or saves nothing */
    bool holds;
    uint64_t bytes_after;
    double sqnr_db, max_abs_error, clipped_fraction, zeroed_fraction, seconds;
};

struct advised {
    uint32_t group;
    const char *name; /* borrowed */
    const char *left; /* static: why nothing is tried on it; NULL: it is */
    uint64_t bytes_before, nonfinite;
};

/* What lies in one arena moves as one, and is best read by one kernel: it gets one encoding. */
struct advised_group {
    uint64_t arena;
    size_t first_row, n_rows;
    char name[HBM_NAME_MAX + HBM_GROUP_MAX]; /* MODEL/GROUP; empty: none */
    struct hbm_encoding first; /* of 16 bits, which asks nothing of anybody; RAW: none holds, or saves anything */
    struct hbm_encoding take;  /* the smallest that holds; RAW: it is left alone */
    char why[HBM_DETAIL_MAX];
};

struct advice {
    double min_sqnr_db, max_error; /* 0: no bound */
    unsigned n_candidates;
    struct hbm_encoding candidates[CANDIDATES_MAX];
    size_t n_rows, n_groups;
    struct advised *rows;
    struct advised_group *groups;
    struct tried *tried; /* n_candidates of each row */
};

/* Room for so many rows and groups, with every codec in every granularity that it takes (channels along axis 0, groups of
 * 128), or with those of one codec. NULL: memory is out. */
struct advice *advice_new(unsigned codec, size_t n_rows, size_t n_groups);
struct advice *advice_free(struct advice *advice);

static inline struct tried *advice_tried(const struct advice *advice, size_t row, unsigned candidate)
{
    return &advice->tried[row * advice->n_candidates + candidate];
}

/* The candidate that an encoding is; -1: none. */
int advice_candidate(const struct advice *advice, const struct hbm_encoding *encoding);
/* What follows for the group from all that was tried on it: which candidates hold, its first, take and why. */
void advice_judge(struct advice *advice, struct advised_group *group);
