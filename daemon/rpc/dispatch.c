#include "daemon/rpc/dispatch.h"

#include <cjson/cJSON.h>
#include <math.h>

typedef void (*thunk)(struct request *request, const cJSON *const values[PARAMS_MAX]);

static const char *take_STRING(const cJSON *value)
{
    return value ? value->valuestring : NULL;
}

static double take_NUMBER(const cJSON *value)
{
    return value ? value->valuedouble : (double)NAN;
}

static bool take_BOOLEAN(const cJSON *value)
{
    return value && cJSON_IsTrue(value);
}

static uint64_t take_ID(const cJSON *value)
{
    uint64_t id = 0;

    if (value)
        param_id(value->valuestring, &id);
    return id;
}

static const cJSON *take_LIST(const cJSON *value)
{
    return value;
}

#define PARAM_TAKE(type, name, required, summary) args.name = take_##type(*value++);
#define METHOD(NAME, name, permission, summary, result)                                                            \
    static void run_##NAME(struct request *request, const cJSON *const values[PARAMS_MAX])                         \
    {                                                                                                              \
        struct NAME##_args args = {};                                                                              \
        const cJSON *const *value = values;                                                                        \
        NAME##_PARAMS(PARAM_TAKE)(void) value;                                                                     \
        handle_##NAME(request, &args);                                                                             \
    }
#include "proto/methods.def"
#undef METHOD

static const thunk thunks[METHODS] = {
#define METHOD(NAME, name, permission, summary, result) [METHOD_##NAME] = run_##NAME,
#include "proto/methods.def"
#undef METHOD
};

void dispatch(struct request *request, const struct method *method, const cJSON *const values[PARAMS_MAX])
{
    thunks[method->number](request, values);
}
