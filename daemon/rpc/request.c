#include "daemon/rpc/request.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/batch.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/protocol.h"

#define ID_LARGEST 9007199254740992.0 /* 2^53: above it a double is not the number that was written */

static struct request *request_new(struct connection *connection, struct batch *batch)
{
    struct request *request = calloc(1, sizeof(*request));

    if (!request) {
        connection_doom(connection);
        return NULL;
    }
    request->core = connection->server->core;
    request->connection = connection;
    request->batch = batch;
    list_init(&request->wait.node);
    list_init(&request->books.node);
    list_init(&request->timer.node);
    list_append(&connection->requests, &request->node);
    connection->n_requests++;
    return request;
}

struct request *request_free(struct request *request)
{
    if (request->timer.at_ms)
        timer_stop(request->core, &request->timer);
    list_unlink(&request->wait.node);
    list_unlink(&request->books.node);
    list_unlink(&request->node);
    if (request->connection)
        request->connection->n_requests--;
    writer_clear(&request->answer);
    free(request->id);
    free(request);
    return NULL;
}

void request_orphan(struct request *request)
{
    list_unlink(&request->node);
    request->connection = NULL;
    request->batch = NULL;
    if (!request->with_verb)
        request_free(request);
}

struct call *request_call(struct request *request, void (*done)(struct call *call, int error, void *result))
{
    request->with_verb = true;
    call_init(&request->call, request->connection->who, NULL, done);
    return &request->call;
}

struct request *request_returned(struct call *call)
{
    struct request *request = container_of(call, struct request, call);

    request->with_verb = false;
    return request->connection ? request : request_free(request);
}

/* Sets request->id to the text of an id. 0, INVALID_REQUEST or INTERNAL_ERROR with a sentence in *why. */
static int take_id(struct request *request, const cJSON *id, const char **why)
{
    struct writer text = {0};

    *why = "`id` is to be a string, a number up to 2^53 or null";
    if (cJSON_IsString(id))
        write_string(&text, NULL, id->valuestring);
    else if (cJSON_IsNull(id))
        write_null(&text, NULL);
    else if (cJSON_IsNumber(id) && fabs(id->valuedouble) <= ID_LARGEST && id->valuedouble == floor(id->valuedouble))
        write_integer(&text, NULL, (int64_t)id->valuedouble);
    else if (cJSON_IsNumber(id) && fabs(id->valuedouble) <= ID_LARGEST)
        write_real(&text, NULL, id->valuedouble);
    else
        return INVALID_REQUEST;
    write_bytes(&text, "", 1);
    *why = "no memory for the id";
    if (text.state != WRITER_FINE) {
        writer_clear(&text);
        return INTERNAL_ERROR;
    }
    request->id = text.bytes;
    return 0;
}

static const cJSON *member(const cJSON *item, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(item, name);
}

/* What is wrong with the envelope; NULL if nothing. */
static const char *envelope_fault(const cJSON *item)
{
    const cJSON *version = member(item, "jsonrpc"), *params = member(item, "params");

    if (!cJSON_IsString(version) || strcmp(version->valuestring, "2.0"))
        return "`jsonrpc` is to be \"2.0\"";
    if (!cJSON_IsString(member(item, "method")))
        return "`method` is to be a string";
    if (params && !cJSON_IsObject(params) && !cJSON_IsArray(params))
        return "`params` is to be an object or an array";
    return NULL;
}

static void reject(struct request *request, int code, const char *why)
{
    /* What is no valid request is no notification either: it is answered, under null where it has no id. */
    if (!request->id)
        request->id = strdup("null");
    if (request->id)
        answer_refuse(request, code, "%s", why);
    else
        connection_doom(request->connection);
}

void request_run(struct connection *connection, struct batch *batch, const cJSON *item)
{
    struct request *request = request_new(connection, batch);
    const cJSON *id = member(item, "id"), *values[PARAMS_MAX];
    const char *why = NULL;
    char detail[HBM_DETAIL_MAX];

    if (!request)
        return;
    if (!cJSON_IsObject(item))
        return reject(request, INVALID_REQUEST, "a request is an object");
    int error = id ? take_id(request, id, &why) : 0;
    if (error)
        return reject(request, error, why);
    why = envelope_fault(item);
    if (why)
        return reject(request, INVALID_REQUEST, why);

    const char *name = member(item, "method")->valuestring;
    const struct method *method = method_by_name(name);
    if (!method)
        return answer_refuse(request, METHOD_NOT_FOUND, "%.64s", name);
    if (method->permission == MAY_ADMIN && !connection->who.admin)
        return answer_refuse(request, HBM_E_DENIED, "%s is for administrators", name);
    if (connection->n_requests > REQUESTS_MAX)
        return answer_refuse(request, HBM_E_LIMIT, "%d requests of this connection await their answers",
                             REQUESTS_MAX);
    if (!method_bind(method, member(item, "params"), values, detail, sizeof(detail)))
        return answer_refuse(request, INVALID_PARAMS, "%s", detail);
    dispatch(request, method, values);
}

void request_reject(struct connection *connection, int code, const char *why)
{
    struct request *request = request_new(connection, NULL);

    if (!request)
        return;
    request->id = strdup("null");
    if (request->id)
        answer_error(request, code, why, 0);
    else
        connection_doom(connection);
}
