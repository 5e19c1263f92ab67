/* Removing, renaming, disconnecting. */
#include <stdio.h>

#include "daemon/core/verbs.h"
#include "daemon/rpc/dispatch.h"

/* For verbs whose answer is one object. Gives the request whose call came back well; NULL if it is answered or
 * gone. */
static struct request *returned_well(struct call *call, int error)
{
    struct request *request = request_returned(call);

    if (request && error) {
        answer_error(request, error, call->detail, 0);
        return NULL;
    }
    return request;
}

static void removed(struct call *call, int error, void *result)
{
    struct request *request = returned_well(call, error);

    if (!request)
        return;
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '{');
    write_string(writer, "name", request->subject);
    write_number(writer, "bytes", *(const uint64_t *)result);
    write_close(writer, '}');
    answer_end(request);
}

static void renamed(struct call *call, int error, void *result)
{
    struct request *request = returned_well(call, error);

    (void)result;
    if (!request)
        return;
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '{');
    write_string(writer, "name", request->subject);
    write_close(writer, '}');
    answer_end(request);
}

static void kicked(struct call *call, int error, void *result)
{
    struct request *request = returned_well(call, error);

    if (!request)
        return;
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '{');
    write_id(writer, "session", request->about);
    write_integer(writer, "pid", *(const int32_t *)result);
    write_close(writer, '}');
    answer_end(request);
}

void handle_RM(struct request *request, const struct RM_args *args)
{
    snprintf(request->subject, sizeof(request->subject), "%s", args->model);
    verb_rm(request->core, request_call(request, removed), args->model);
}

void handle_RENAME(struct request *request, const struct RENAME_args *args)
{
    snprintf(request->subject, sizeof(request->subject), "%s", args->to);
    verb_rename(request->core, request_call(request, renamed), args->name, args->to);
}

void handle_KICK(struct request *request, const struct KICK_args *args)
{
    request->about = args->session;
    verb_kick(request->core, request_call(request, kicked), args->session);
}
