/* What a line must be before cJSON sees it. cJSON takes bad UTF-8, NULs and trailing text, and builds whatever size
 * of tree it is told to; this refuses all of that without allocating. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "daemon/rpc/protocol.h"

#define SCAN_DEPTH_MAX 64
#define SCAN_VALUES_MAX 32768
#define SCAN_BATCH_MAX 1000

/* 0, PARSE_ERROR or INVALID_REQUEST with a sentence in *why. */
int scan_line(const char *text, size_t size, const char **why);

struct cJSON;
/* PARSE_ERROR with a sentence if two members of one object share a name, at any depth; INTERNAL_ERROR if there is no
 * memory to find out. */
int scan_names(const struct cJSON *value, const char **why);
