/* A JSON value as one line of text. */
#pragma once

#include <cjson/cJSON.h>

/* Owned by the caller. "-" for what is missing or null; shapes as 2x3, lists joined by commas. */
char *cell_text(const cJSON *item);
/* A buffer row's shape member: "4096x512", "scalar". Owned by the caller. */
char *cell_shape(const cJSON *shape);
/* A buffer row's leases: "4711 rw, 4712 ro unlocked". Owned by the caller. */
char *cell_leases(const cJSON *leases);
