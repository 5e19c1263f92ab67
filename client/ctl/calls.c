/* Verbs that are one call: ask, show, judge the rows. */
#include <string.h>

#include "client/ctl/json_text.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/text.h"
#include "client/ctl/verbs.h"

static int call_once(const struct cli *cli, const char *method, cJSON *params, cJSON **result)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    int status = rpc_open(cli, &rpc);

    if (status) {
        cJSON_Delete(params);
        return status;
    }
    return rpc_call(rpc, method, params, result);
}

char *model_hint(const struct cli *cli)
{
    _cleanup_json_ cJSON *models = NULL;
    const char *sel = cli->words[0];
    const cJSON *row;

    if (strcmp(cli->verb->usage, "SEL") || strpbrk(sel, ":*?[") || call_once(cli, "hbm.models", NULL, &models))
        return NULL;
    cJSON_ArrayForEach(row, models)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name"));
        if (name && !strcmp(name, sel))
            return text_new("%s is a model: write model:%s", sel, sel);
    }
    return NULL;
}

int run_call(const struct cli *cli)
{
    _cleanup_json_ cJSON *result = NULL;
    int status = call_once(cli, cli->verb->method, cli_params(cli), &result);

    if (status)
        return status;
    if (cli->json)
        report_json(result);
    else
        cli->verb->show(cli, result);
    return report_rows(result);
}

int run_rpc(const struct cli *cli)
{
    static const struct json_rules rules = {.depth_max = 64};
    _cleanup_json_ cJSON *params = NULL, *result = NULL;

    if (cli->n_words > 1) {
        const char *why;
        params = json_parse(cli->words[1], strlen(cli->words[1]), &rules, &why);
        if (!params)
            return report(cli, HBM_E_INVALID,
                          "the parameters are not usable: the text %s; give a JSON object or array", why);
    }
    int status = call_once(cli, cli->words[0], TAKE_PTR(params), &result);
    if (status)
        return status;
    report_json(result);
    return report_rows(result);
}
