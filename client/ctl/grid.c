#include "client/ctl/grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "client/ctl/cell.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal.h"
#include "client/ctl/text.h"
#include "client/ctl/units.h"

#define GAP 2
#define NARROWEST 4

void grid_begin(struct grid *grid, const char *const *titles)
{
    *grid = (struct grid){.titles = titles};
    while (titles[grid->columns])
        grid->columns++;
}

void grid_take(struct grid *grid, char *cell)
{
    if (grid->n == grid->room) {
        unsigned room = grid->room ? grid->room * 2 : 64;
        char **grown = reallocarray(grid->cells, room, sizeof(*grown));
        if (!grown)
            out_of_memory();
        grid->cells = grown;
        grid->room = room;
    }
    report_clean(cell);
    grid->cells[grid->n++] = cell;
}

void grid_cell(struct grid *grid, const char *format, ...)
{
    va_list arguments;
    char *cell;

    va_start(arguments, format);
    cell = text_new_va(format, arguments);
    va_end(arguments);
    if (!cell)
        out_of_memory();
    grid_take(grid, cell);
}

void grid_member(struct grid *grid, const cJSON *row, const char *name)
{
    grid_take(grid, cell_text(cJSON_GetObjectItemCaseSensitive(row, name)));
}

void grid_bytes(struct grid *grid, const cJSON *row, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
    char text[UNITS_TEXT];

    grid_cell(grid, "%s", cJSON_IsNumber(item) ? units_bytes(item->valuedouble, text) : "-");
}

void grid_seconds(struct grid *grid, const cJSON *row, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
    char text[UNITS_TEXT];

    grid_cell(grid, "%s", cJSON_IsNumber(item) ? units_seconds(item->valuedouble, text) : "-");
}

/* Columns that the first `bytes` of text take on the screen; *bytes gets how much fits into `limit` of them. */
static unsigned width_of(const char *text, unsigned limit, size_t *bytes)
{
    mbstate_t state = {0};
    unsigned width = 0;
    size_t at = 0;

    while (text[at]) {
        wchar_t c;
        size_t n = mbrtowc(&c, text + at, MB_CUR_MAX, &state);
        int columns = 1;
        if (n == (size_t)-1 || n == (size_t)-2 || !n) {
            n = 1;
            state = (mbstate_t){0};
        } else {
            columns = wcwidth(c) < 0 ? 1 : wcwidth(c);
        }
        if (width + (unsigned)columns > limit)
            break;
        width += (unsigned)columns;
        at += n;
    }
    if (bytes)
        *bytes = at;
    return width;
}

/* Numbers stand to the right and are never cut: half a number is a wrong one. */
static void fit(const struct grid *grid, unsigned *widths, unsigned screen)
{
    unsigned total = (grid->columns - 1) * GAP;

    for (unsigned i = 0; i < grid->columns; i++)
        total += widths[i];
    while (screen && total > screen) {
        unsigned *widest = NULL;
        for (unsigned i = 0; i < grid->columns; i++)
            if (grid->titles[i][0] != '>' && widths[i] > NARROWEST && (!widest || widths[i] > *widest))
                widest = &widths[i];
        if (!widest)
            return;
        --*widest;
        total--;
    }
}

static void print_cell(const char *text, unsigned width, bool right, bool last)
{
    unsigned full = width_of(text, ~0u, NULL), cut;
    size_t bytes;

    if (full <= width) {
        if (right)
            printf("%*s%s", (int)(width - full), "", text);
        else
            printf("%s%*s", text, last ? 0 : (int)(width - full), "");
    } else {
        cut = width_of(text, width - 1, &bytes);
        printf("%.*s%s%*s", (int)bytes, text, MB_CUR_MAX > 1 ? "…" : "~", last ? 0 : (int)(width - 1 - cut), "");
    }
    if (!last)
        printf("%*s", GAP, "");
}

static void print_row(const struct grid *grid, const unsigned *widths, const char *const *cells)
{
    for (unsigned i = 0; i < grid->columns; i++) {
        bool right = grid->titles[i][0] == '>';
        print_cell(cells[i], widths[i], right, i + 1 == grid->columns);
    }
}

void grid_forget(struct grid *grid)
{
    for (unsigned i = 0; i < grid->n; i++)
        free(grid->cells[i]);
    free(grid->cells);
    *grid = (struct grid){0};
}

void grid_end(struct grid *grid, const struct cli *cli)
{
    const char *titles[GRID_COLUMNS_MAX];
    unsigned widths[GRID_COLUMNS_MAX];

    for (unsigned i = 0; i < grid->columns; i++) {
        titles[i] = grid->titles[i] + (grid->titles[i][0] == '>');
        widths[i] = width_of(titles[i], ~0u, NULL);
    }
    for (unsigned i = 0; i < grid->n; i++) {
        unsigned width = width_of(grid->cells[i], ~0u, NULL);
        if (width > widths[i % grid->columns])
            widths[i % grid->columns] = width;
    }
    fit(grid, widths, terminal_width());
    if (grid->n) {
        fputs(terminal_bold(cli), stdout);
        print_row(grid, widths, titles);
        printf("%s\n", terminal_plain(cli));
    }
    for (unsigned i = 0; i < grid->n; i++) {
        if (i % grid->columns == 0) {
            print_row(grid, widths, (const char *const *)grid->cells + i);
            putchar('\n');
        }
    }
    grid_forget(grid);
}
