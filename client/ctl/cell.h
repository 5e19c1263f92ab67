/* A JSON value as one line of text. */
#pragma once

#include <cjson/cJSON.h>

/* Owned by the caller. "-" for what is missing or null; shapes as 2x3, lists joined by commas. */
char *cell_text(const cJSON *item);
/* A buffer row's shape member: "4096x512", "scalar". Owned by the caller. */
char *cell_shape(const cJSON *shape);
/* Whose a row is, by its member of that name: "1000", "pods:0" behind another listener than the main one. Owned by the
 * caller. */
char *cell_owner(const cJSON *row, const char *name);
/* A buffer row's leases: "4711 rw, 4712 ro unlocked". Owned by the caller. */
char *cell_leases(const cJSON *leases);
char *cell_windows(const cJSON *windows); /* "pid 12: layers.0, layers.1" */
