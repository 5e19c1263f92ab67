/* Buffers for people: ls, show, hash. Of those that may be very many a row is shown, or kept as its cells, as it
 * comes. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/rpc_client.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

/* What it is to those who attach it, and how it lies meanwhile. */
static void encoding_cell(struct grid *grid, const cJSON *row)
{
    const cJSON *parked = member(row, "parked"), *parks_as = member(row, "parks_as");

    if (cJSON_IsString(parked))
        grid_cell(grid, "raw, parked as %s", parked->valuestring);
    else if (cJSON_IsString(parks_as))
        grid_cell(grid, "raw, parks as %s", parks_as->valuestring);
    else
        grid_member(grid, row, "encoding");
}

struct rows {
    const struct cli *cli;
    void (*show)(struct rows *rows, const cJSON *row);
    struct grid grid;
    size_t n;
};

static void on_row(void *context, const cJSON *row)
{
    struct rows *rows = context;

    if (rows->cli->json)
        report_json_row(row, rows->n);
    else
        rows->show(rows, row);
    rows->n++;
}

static int run_rows(struct rows *rows)
{
    _cleanup_(rpc_closep) struct rpc *rpc = NULL;
    const struct cli *cli = rows->cli;
    int status = rpc_open(cli, &rpc);

    if (!status)
        status = rpc_rows(rpc, cli->verb->method, cli_params(cli), on_row, rows);
    if (!status && cli->json)
        puts(rows->n ? "]" : "[]");
    return status;
}

static void list_buffer(struct rows *rows, const cJSON *row)
{
    struct grid *grid = &rows->grid;

    grid_member(grid, row, "name");
    grid_member(grid, row, "id");
    grid_bytes(grid, row, "size");
    grid_member(grid, row, "dtype");
    grid_take(grid, cell_shape(member(row, "shape")));
    if (cJSON_IsTrue(member(row, "live")))
        grid_cell(grid, "host, live");
    else
        grid_member(grid, row, "tier");
    encoding_cell(grid, row);
    grid_member(grid, row, "handle");
    grid_take(grid, cell_leases(member(row, "leases")));
}

int run_ls(const struct cli *cli)
{
    static const char *const titles[] = {"NAME", "ID",       ">SIZE",  "DTYPE",  "SHAPE",
                                         "TIER", "ENCODING", "HANDLE", "LEASES", NULL};
    struct rows rows = {.cli = cli, .show = list_buffer};

    grid_begin(&rows.grid, titles);
    int status = run_rows(&rows);
    if (!status)
        grid_end(&rows.grid, cli);
    grid_forget(&rows.grid);
    return status;
}

static char *detail_text(const cJSON *item)
{
    if (!strcmp(item->string, "shape"))
        return cell_shape(item);
    if (!strcmp(item->string, "leases"))
        return cell_leases(item);
    if (!strcmp(item->string, "windows"))
        return cell_windows(item);
    return cell_text(item);
}

static bool counts_bytes(const char *name)
{
    return !strcmp(name, "size") || !strcmp(name, "stored_size") || !strcmp(name, "bytes") || !strncmp(name, "bytes_", strlen("bytes_"));
}

/* The reasons of kept_by, a line each. */
static void print_keepers(const cJSON *keepers)
{
    const cJSON *keeper;

    cJSON_ArrayForEach(keeper, keepers)
    {
        _cleanup_free_ char *detail = cell_text(member(keeper, "detail"));
        _cleanup_free_ char *remedy = cell_text(member(keeper, "remedy"));
        report_clean(detail);
        report_clean(remedy);
        printf("  %s; %s\n", detail, remedy);
    }
}

/* A receipt, say, is a row of its own, further in. */
static void print_members(const cJSON *row, int indent)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, row)
    {
        if (cJSON_IsObject(item)) {
            printf("%*s%s\n", indent, "", item->string);
            print_members(item, indent + 2);
            continue;
        }
        if (!strcmp(item->string, "kept_by")) {
            puts(item->string);
            print_keepers(item);
            continue;
        }
        _cleanup_free_ char *text = detail_text(item);
        char size[UNITS_TEXT];
        report_clean(text);
        printf("%*s%-*s %s", indent, "", 20 - indent, item->string, text);
        if (cJSON_IsNumber(item) && counts_bytes(item->string) && item->valuedouble >= 1024)
            printf(" (%s)", units_bytes(item->valuedouble, size));
        putchar('\n');
    }
}

void show_details(const struct cli *cli, const cJSON *buffers)
{
    const cJSON *row;

    (void)cli;
    cJSON_ArrayForEach(row, buffers)
    {
        if (row != buffers->child)
            putchar('\n');
        print_members(row, 0);
    }
}

static void show_buffer(struct rows *rows, const cJSON *row)
{
    if (rows->n)
        putchar('\n');
    print_members(row, 0);
}

int run_show(const struct cli *cli)
{
    return run_rows(&(struct rows){.cli = cli, .show = show_buffer});
}

static void show_keepers(struct rows *rows, const cJSON *row)
{
    const cJSON *name = member(row, "name");
    _cleanup_free_ char *called = cell_text(cJSON_IsString(name) ? name : member(row, "id"));
    _cleanup_free_ char *tier = cell_text(member(row, "tier"));
    char size[UNITS_TEXT];

    (void)rows;
    report_clean(called);
    printf("%s (%s, %s)\n", called, units_bytes(cJSON_GetNumberValue(member(row, "size")), size), tier);
    print_keepers(member(row, "kept_by"));
}

int run_why_not_free(const struct cli *cli)
{
    return run_rows(&(struct rows){.cli = cli, .show = show_keepers});
}

void show_priorities(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"NAME", ">PRIORITY", NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *name = member(row, "name");
        grid_take(&grid, cell_text(cJSON_IsString(name) ? name : member(row, "id")));
        grid_member(&grid, row, "priority");
    }
    grid_end(&grid, cli);
}

void show_hashes(const struct cli *cli, const cJSON *rows)
{
    const cJSON *row;

    (void)cli;
    cJSON_ArrayForEach(row, rows)
    {
        const char *hash = cJSON_GetStringValue(member(row, "hash"));
        if (!hash)
            continue; /* a failed row: told at the end */
        _cleanup_free_ char *name = cell_text(member(row, "name"));
        report_clean(name);
        printf("%s  %s\n", hash, name);
    }
}
