/* hbm.priority. */
#include <string.h>

#include "daemon/core/names.h"
#include "daemon/core/verbs.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/rows.h"

static void set(struct call *call, int error, void *result)
{
    const struct principal who = call->who;
    struct request *request = request_returned(call);
    const struct selection *selection = result;

    if (!request)
        return;
    if (error)
        return answer_error(request, error, call->detail, 0);
    struct writer *writer = answer_begin(request);
    write_open(writer, "result", '[');
    for (size_t i = 0; i < selection->n && !writer_has_failed(writer); i++) {
        const struct buffer *buffer = selection->buffers[i];
        char name[NAME_FOR_MAX];
        buffer_name_for(buffer, &who, name, sizeof(name));
        write_open(writer, NULL, '{');
        write_id(writer, "id", buffer->id);
        write_string(writer, "name", *name ? name : NULL);
        write_priority(writer, buffer->arena);
        write_close(writer, '}');
    }
    write_close(writer, ']');
    answer_end(request);
}

/* PRIORITIES, which the verb refuses, unless it is one. */
static uint32_t priority_of(const char *text)
{
    if (!strcmp(text, "never"))
        return PRIORITY_NEVER;
    return *text >= '0' && *text <= '9' && !text[1] ? (uint32_t)(*text - '0') : PRIORITIES;
}

void handle_PRIORITY(struct request *request, const struct PRIORITY_args *args)
{
    verb_priority(request->core, request_call(request, set), args->sel, priority_of(args->priority));
}
