/* The event ring, and what comes after it. */
#include <stdio.h>
#include <time.h>

#include "client/ctl/cell.h"
#include "client/ctl/member.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/verbs.h"

#define TAIL 10 /* as `tail -f`: what --follow shows of the past */

static void print_time(const cJSON *seconds)
{
    char text[32];
    struct tm local;

    if (!cJSON_IsNumber(seconds)) {
        _cleanup_free_ char *plain = cell_text(seconds);
        printf("%s", plain);
        return;
    }
    time_t whole = (time_t)seconds->valuedouble;
    localtime_r(&whole, &local);
    strftime(text, sizeof(text), "%F %T", &local);
    printf("%s.%03d", text, (int)((seconds->valuedouble - (double)whole) * 1000));
}

static void print_optional(const cJSON *event, const char *label, const char *name)
{
    const cJSON *item = member(event, name);

    if (!item || cJSON_IsNull(item) || (cJSON_IsString(item) && !*item->valuestring))
        return;
    _cleanup_free_ char *text = cell_text(item);
    report_clean(text);
    printf("  %s%s", label, text);
}

static void print_owner(const cJSON *event)
{
    const cJSON *uid = member(event, "uid");

    if (!cJSON_IsNumber(uid))
        return;
    _cleanup_free_ char *owner = cell_owner(event, "uid");
    report_clean(owner);
    printf("  uid %s", owner);
}

static double sequence(const cJSON *event)
{
    const cJSON *item = member(event, "seq");

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void print_event(const struct cli *cli, const cJSON *event)
{
    if (cli->json) {
        report_json(event);
    } else {
        printf("%-6.0f  ", sequence(event));
        print_time(member(event, "time"));
        print_optional(event, "", "event");
        print_optional(event, "", "name");
        print_optional(event, "", "detail");
        print_optional(event, "pid ", "pid");
        print_owner(event);
        print_optional(event, "id ", "id");
        putchar('\n');
    }
}

/* Subscribes before it asks for the past, so that nothing falls between; what comes twice is told by its number. */
static int follow(const struct cli *cli, struct rpc *rpc)
{
    _cleanup_json_ cJSON *subscribed = NULL, *past = NULL;
    cJSON *params = cli_params(cli);
    const cJSON *row;
    double last = 0;
    int status = rpc_call(rpc, "hbm.subscribe", NULL, &subscribed);

    if (!cli_value(cli, "--since") && !cli_value(cli, "--limit"))
        cJSON_AddNumberToObject(params, "limit", TAIL);
    if (status) {
        cJSON_Delete(params);
        return status;
    }
    status = rpc_call(rpc, "hbm.events", params, &past);
    cJSON_ArrayForEach(row, past)
    {
        print_event(cli, row);
        last = sequence(row);
    }
    while (!status) {
        _cleanup_json_ cJSON *event = NULL;
        fflush(stdout);
        status = rpc_next_event(rpc, &event);
        if (!status && sequence(event) > last)
            print_event(cli, event);
    }
    return status;
}

int run_events(const struct cli *cli)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    _cleanup_json_ cJSON *events = NULL;
    const cJSON *row;
    int status = rpc_open(cli, &rpc);

    if (status)
        return status;
    if (cli_value(cli, "--follow"))
        return follow(cli, rpc);
    status = rpc_call(rpc, cli->verb->method, cli_params(cli), &events);
    if (status)
        return status;
    if (cli->json)
        report_json(events);
    else
        cJSON_ArrayForEach(row, events) print_event(cli, row);
    return EXIT_DONE;
}
