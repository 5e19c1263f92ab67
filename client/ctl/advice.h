/* Rows of hbm.advise_codec, as hbmctl reads them. */
#pragma once

#include "client/ctl/cli.h"

/* An encoding with what it takes and keeps, over rows: those of a group, or all. */
struct advice_sum {
    const char *encoding;    /* borrowed from the first row that has it */
    const cJSON *try;        /* there */
    double before, after;    /* bytes of the rows that were tried; as they are where it takes nothing of them */
    double worst_db;         /* INFINITY: exact */
    double max_abs_error, zeroed, seconds, moved;
    unsigned tried, hold;    /* rows */
};

/* The row's try of that encoding; NULL: none. */
const cJSON *advice_try(const cJSON *row, const char *encoding);
/* Sums of that encoding over the rows from `first` on, up to the next group or the end (`whole`: up to the end). With
 * encoding NULL each row's advice. */
struct advice_sum advice_sum(const cJSON *first, const char *encoding, bool whole);
/* The first row of the next group; NULL: that was the last. */
const cJSON *advice_next_group(const cJSON *row);
/* Every encoding that any row was tried in, each once: an array of strings, which the caller owns. */
cJSON *advice_encodings(const cJSON *rows);

void show_advised(const struct cli *cli, const cJSON *rows, bool applied);
/* The user's own check, on raw buffers, on copies in each encoding and on what is advised. The exit status; *passed: that of
 * what is advised was 0. */
int evaluate(const struct cli *cli, const cJSON *rows, cJSON **evaluations, bool *passed);
void show_evaluations(const struct cli *cli, const cJSON *evaluations);
