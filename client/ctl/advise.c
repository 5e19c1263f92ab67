/* advise-codec: the advice alone is an operation like others; with --eval the user's own check has a say before it is
 * applied. */
#include <stdio.h>

#include "client/ctl/advice.h"
#include "client/ctl/report.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/verbs.h"

static int ask(const struct cli *cli, bool apply, cJSON **rows)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    int status = rpc_open(cli, &rpc);

    if (status)
        return status;
    cJSON *params = cli_params(cli);
    if (!apply)
        cJSON_DeleteItemFromObjectCaseSensitive(params, "apply");
    return rpc_call(rpc, cli->verb->method, params, rows);
}

static void show_all(const struct cli *cli, cJSON *rows, cJSON *evaluations, bool applied)
{
    if (cli->json) {
        _cleanup_json_ cJSON *both = cJSON_CreateObject();
        cJSON_AddItemReferenceToObject(both, "rows", rows);
        cJSON_AddItemReferenceToObject(both, "evaluations", evaluations);
        cJSON_AddBoolToObject(both, "applied", applied);
        report_json(both);
        return;
    }
    show_advised(cli, rows, applied);
    show_evaluations(cli, evaluations);
}

int run_advise(const struct cli *cli)
{
    _cleanup_json_ cJSON *rows = NULL, *applied = NULL, *evaluations = NULL;
    bool apply = cli_value(cli, "--apply"), passed = false;

    if (!cli_value(cli, "--eval"))
        return run_operation(cli);
    if (cli_value(cli, "--async"))
        return report(cli, HBM_E_INVALID, "--eval waits for what is tried: leave out --async"), EXIT_USAGE;
    int status = ask(cli, false, &rows);
    if (!status)
        status = evaluate(cli, rows, &evaluations, &passed);
    if (!status && apply && passed)
        status = ask(cli, true, &applied);
    if (status)
        return status;
    show_all(cli, applied ? applied : rows, evaluations, applied);
    if (apply && !passed) {
        fflush(stdout);
        fputs("hbmctl: nothing was applied: the command of --eval ended with an error on what is advised; look at its result, or "
              "leave out --apply\n",
              stderr);
        return EXIT_REFUSED;
    }
    return report_rows(rows);
}
