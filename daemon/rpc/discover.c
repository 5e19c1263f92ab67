#include "daemon/rpc/discover.h"

#include "daemon/rpc/method.h"
#include "daemon/rpc/protocol.h"
#include "proto/errors.h"
#include "proto/vocab.h"

static void write_schema(struct writer *writer, enum param_type type)
{
    static const char *const names[] = {"string", "number", "boolean", "string", "array"};

    write_open(writer, "schema", '{');
    write_string(writer, "type", names[type]);
    if (type == PARAM_STRING)
        write_number(writer, "maxLength", HBM_NAME_MAX - 1);
    if (type == PARAM_ID)
        write_string(writer, "pattern", "^0x[0-9a-fA-F]{1,16}$");
    write_close(writer, '}');
}

static void write_param(struct writer *writer, const struct param *param)
{
    write_open(writer, NULL, '{');
    write_string(writer, "name", param->name);
    write_string(writer, "summary", param->summary);
    write_bool(writer, "required", param->required);
    write_schema(writer, param->type);
    write_close(writer, '}');
}

static void write_method(struct writer *writer, const struct method *method)
{
    write_open(writer, NULL, '{');
    write_string(writer, "name", method->name);
    write_string(writer, "summary", method->summary);
    write_string(writer, "paramStructure", "either");
    write_open(writer, "params", '[');
    for (const struct param *param = method->params; param->name; param++)
        write_param(writer, param);
    write_close(writer, ']');
    write_open(writer, "result", '{');
    write_string(writer, "name", "result");
    write_string(writer, "summary", method->result);
    write_open(writer, "schema", '{');
    write_close(writer, '}');
    write_close(writer, '}');
    write_string(writer, "x-permission", method->permission == MAY_ADMIN ? "admin" : "own");
    write_close(writer, '}');
}

static void write_errors(struct writer *writer)
{
    static const int codes[] = {
#define ERROR(name, number, what, remedy) -(number),
#include "proto/errors.def"
#undef ERROR
        PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR,
    };

    write_open(writer, "errors", '{');
    for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        write_open(writer, protocol_error_name(codes[i]), '{');
        write_integer(writer, "code", codes[i]);
        write_string(writer, "message", protocol_error_what(codes[i]));
        write_close(writer, '}');
    }
    write_close(writer, '}');
}

static void write_rows(struct writer *writer)
{
    static const struct {
        const char *name, *members;
    } rows[] = {
#define ROW(name, members) {#name, members},
#include "proto/rows.def"
#undef ROW
    };

    write_open(writer, "schemas", '{');
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_open(writer, rows[i].name, '{');
        write_string(writer, "type", "object");
        write_string(writer, "description", rows[i].members);
        write_close(writer, '}');
    }
    write_close(writer, '}');
}

void write_discovery(struct writer *writer, const char *key)
{
    write_open(writer, key, '{');
    write_string(writer, "openrpc", "1.3.2");
    write_open(writer, "info", '{');
    write_string(writer, "title", "hbmd");
    write_string(writer, "description", "A GPU-memory broker: what operators may ask of it.");
    write_string(writer, "version", HBM_VERSION);
    write_close(writer, '}');
    write_open(writer, "methods", '[');
    for (unsigned i = 0; i < METHODS; i++)
        write_method(writer, &methods[i]);
    write_close(writer, ']');
    write_open(writer, "components", '{');
    write_rows(writer);
    write_errors(writer);
    write_close(writer, '}');
    write_close(writer, '}');
}
