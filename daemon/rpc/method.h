/* proto/methods.def as C: the table of methods, and the arguments of each as a struct its handler is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

enum method_number {
#define METHOD(NAME, name, permission, summary, result) METHOD_##NAME,
#include "proto/methods.def"
#undef METHOD
    METHODS,
};

enum method_permission { MAY_OWN, MAY_ADMIN };
enum param_type { PARAM_STRING, PARAM_NUMBER, PARAM_BOOLEAN, PARAM_ID, PARAM_LIST };

#define PARAMS_MAX 16

struct param {
    const char *name;
    enum param_type type;
    bool required;
    const char *summary;
};

struct method {
    const char *name;
    enum method_number number;
    enum method_permission permission;
    const char *summary, *result;
    const struct param *params; /* ends with a NULL name */
};

extern const struct method methods[METHODS];

/* NULL if there is none. */
const struct method *method_by_name(const char *name);
unsigned method_n_params(const struct method *method);
/* Sorts `params` (an object, an array or NULL) into one value a parameter, NULL where absent, each of its type.
 * False with a sentence in why. */
bool method_bind(const struct method *method, const struct cJSON *params, const struct cJSON *values[PARAMS_MAX],
                 char *why, size_t size);
/* "0x..." with 1 to 16 digits, and nothing else. */
bool param_id(const char *text, uint64_t *id);
const char *param_type_name(enum param_type type);

/* Arguments. Absent: NULL, NAN, false, 0. */
#define FIELD_STRING(name) const char *name
#define FIELD_NUMBER(name) double name
#define FIELD_BOOLEAN(name) bool name
#define FIELD_ID(name) uint64_t name
#define FIELD_LIST(name) const struct cJSON *name
#define PARAM_FIELD(type, name, required, summary) FIELD_##type(name);
#define METHOD(NAME, name, permission, summary, result)                                                            \
    struct NAME##_args {                                                                                           \
        NAME##_PARAMS(PARAM_FIELD)                                                                                 \
    };
#include "proto/methods.def"
#undef METHOD
#undef PARAM_FIELD
