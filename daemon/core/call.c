#include "daemon/core/call.h"

#include <stdarg.h>
#include <stdio.h>

#include "daemon/core/session.h"

void call_init(struct call *call, struct principal who, struct session *session,
               void (*done)(struct call *call, int error, void *result))
{
    call->who = who;
    call->session = session;
    call->done = done;
    call->detail[0] = 0;
    list_init(&call->node);
    if (session)
        list_append(&session->calls, &call->node);
}

void call_done(struct call *call, void *result)
{
    list_unlink(&call->node);
    call->done(call, 0, result);
}

void call_refuse(struct call *call, int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(call->detail, sizeof(call->detail), format, arguments);
    va_end(arguments);
    explain_no_memory(error, call->detail);
    list_unlink(&call->node);
    call->done(call, error, NULL);
}

void explain_no_memory(int error, char detail[HBM_DETAIL_MAX])
{
    if (error == HBM_E_NO_MEMORY && !detail[0])
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
}
