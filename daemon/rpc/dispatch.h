/* Handlers: one function a method, handle_NAME(request, args). Arguments are present where required and of their
 * types; a handler answers its request exactly once, at once or later, and the caller may ask for the method. */
#pragma once

#include "daemon/rpc/request.h"

#define METHOD(NAME, name, permission, summary, result)                                                            \
    void handle_##NAME(struct request *request, const struct NAME##_args *args);
#include "proto/methods.def"
#undef METHOD

/* Runs the method with values as method_bind gave them. */
void dispatch(struct request *request, const struct method *method, const struct cJSON *const values[PARAMS_MAX]);
