/* JSON-RPC's own error codes. Ours are the negative hbm_errors, which stay clear of them. */
#pragma once

#define PARSE_ERROR (-32700)
#define INVALID_REQUEST (-32600)
#define METHOD_NOT_FOUND (-32601)
#define INVALID_PARAMS (-32602)
#define INTERNAL_ERROR (-32603)

/* "PARSE_ERROR", or the name of an hbm_error. Likewise the sentences. Static storage. */
const char *protocol_error_name(int code);
const char *protocol_error_what(int code);
const char *protocol_error_remedy(int code);
