/* JSON-RPC 2.0 with the daemon over control.sock, one object a line. */
#pragma once

#include "client/ctl/report.h"

struct rpc;

/* 0, or the exit status after it was told why not. */
int rpc_open(const struct cli *cli, struct rpc **ret);
/* The directory is a [listener]'s, which has no socket for operators. */
bool rpc_clients_alone(const struct cli *cli);
struct rpc *rpc_close(struct rpc *rpc);

/* Sends, and waits for the answer however long it takes. params (taken over, also on failure) may be NULL.
 * 0 with *result, which the caller owns; or a status after the error was told. */
int rpc_call(struct rpc *rpc, const char *method, cJSON *params, cJSON **result);
/* As that, of a method whose result is a list: each row in turn, which is gone when `row` returns. So a list of 100
 * 000 buffers is never a tree. */
int rpc_rows(struct rpc *rpc, const char *method, cJSON *params, void (*row)(void *context, const cJSON *row),
             void *context);
/* The params of the next notification hbm.event, which the caller owns. A status when the connection ends. */
int rpc_next_event(struct rpc *rpc, cJSON **event);

static inline void rpc_closep(struct rpc **rpc)
{
    rpc_close(*rpc);
}
