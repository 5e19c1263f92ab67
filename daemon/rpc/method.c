#include "daemon/rpc/method.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/vocab.h"

#define PARAM_ROW(type, name, required, summary) {#name, PARAM_##type, required, summary},
#define METHOD(NAME, name, permission, summary, result)                                                            \
    static const struct param NAME##_rows[] = {NAME##_PARAMS(PARAM_ROW){NULL, PARAM_STRING, false, NULL}};         \
    _Static_assert(sizeof(NAME##_rows) / sizeof(NAME##_rows[0]) <= PARAMS_MAX, #NAME);
#include "proto/methods.def"
#undef METHOD

const struct method methods[METHODS] = {
#define METHOD(NAME, name, permission, summary, result)                                                            \
    [METHOD_##NAME] = {name, METHOD_##NAME, MAY_##permission, summary, result, NAME##_rows},
#include "proto/methods.def"
#undef METHOD
};

const struct method *method_by_name(const char *name)
{
    for (unsigned i = 0; i < METHODS; i++)
        if (!strcmp(methods[i].name, name))
            return &methods[i];
    return NULL;
}

unsigned method_n_params(const struct method *method)
{
    unsigned n = 0;

    while (method->params[n].name)
        n++;
    return n;
}

const char *param_type_name(enum param_type type)
{
    static const char *const names[] = {"a string", "a number", "true or false", "an id as a string \"0x...\"", "a list"};
    return names[type];
}

bool param_id(const char *text, uint64_t *id)
{
    uint64_t value = 0;
    unsigned n = 0;

    if (text[0] != '0' || text[1] != 'x')
        return false;
    for (text += 2; *text; text++, n++) {
        int c = *text >= 'A' && *text <= 'F' ? *text | 32 : *text;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')) || n == 16)
            return false;
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *id = value;
    return n > 0;
}

static bool fits(const struct param *param, const cJSON *value)
{
    uint64_t id;

    switch (param->type) {
    case PARAM_STRING:
        return cJSON_IsString(value);
    case PARAM_NUMBER:
        return cJSON_IsNumber(value) && isfinite(value->valuedouble);
    case PARAM_BOOLEAN:
        return cJSON_IsBool(value);
    case PARAM_ID:
        return cJSON_IsString(value) && param_id(value->valuestring, &id);
    case PARAM_LIST:
        return cJSON_IsArray(value);
    }
    return false;
}

__attribute__((format(printf, 3, 4))) static bool refuse(char *why, size_t size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return false;
}

static bool sort_by_position(const struct method *method, const cJSON *params, const cJSON **values, char *why,
                             size_t size)
{
    unsigned i = 0, n = method_n_params(method);
    const cJSON *value;

    cJSON_ArrayForEach(value, params)
    {
        if (i == n)
            return refuse(why, size, "%s takes %u parameter%s at most", method->name, n, n == 1 ? "" : "s");
        values[i++] = value;
    }
    return true;
}

static bool sort_by_name(const struct method *method, const cJSON *params, const cJSON **values, char *why,
                         size_t size)
{
    const cJSON *value;

    cJSON_ArrayForEach(value, params)
    {
        unsigned i = 0;
        while (method->params[i].name && strcmp(method->params[i].name, value->string))
            i++;
        if (!method->params[i].name)
            return refuse(why, size, "%s has no parameter `%.64s`", method->name, value->string);
        values[i] = value;
    }
    return true;
}

bool method_bind(const struct method *method, const cJSON *params, const cJSON *values[PARAMS_MAX], char *why,
                 size_t size)
{
    memset(values, 0, PARAMS_MAX * sizeof(*values));
    if (cJSON_IsArray(params) ? !sort_by_position(method, params, values, why, size)
                              : params && !sort_by_name(method, params, values, why, size))
        return false;
    for (unsigned i = 0; method->params[i].name; i++) {
        const struct param *param = &method->params[i];
        if (!values[i] && param->required)
            return refuse(why, size, "%s needs `%s`: %s", method->name, param->name, param->summary);
        if (values[i] && !fits(param, values[i]))
            return refuse(why, size, "`%s` is to be %s", param->name, param_type_name(param->type));
        if (values[i] && param->type == PARAM_STRING && strlen(values[i]->valuestring) >= HBM_NAME_MAX)
            return refuse(why, size, "`%s` is longer than %d bytes", param->name, HBM_NAME_MAX - 1);
    }
    return true;
}
