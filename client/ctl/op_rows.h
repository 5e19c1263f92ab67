/* What the tables of operations' rows share. */
#pragma once

#include "client/ctl/grid.h"

/* A row with nothing to show: failures are told at the end of the verb, what was passed over by print_skipped. */
bool did_nothing(const cJSON *row);
void print_skipped(const cJSON *rows);
/* Its gb_per_s. */
void rate_cell(struct grid *grid, const cJSON *row);
