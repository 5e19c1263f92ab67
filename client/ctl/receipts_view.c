/* What compress did, for people: what it saves, what it cost, and by which range, each a table that fits 80
 * columns. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/member.h"
#include "client/ctl/op_rows.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/verbs.h"

/* Nothing has been encoded yet, and so nothing measured. */
static void show_parked(const cJSON *rows)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, rows)
    {
        if (did_nothing(row))
            continue;
        _cleanup_free_ char *name = cell_text(member(row, "name"));
        _cleanup_free_ char *form = cell_text(member(row, "parks_as"));
        report_clean(name);
        printf("%s: raw on the device, %s whenever it is off it\n", name, form);
    }
    print_skipped(rows);
}

static void name_cells(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "name");
    grid_member(grid, row, "encoding");
    grid_seconds(grid, row, "seconds");
    rate_cell(grid, row);
}

/* JSON has no infinity: a ratio that has none is null, and means that the result is exact. */
static void db_cell(struct grid *grid, const cJSON *item)
{
    if (cJSON_IsNumber(item))
        grid_cell(grid, "%.2f", item->valuedouble);
    else
        grid_cell(grid, "%s", cJSON_IsNull(item) ? "exact" : "-");
}

static void quality_cells(struct grid *grid, const cJSON *row)
{
    double before = number(row, "bytes_before"), after = number(row, "bytes_after");

    grid_bytes(grid, row, "bytes_before");
    grid_bytes(grid, row, "bytes_after");
    if (before > 0 && after > 0)
        grid_cell(grid, "%.2f", before / after);
    else
        grid_cell(grid, "-");
    db_cell(grid, member(row, "sqnr_db"));
    db_cell(grid, member(row, "sqnr_inlier_db"));
    grid_member(grid, row, "max_abs_error");
    grid_member(grid, row, "max_rel_error");
}

static void element_cells(struct grid *grid, const cJSON *row)
{
    const cJSON *range = member(row, "range");

    if (cJSON_IsNumber(member(row, "clipped_fraction")))
        grid_cell(grid, "%.3g %%", number(row, "clipped_fraction") * 100);
    else
        grid_cell(grid, "-");
    grid_member(grid, row, "zeroed");
    grid_member(grid, row, "nans");
    grid_member(grid, row, "infinities");
    grid_member(grid, row, "method");
    if (cJSON_GetArraySize(range) == 2)
        grid_cell(grid, "%.4g to %.4g", range->child->valuedouble, range->child->next->valuedouble);
    else
        grid_cell(grid, "-");
}

/* Numbered, so that a name stands once, with room for it. */
static void show_table(const struct cli *cli, const cJSON *rows, const char *const *titles,
                       void (*cells)(struct grid *grid, const cJSON *row))
{
    const cJSON *row;
    struct grid grid;
    unsigned n = 0;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, rows)
    {
        if (did_nothing(row))
            continue;
        grid_cell(&grid, "%u", ++n);
        cells(&grid, row);
    }
    grid_end(&grid, cli);
}

static bool all_did_nothing(const cJSON *rows)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, rows) if (!did_nothing(row)) return false;
    return true;
}

void show_receipts(const struct cli *cli, const cJSON *rows)
{
    static const char *const names[] = {">N", "NAME", "ENCODING", ">TIME", ">GB/s", NULL};
    static const char *const quality[] = {">N",       ">BEFORE",    ">AFTER",    ">RATIO", ">SQNR dB",
                                          ">INLIERS", ">MAX ERROR", ">RELATIVE", NULL};
    static const char *const elements[] = {">N",    ">CLIPPED", ">ZEROED", ">NANS",
                                           ">INFS", "RANGE BY", ">RANGE",  NULL};
    const char *mode = cli_value(cli, "--mode");

    if (mode && !strcmp(mode, "park")) {
        show_parked(rows);
        return;
    }
    if (!all_did_nothing(rows)) {
        show_table(cli, rows, names, name_cells);
        putchar('\n');
        show_table(cli, rows, quality, quality_cells);
        putchar('\n');
        show_table(cli, rows, elements, element_cells);
    }
    print_skipped(rows);
}
