/* Verbs that may take a while. With someone watching, the operation is started and followed, so that a bar moves
 * and Ctrl-C cancels it; otherwise one call waits for the end. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/member.h"
#include "client/ctl/progress.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/terminal.h"
#include "client/ctl/verbs.h"

static cJSON *op_params(const char *op)
{
    cJSON *params = cJSON_CreateObject();

    cJSON_AddStringToObject(params, "op", op);
    return params;
}

static bool under_way(const cJSON *row)
{
    return !strcmp(text_of(row, "state"), "queued") || !strcmp(text_of(row, "state"), "running");
}

/* An op row judged: its error is the verb's. */
static int judge(const cJSON *op)
{
    _cleanup_json_ cJSON *rows = cJSON_CreateArray();
    cJSON *row = cJSON_CreateObject();

    cJSON_AddStringToObject(row, "name", text_of(op, "verb"));
    cJSON_AddStringToObject(row, "detail", text_of(op, "detail"));
    cJSON_AddStringToObject(row, "error", text_of(op, "error"));
    cJSON_AddItemToArray(rows, row);
    return report_rows(rows);
}

static uint64_t number_of(const cJSON *row, const char *name)
{
    const cJSON *item = member(row, name);

    return cJSON_IsNumber(item) && item->valuedouble > 0 ? (uint64_t)item->valuedouble : 0;
}

/* Until the operation is no longer among those under way. Ctrl-C cancels it where it is the verb's own. */
static int watch(struct rpc *rpc, const char *op, bool own)
{
    struct progress progress;
    bool cancelled = false;
    double nap = 0.02;

    progress_begin(&progress, 0, true);
    if (own)
        interrupt_watch();
    for (;;) {
        _cleanup_json_ cJSON *ops = NULL, *answer = NULL;
        const cJSON *row, *ours = NULL;
        int status = rpc_call(rpc, "hbm.ops", NULL, &ops);
        if (!status && own && interrupted() && !cancelled) {
            cancelled = true;
            status = rpc_call(rpc, "hbm.cancel", op_params(op), &answer);
        }
        cJSON_ArrayForEach(row, ops) if (!strcmp(text_of(row, "op"), op)) ours = row;
        if (status || !under_way(ours)) {
            progress_end(&progress);
            return status;
        }
        progress.total = number_of(ours, "bytes_total");
        progress_update(&progress, number_of(ours, "bytes_done"));
        /* Most operations are over in an instant; the others need no more than a bar that moves. */
        interrupt_sleep(nap);
        nap = 0.1;
    }
}

static int follow(const struct cli *cli, struct rpc *rpc, const char *op)
{
    _cleanup_json_ cJSON *ended = NULL;
    int status = watch(rpc, op, true);

    if (!status)
        status = rpc_call(rpc, "hbm.wait", op_params(op), &ended);
    if (status)
        return status;
    status = judge(ended);
    if (status)
        return status;
    cli->verb->show(cli, member(ended, "rows"));
    return report_rows(member(ended, "rows"));
}

int run_operation(const struct cli *cli)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *result = NULL;
    bool asynchronous = cli_value(cli, "--async"), watched = !cli->json && !asynchronous && terminal_watched();
    int status = rpc_open(cli, &rpc);

    if (status)
        return status;
    cJSON *params = cli_params(cli);
    if (watched)
        cJSON_AddTrueToObject(params, "async");
    status = rpc_call(rpc, cli->verb->method, params, &result);
    if (status)
        return status;
    if (watched && *text_of(result, "op"))
        return follow(cli, rpc, text_of(result, "op"));
    if (cli->json)
        report_json(result);
    else if (asynchronous)
        puts(text_of(result, "op"));
    else
        cli->verb->show(cli, result);
    return report_rows(result);
}

static int ask_op(const struct cli *cli, bool watched, cJSON **op)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    int status = rpc_open(cli, &rpc);

    if (!status && watched)
        status = watch(rpc, cli->words[0], false);
    if (!status)
        status = rpc_call(rpc, cli->verb->method, cli_params(cli), op);
    if (status)
        return status;
    if (cli->json)
        report_json(*op);
    else
        cli->verb->show(cli, *op);
    return EXIT_DONE;
}

int run_wait(const struct cli *cli)
{
    _cleanup_json_ cJSON *op = NULL;
    bool watched = !cli->json && !cli_value(cli, "--timeout") && terminal_watched();
    int status = ask_op(cli, watched, &op);

    if (status)
        return status;
    if (under_way(op)) {
        fprintf(stderr,
                "hbmctl: operation %s is not over yet: the time given has passed; wait longer, or cancel it\n",
                cli->words[0]);
        return EXIT_REFUSED;
    }
    return judge(op);
}

int run_cancel(const struct cli *cli)
{
    _cleanup_json_ cJSON *op = NULL;

    return ask_op(cli, false, &op);
}
