/* What cJSON lets pass and JSON does not: bad UTF-8, NUL, control characters in strings, text after the value,
 * endless depth. Texts from files and arguments pass here before cJSON sees them. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

struct json_rules {
    unsigned depth_max;
    bool whole_numbers; /* every number is a plain integer from 0 to 2^53, which a double holds exactly */
};

/* The tree of a text that is one object or array (white space around it); NULL with a sentence in *why. */
cJSON *json_parse(const char *text, size_t size, const struct json_rules *rules, const char **why);

/* Overwrites what is not UTF-8 with '?': a name in a file, or a path, may be any bytes. */
void json_mend(char *text);

/* The only member of that exact name; NULL if there is none or there are several. */
const cJSON *json_only(const cJSON *object, const char *name);

/* The first of two members of one name, or NULL. False when memory is short. */
bool json_duplicate(const cJSON *object, const char **name);
