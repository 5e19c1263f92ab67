/* hbmctl advise: measures once, asks what is so, and says what follows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/bottleneck.h"
#include "client/ctl/grid.h"
#include "client/ctl/json_text.h"
#include "client/ctl/member.h"
#include "client/ctl/profile.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

#define SNAPSHOT_MAX ((size_t)4 << 20)

struct advice {
    const struct cli *cli;
    struct facts facts;
    struct state state;
    struct profile profile;
    struct remarks remarks;
    cJSON *snapshot; /* of --since; NULL without it */
    bool restarted;  /* the daemon, since then */
};

static void advice_clear(struct advice *advice)
{
    remarks_clear(&advice->remarks);
    profile_clear(&advice->profile);
    facts_clear(&advice->facts);
    state_clear(&advice->state);
    cJSON_Delete(advice->snapshot);
}

/* ---- JSON ---- */

static cJSON *remark_json(const struct remark *remark)
{
    cJSON *row = cJSON_CreateObject();
    const struct {
        const char *name, *text;
    } texts[] = {{"bottleneck", remark->bottleneck},
                 {"strategy", remark->strategy},
                 {"why", remark->why},
                 {"gain", remark->gain},
                 {"todo", remark->todo},
                 {"unknown", remark->unknown},
                 {"metric", remark->metric}};

    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cJSON_AddItemToObject(row, texts[i].name,
                              texts[i].text ? cJSON_CreateString(texts[i].text) : cJSON_CreateNull());
    cJSON_AddNumberToObject(row, "before", remark->before);
    cJSON_AddNumberToObject(row, "predicted", remark->predicted);
    return row;
}

/* What was promised, beside what is so now. */
static cJSON *measured_json(const struct advice *advice)
{
    cJSON *rows = cJSON_CreateArray();
    const cJSON *remark, *remarks = member(advice->snapshot, "remarks");

    cJSON_ArrayForEach(remark, remarks)
    {
        if (!*text_of(remark, "metric"))
            continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "bottleneck", text_of(remark, "bottleneck"));
        cJSON_AddStringToObject(row, "strategy", text_of(remark, "strategy"));
        cJSON_AddStringToObject(row, "metric", text_of(remark, "metric"));
        cJSON_AddItemToObject(row, "before", cJSON_Duplicate(member(remark, "before"), true));
        cJSON_AddItemToObject(row, "predicted", cJSON_Duplicate(member(remark, "predicted"), true));
        cJSON_AddNumberToObject(row, "now", gain_now(&advice->facts, text_of(remark, "metric")));
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

static cJSON *profile_json(const struct advice *advice)
{
    cJSON *object = advice->profile.json ? cJSON_Duplicate(advice->profile.json, true) : cJSON_CreateObject();

    cJSON_AddStringToObject(object, "path", advice->profile.path);
    cJSON_AddItemToObject(object, "stale",
                          advice->profile.stale ? cJSON_CreateString(advice->profile.stale) : cJSON_CreateNull());
    return object;
}

static cJSON *advice_json(struct advice *advice, cJSON *counted)
{
    cJSON *json = cJSON_CreateObject();
    const struct cli *cli = advice->cli;

    cJSON_AddItemToObject(json, "sel", cli->n_words ? cJSON_CreateString(cli->words[0]) : cJSON_CreateNull());
    cJSON_AddStringToObject(json, "device", text_of(advice->state.device, "uuid"));
    cJSON_AddItemToObject(json, "profile", advice->profile.json ? profile_json(advice) : cJSON_CreateNull());
    cJSON_AddItemToObject(json, "counted", counted);
    cJSON_AddItemToObject(json, "live", facts_json(&advice->facts, FACT_LIVE));
    cJSON *remarks = cJSON_AddArrayToObject(json, "remarks");
    for (unsigned i = 0; i < advice->remarks.n; i++)
        cJSON_AddItemToArray(remarks, remark_json(&advice->remarks.all[i]));
    if (advice->snapshot)
        cJSON_AddItemToObject(json, "measured", measured_json(advice));
    return json;
}

/* ---- For people ---- */

static void print_line(const char *label, const char *text)
{
    if (!text)
        return;
    _cleanup_free_ char *clean = must_text("%s", text);
    report_clean(clean);
    printf("  %-10s %s\n", label, clean);
}

static void print_remark(const struct remark *remark)
{
    printf("%s%s%s\n", remark->bottleneck, remark->strategy ? ": " : "", remark->strategy ? remark->strategy : "");
    print_line("why", remark->why);
    print_line("gain", remark->gain);
    print_line("do", remark->todo);
    print_line("not known:", remark->unknown);
}

static void print_profile(const struct advice *advice)
{
    const struct profile *profile = &advice->profile;

    if (!profile->json)
        printf("not known: what the device does, as %s; run hbmctl advise --measure\n", profile->missing);
    else
        printf("by what was measured on %s with %s%s%s%s\n", text_of(profile->json, "measured"),
               text_of(profile->json, "driver"), profile->stale ? ", which is stale: " : "",
               profile->stale ? profile->stale : "", profile->stale ? "; run hbmctl advise --measure" : "");
}

/* A rate, a share, bytes or seconds, by what the metric's name ends in. */
static void metric_cell(struct grid *grid, const char *metric, const cJSON *item)
{
    char text[UNITS_TEXT];

    if (!cJSON_IsNumber(item))
        grid_cell(grid, "-");
    else if (!strcmp(metric, "lock_wait_share"))
        grid_cell(grid, "%.3g %%", item->valuedouble * 100);
    else if (!strcmp(metric, "bounces_per_s"))
        grid_cell(grid, "%.3g", item->valuedouble);
    else if (!strcmp(metric, "pass_seconds"))
        grid_cell(grid, "%s", units_seconds(item->valuedouble, text));
    else
        grid_cell(grid, "%s", units_bytes(item->valuedouble, text));
}

static void print_measured(const struct advice *advice)
{
    static const char *const titles[] = {"BOTTLENECK", "STRATEGY", "METRIC", ">BEFORE", ">PREDICTED", ">NOW", NULL};
    _cleanup_json_ cJSON *rows = measured_json(advice);
    const cJSON *row;
    struct grid grid;

    if (!rows->child)
        puts("nothing was predicted then");
    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        const char *metric = text_of(row, "metric");
        grid_member(&grid, row, "bottleneck");
        grid_member(&grid, row, "strategy");
        grid_member(&grid, row, "metric");
        metric_cell(&grid, metric, member(row, "before"));
        metric_cell(&grid, metric, member(row, "predicted"));
        metric_cell(&grid, metric, member(row, "now"));
    }
    grid_end(&grid, advice->cli);
    if (advice->restarted)
        puts("the daemon restarted in between: counters are of the time since then");
    putchar('\n');
}

static void print_advice(const struct advice *advice)
{
    if (advice->snapshot)
        print_measured(advice);
    print_profile(advice);
    for (unsigned i = 0; i < advice->remarks.n; i++) {
        putchar('\n');
        print_remark(&advice->remarks.all[i]);
    }
}

static void print_figures(struct advice *advice)
{
    static const char *const titles[] = {"FIGURE", ">MEASURED", "OF", NULL};
    const cJSON *missing = member(advice->profile.json, "missing");
    char text[UNITS_TEXT];
    struct grid grid;

    grid_begin(&grid, titles);
    for (const struct fact_row *row = fact_next(NULL); row; row = fact_next(row)) {
        double value = *fact_of(&advice->facts, row);
        if (row->kind != FACT_MEASURED)
            continue;
        grid_cell(&grid, "%s", row->name);
        if (isnan(value))
            grid_cell(&grid, "-");
        else if (strstr(row->name, "gb_per_s"))
            grid_cell(&grid, "%s", units_rate(value, text));
        else if (strstr(row->name, "tflops"))
            grid_cell(&grid, "%.3g", value);
        else if (value < 1e-6)
            grid_cell(&grid, "%.3g ns", value * 1e9);
        else
            grid_cell(&grid, "%s", units_seconds(value, text));
        grid_cell(&grid, "%s", row->text);
    }
    grid_end(&grid, advice->cli);
    for (const cJSON *why = missing ? missing->child : NULL; why; why = why->next)
        printf("not known: %s: %s\n", why->string, why->valuestring);
    printf("kept in %s\n", advice->profile.path);
}

/* ---- The verb ---- */

static int read_snapshot(const struct cli *cli, struct advice *advice)
{
    static const struct json_rules rules = {.depth_max = 32};
    const char *path = cli_value(cli, "--since"), *why = "has no counters in it";
    FILE *file = path ? fopen(path, "re") : NULL;
    _cleanup_free_ char *text = file ? malloc(SNAPSHOT_MAX) : NULL;

    if (!path)
        return 0;
    if (!text)
        return report(cli, HBM_E_IO, "%s cannot be read: %m; name what `hbmctl --json advise` printed before",
                      path);
    size_t size = fread(text, 1, SNAPSHOT_MAX, file);
    fclose(file);
    advice->snapshot = json_parse(text, size, &rules, &why);
    if (!cJSON_IsObject(member(advice->snapshot, "counted")) || !cJSON_IsArray(member(advice->snapshot, "remarks")))
        return report(cli, HBM_E_INVALID,
                      "%s is not usable: it %s; name what `hbmctl --json advise` printed before", path, why);
    return 0;
}

static int measure(struct advice *advice)
{
    int status = profile_measure(advice->cli, &advice->state, &advice->profile, &advice->facts);

    if (status)
        return status;
    if (advice->cli->json)
        report_json(advice->profile.json);
    else
        print_figures(advice);
    return EXIT_DONE;
}

static int judge(struct advice *advice)
{
    const struct cli *cli = advice->cli;
    struct facts *facts = &advice->facts, before;
    int status = profile_read(cli, &advice->state, &advice->profile, facts);

    if (!status)
        status = read_snapshot(cli, advice);
    if (status)
        return status;
    facts->pass_seconds = cli_number(cli, "--pass", (double)NAN);
    cJSON *counted = facts_json(facts, FACT_COUNTED);
    if (advice->snapshot) {
        facts_begin(&before);
        facts_read(&before, FACT_COUNTED, member(advice->snapshot, "counted"));
        advice->restarted = !facts_since(facts, &before);
    }
    bottlenecks_find(facts, cli->n_words ? cli->words[0] : "SEL", &advice->remarks);
    _cleanup_json_ cJSON *json = advice_json(advice, counted);
    if (cli->json)
        report_json(json);
    else
        print_advice(advice);
    return EXIT_DONE;
}

int run_bottlenecks(const struct cli *cli)
{
    _cleanup_(advice_clear) struct advice advice = {.cli = cli};
    bool measures = cli_value(cli, "--measure");

    if (measures && (cli->n_words || cli_value(cli, "--since") || cli_value(cli, "--pass")))
        return report(cli, HBM_E_INVALID, "--measure is about a device: leave out SEL, --since and --pass"),
               EXIT_USAGE;
    if (cli->n_words && cli_value(cli, "--device"))
        return report(cli, HBM_E_INVALID, "a selection is on its own device: leave out SEL or --device"),
               EXIT_USAGE;
    facts_begin(&advice.facts);
    int status = facts_ask(cli, &advice.facts, &advice.state);
    if (!status)
        status = profile_place(cli, &advice.state, &advice.profile);
    if (status)
        return status;
    return measures ? measure(&advice) : judge(&advice);
}
