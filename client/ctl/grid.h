/* A table for people: columns as wide as they need, the widest text cut where the terminal is narrower. */
#pragma once

#include <cjson/cJSON.h>

#include "client/ctl/cli.h"

#define GRID_COLUMNS_MAX 13

struct grid {
    const char *const *titles; /* "NAME"; ">SIZE" stands to the right; NULL ends */
    unsigned columns;
    char **cells;
    unsigned n, room;
};

void grid_begin(struct grid *grid, const char *const *titles);
/* Cells come row by row. */
__attribute__((format(printf, 2, 3))) void grid_cell(struct grid *grid, const char *format, ...);
/* Takes over a text from malloc. */
void grid_take(struct grid *grid, char *cell);
/* Cells from a row's member: as it is; "-" where it is missing or null. */
void grid_member(struct grid *grid, const cJSON *row, const char *name);
void grid_bytes(struct grid *grid, const cJSON *row, const char *name);
void grid_seconds(struct grid *grid, const cJSON *row, const char *name);
/* Prints the rows and forgets them. Nothing is printed for no rows. */
void grid_end(struct grid *grid, const struct cli *cli);
void grid_forget(struct grid *grid);
