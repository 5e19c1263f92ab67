#include "daemon/rpc/protocol.h"

#include <stddef.h>

#include "proto/errors.h"

static const struct {
    int code;
    const char *name, *what, *remedy;
} rows[] = {
    {PARSE_ERROR, "PARSE_ERROR", "Parse error", "send one JSON text a line"},
    {INVALID_REQUEST, "INVALID_REQUEST", "Invalid Request",
     "send {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":...,\"params\":{...}}"},
    {METHOD_NOT_FOUND, "METHOD_NOT_FOUND", "Method not found", "rpc.discover lists the methods"},
    {INVALID_PARAMS, "INVALID_PARAMS", "Invalid params", "rpc.discover lists what the method takes"},
    {INTERNAL_ERROR, "INTERNAL_ERROR", "Internal error", "try again; see the daemon's log"},
};

#define FIND(code_, member, otherwise)                                                                             \
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)                                                    \
        if (rows[i].code == (code_))                                                                               \
            return rows[i].member;                                                                                 \
    return otherwise(code_)

const char *protocol_error_name(int code)
{
    FIND(code, name, hbm_error_name);
}

const char *protocol_error_what(int code)
{
    FIND(code, what, hbm_error_what);
}

const char *protocol_error_remedy(int code)
{
    FIND(code, remedy, hbm_error_remedy);
}
