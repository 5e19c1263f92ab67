/* Operations and what they did, for people. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/op_rows.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

static bool has_number(const cJSON *row, const char *name, double *value)
{
    const cJSON *item = member(row, name);

    *value = cJSON_IsNumber(item) ? item->valuedouble : 0;
    return cJSON_IsNumber(item);
}

bool did_nothing(const cJSON *row)
{
    return cJSON_IsString(member(row, "error")) || cJSON_IsString(member(row, "skipped"));
}

void print_skipped(const cJSON *rows)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, rows)
    {
        if (!cJSON_IsString(member(row, "skipped")))
            continue;
        _cleanup_free_ char *name = cell_text(member(row, "name"));
        _cleanup_free_ char *why = cell_text(member(row, "skipped"));
        report_clean(name);
        report_clean(why);
        printf("%s: left as it is: %s\n", name, why);
    }
}

void rate_cell(struct grid *grid, const cJSON *row)
{
    double rate;

    if (has_number(row, "gb_per_s", &rate))
        grid_cell(grid, "%.3g", rate);
    else
        grid_cell(grid, "-");
}

static void op_cells(struct grid *grid, const cJSON *row)
{
    char done[UNITS_TEXT], total[UNITS_TEXT];
    double bytes_done, bytes_total;

    grid_member(grid, row, "op");
    grid_member(grid, row, "verb");
    grid_member(grid, row, "state");
    has_number(row, "bytes_done", &bytes_done);
    has_number(row, "bytes_total", &bytes_total);
    grid_cell(grid, "%s of %s", units_bytes(bytes_done, done), units_bytes(bytes_total, total));
    grid_seconds(grid, row, "seconds");
    grid_seconds(grid, row, "seconds_left");
    rate_cell(grid, row);
    grid_member(grid, row, "owner");
    grid_member(grid, row, "error");
    grid_member(grid, row, "detail");
}

static const char *const op_titles[] = {"OP",    "VERB",  "STATE", ">BYTES", ">TIME", ">LEFT",
                                        ">GB/s", "OWNER", "ERROR", "DETAIL", NULL};

void show_ops(const struct cli *cli, const cJSON *ops)
{
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, op_titles);
    cJSON_ArrayForEach(row, ops) op_cells(&grid, row);
    grid_end(&grid, cli);
}

void show_op(const struct cli *cli, const cJSON *op)
{
    struct grid grid;

    grid_begin(&grid, op_titles);
    op_cells(&grid, op);
    grid_end(&grid, cli);
}

static void range_cell(struct grid *grid, const cJSON *observed, const char *name)
{
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(observed, name);

    if (cJSON_GetArraySize(range) == 2)
        grid_cell(grid, "%.6g .. %.6g", cJSON_GetNumberValue(cJSON_GetArrayItem(range, 0)), cJSON_GetNumberValue(cJSON_GetArrayItem(range, 1)));
    else
        grid_cell(grid, "-");
}

void show_observed(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"NAME", ">BATCHES", ">ELEMENTS", ">NONFINITE", ">RANGE", ">AVERAGE", ">LAST", NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *observed = cJSON_GetObjectItemCaseSensitive(row, "observed");
        if (!cJSON_IsObject(observed))
            continue;
        grid_member(&grid, row, "name");
        grid_member(&grid, observed, "batches");
        grid_member(&grid, observed, "elements");
        grid_member(&grid, observed, "nonfinite");
        range_cell(&grid, observed, "range");
        range_cell(&grid, observed, "average");
        range_cell(&grid, observed, "last");
    }
    grid_end(&grid, cli);
    print_skipped(rows);
}

/* Decoding loses nothing more: there is no quality to show. */
void show_decoded(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"NAME", "ENCODING", ">BEFORE", ">AFTER", ">TIME", ">GB/s", NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        if (did_nothing(row))
            continue;
        grid_member(&grid, row, "name");
        grid_member(&grid, row, "encoding");
        grid_bytes(&grid, row, "bytes_before");
        grid_bytes(&grid, row, "bytes_after");
        grid_seconds(&grid, row, "seconds");
        rate_cell(&grid, row);
    }
    grid_end(&grid, cli);
    print_skipped(rows);
}

static void show_moves(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"NAME", "ID", "TIER", ">SIZE", ">TIME", ">GB/s", NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        if (did_nothing(row))
            continue;
        grid_member(&grid, row, "name");
        grid_member(&grid, row, "id");
        grid_member(&grid, row, "tier");
        grid_bytes(&grid, row, "size");
        grid_seconds(&grid, row, "seconds");
        rate_cell(&grid, row);
    }
    grid_end(&grid, cli);
    print_skipped(rows);
}

void show_freed(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"NAME", "ID", ">FREED", NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        grid_member(&grid, row, "name");
        grid_member(&grid, row, "id");
        grid_bytes(&grid, row, "size");
    }
    grid_end(&grid, cli);
}

/* What lies in `tier` now, as one line; nothing where nothing does. */
static void print_moved(const struct cli *cli, const cJSON *rows, const char *tier)
{
    const char *device = cli_value(cli, "--device");
    const char *what = cli->n_words ? cli->words[0] : device ? "device " : "all devices";
    char text[UNITS_TEXT], time[UNITS_TEXT], speed[UNITS_TEXT];
    double bytes = 0, seconds = 0, rate = 0, size, stored, lie = 0;
    unsigned n = 0;
    const cJSON *row;

    cJSON_ArrayForEach(row, rows)
    {
        const char *lies = cJSON_GetStringValue(member(row, "tier"));
        if (did_nothing(row) || !lies || strcmp(lies, tier))
            continue;
        n++;
        has_number(row, "size", &size);
        bytes += size;
        lie += has_number(row, "stored_size", &stored) ? stored : size;
        has_number(row, "seconds", &seconds);
        has_number(row, "gb_per_s", &rate);
    }
    if (!n)
        return;
    _cleanup_free_ char *name = NULL;
    if (asprintf(&name, "%s%s", what, cli->n_words || !device ? "" : device) < 0) {
        name = NULL;
        return;
    }
    report_clean(name);
    printf("%s: %u buffer%s, %s ", name, n, n == 1 ? "" : "s", units_bytes(bytes, text));
    if (lie < bytes)
        printf("as %s ", units_bytes(lie, text));
    if (rate > 0) {
        printf("to %s", tier);
        if (rate * 1e9 * seconds < 0.99 * bytes)
            printf(" (%s of it moved now)", units_bytes(rate * 1e9 * seconds, text));
        printf(" in %s, %s\n", units_seconds(seconds, time), units_rate(rate, speed));
    } else {
        printf("already there, %s %s\n", strcmp(tier, "disk") && strcmp(tier, "peer") ? "in" : "on", tier);
    }
}

void show_moved(const struct cli *cli, const cJSON *rows)
{
    static const char *const tiers[] = {"device", "host", "disk", "peer"};

    if (cli_value(cli, "--verbose")) {
        show_moves(cli, rows);
        return;
    }
    for (unsigned i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++)
        print_moved(cli, rows, tiers[i]);
    print_skipped(rows);
}
