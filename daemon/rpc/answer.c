/* Answers: how a result or an error becomes a line, on its own or in its batch. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/batch.h"
#include "daemon/rpc/output.h"
#include "daemon/rpc/protocol.h"
#include "daemon/rpc/request.h"

/* Of a line; the rest is room for the errors of a batch's other requests. */
#define RESULTS_BYTES_MAX ((size_t)60 << 20)

void write_error(struct writer *writer, int code, const char *detail, uint64_t op)
{
    const char *what = protocol_error_what(code), *remedy = protocol_error_remedy(code);

    write_open(writer, "error", '{');
    write_integer(writer, "code", code);
    write_text(writer, "message", "%s%s%s; %s", what, *detail ? ": " : "", detail, remedy);
    write_open(writer, "data", '{');
    write_string(writer, "error", protocol_error_name(code));
    write_string(writer, "detail", detail);
    write_string(writer, "remedy", remedy);
    if (op)
        write_id(writer, "op", op);
    write_close(writer, '}');
    write_close(writer, '}');
}

struct writer *answer_begin(struct request *request)
{
    struct writer *answer = &request->answer;

    writer_clear(answer);
    write_open(answer, NULL, '{');
    write_string(answer, "jsonrpc", "2.0");
    write_json(answer, "id", request->id ? request->id : "null", request->id ? strlen(request->id) : 4);
    return answer;
}

static void deliver(struct request *request)
{
    struct connection *connection = request->connection;
    struct writer *answer = request->id ? &request->answer : NULL;

    if (answer && answer->state != WRITER_FINE)
        connection_doom(connection);
    else if (request->batch)
        batch_settle(request->batch, answer);
    else if (answer)
        connection_send(connection, TAKE_PTR(answer->bytes), answer->size);
    request_free(request);
    connection_update(connection);
}

void answer_error(struct request *request, int code, const char *detail, uint64_t op)
{
    struct writer *answer = answer_begin(request);

    core_count_refusal(request->core, code);
    write_error(answer, code, detail, op);
    write_close(answer, '}');
    deliver(request);
}

void answer_refuse(struct request *request, int code, const char *format, ...)
{
    char detail[HBM_DETAIL_MAX];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(detail, sizeof(detail), format, arguments);
    va_end(arguments);
    answer_error(request, code, detail, 0);
}

void answer_end(struct request *request)
{
    struct writer *answer = &request->answer;
    size_t before = request->batch ? request->batch->answers.size : 0;

    write_close(answer, '}');
    if (!request->begun && answer->state == WRITER_NO_MEMORY)
        answer_error(request, INTERNAL_ERROR, "no memory for the answer", 0);
    else if (!request->begun && (answer->state == WRITER_TOO_LARGE || answer->size + before > RESULTS_BYTES_MAX))
        answer_error(request, HBM_E_TOO_LARGE, "the answer is longer than 60 MiB", 0);
    else
        deliver(request);
}

/* The last character stays: by that the writer knows whether a comma comes next. */
void answer_send_on(struct request *request)
{
    struct writer *answer = &request->answer;

    if (answer->state != WRITER_FINE || answer->size < 2)
        return;
    size_t size = answer->size - 1;
    char last = answer->bytes[size];
    request->begun = true;
    if (!output_queue(request->connection, TAKE_PTR(answer->bytes), size))
        connection_doom(request->connection);
    writer_clear(answer);
    write_bytes(answer, &last, 1);
}
