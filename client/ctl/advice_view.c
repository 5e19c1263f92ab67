/* What advise-codec says, for people: what each encoding would take and keep, what is advised for each group, and both in
 * all. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/advice.h"
#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

static void db_cell(struct grid *grid, const struct advice_sum *sum)
{
    if (!sum->tried)
        grid_cell(grid, "-");
    else if (isinf(sum->worst_db))
        grid_cell(grid, "exact");
    else
        grid_cell(grid, "%.2f", sum->worst_db);
}

static void sum_cells(struct grid *grid, const struct advice_sum *sum)
{
    char text[UNITS_TEXT];

    grid_cell(grid, "%s", units_bytes(sum->after, text));
    grid_cell(grid, "%.2f", sum->after > 0 ? sum->before / sum->after : 1.0);
    db_cell(grid, sum);
    grid_cell(grid, "%.4g", sum->max_abs_error);
    grid_cell(grid, "%.3g %%", sum->zeroed * 100);
    if (sum->seconds > 0)
        grid_cell(grid, "%.3g", sum->moved / sum->seconds / 1e9);
    else
        grid_cell(grid, "-");
}

static const char *group_name(const cJSON *row)
{
    const char *group = cJSON_GetStringValue(member(row, "group")), *name = cJSON_GetStringValue(member(row, "name"));

    return group ? group : name ? name : "-";
}

/* Of each group every encoding, or of all together. */
static void show_tries(const struct cli *cli, const cJSON *rows, const cJSON *encodings, bool whole)
{
    static const char *const titles[] = {"GROUP",       "ENCODING", ">AFTER", ">RATIO", ">WORST dB",
                                         ">MAX ERROR", ">ZEROED",  ">GB/s",  ">HOLDS", NULL};
    const cJSON *encoding;
    struct grid grid;

    grid_begin(&grid, titles);
    for (const cJSON *row = rows->child; row; row = whole ? NULL : advice_next_group(row)) {
        cJSON_ArrayForEach(encoding, encodings)
        {
            struct advice_sum sum = advice_sum(row, encoding->valuestring, whole);
            if (!sum.tried)
                continue;
            grid_cell(&grid, "%s", whole ? "all" : group_name(row));
            grid_cell(&grid, "%s", sum.encoding);
            sum_cells(&grid, &sum);
            grid_cell(&grid, "%u of %u", sum.hold, sum.tried);
        }
    }
    grid_end(&grid, cli);
}

/* What its rows that were tried share. */
static const cJSON *tried_row(const cJSON *row)
{
    const cJSON *end = advice_next_group(row);

    for (; row != end; row = row->next)
        if (!cJSON_IsString(member(row, "left")))
            return row;
    return NULL;
}

static void show_groups(const struct cli *cli, const cJSON *rows)
{
    static const char *const titles[] = {"GROUP", ">BEFORE", "FIRST", "ADVICE", ">AFTER", ">WORST dB", "WHY", NULL};
    char text[UNITS_TEXT];
    struct grid grid;

    grid_begin(&grid, titles);
    for (const cJSON *row = rows->child; row; row = advice_next_group(row)) {
        const cJSON *tried = tried_row(row);
        if (!tried)
            continue;
        struct advice_sum sum = advice_sum(row, NULL, false);
        grid_cell(&grid, "%s", group_name(row));
        grid_cell(&grid, "%s", units_bytes(sum.before, text));
        grid_member(&grid, tried, "first");
        if (sum.tried)
            grid_member(&grid, tried, "advice");
        else
            grid_cell(&grid, "leave alone");
        grid_cell(&grid, "%s", units_bytes(sum.after, text));
        db_cell(&grid, &sum);
        grid_member(&grid, tried, "why");
    }
    grid_end(&grid, cli);
}

/* The 16 bits that hold for each group. */
static double bytes_at_first(const cJSON *rows)
{
    double bytes = 0;

    for (const cJSON *row = rows->child; row; row = advice_next_group(row)) {
        const cJSON *tried = tried_row(row);
        const char *first = tried ? cJSON_GetStringValue(member(tried, "first")) : NULL;
        struct advice_sum sum = advice_sum(row, first ? first : "", false);
        bytes += sum.after;
    }
    return bytes;
}

static void show_totals(const cJSON *rows, bool applied)
{
    char before[UNITS_TEXT], first[UNITS_TEXT], after[UNITS_TEXT];
    struct advice_sum sum = advice_sum(rows->child, NULL, true);
    double half = bytes_at_first(rows);
    unsigned left = 0;
    const cJSON *row;

    cJSON_ArrayForEach(row, rows) left += cJSON_IsString(member(row, "left"));
    printf("%s", units_bytes(sum.before, before));
    if (half < sum.before)
        printf(": %s in 16 bits, which is to be tried first", units_bytes(half, first));
    printf("%s %s as advised", half < sum.before ? ";" : ":", units_bytes(sum.after, after));
    if (left)
        printf("; %u buffer%s left alone", left, left == 1 ? "" : "s");
    puts(applied ? "; applied" : "");
}

void show_advice(const struct cli *cli, const cJSON *rows)
{
    show_advised(cli, rows, cli_value(cli, "--apply"));
}

void show_advised(const struct cli *cli, const cJSON *rows, bool applied)
{
    _cleanup_json_ cJSON *encodings = advice_encodings(rows);

    if (!rows->child)
        return;
    show_tries(cli, rows, encodings, !cli_value(cli, "--verbose"));
    putchar('\n');
    show_groups(cli, rows);
    putchar('\n');
    show_totals(rows, applied);
}

void show_evaluations(const struct cli *cli, const cJSON *evaluations)
{
    static const char *const titles[] = {"ENCODING", ">BUFFERS", ">AFTER", ">EXIT", "RESULT", NULL};
    const cJSON *row;
    struct grid grid;

    putchar('\n');
    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, evaluations)
    {
        grid_member(&grid, row, "encoding");
        grid_member(&grid, row, "buffers");
        grid_bytes(&grid, row, "bytes_after");
        grid_member(&grid, row, "exit");
        grid_member(&grid, row, "result");
    }
    grid_end(&grid, cli);
}
