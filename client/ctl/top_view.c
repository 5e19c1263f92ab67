#include "client/ctl/top.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"

#define BAR 10
#define NARROW 60 /* columns under which a row has only what matters most */

static bool is_narrow(const struct top *top)
{
    return top->width && top->width < NARROW;
}

static const cJSON *tier_of(const cJSON *device, const char *name)
{
    const cJSON *tier, *tiers = member(device, "tiers");

    cJSON_ArrayForEach(tier, tiers) if (!strcmp(text_of(tier, "tier"), name)) return tier;
    return NULL;
}

/* ---- Rows: of a list some, in an order ---- */

struct rows {
    const cJSON **at;
    unsigned n, shown;
};

/* By what: a member that is a number (largest first) or a text (in its order); NULL: as they come. */
static int compare(const void *a, const void *b, void *by)
{
    const cJSON *one = member(*(const cJSON *const *)a, by), *other = member(*(const cJSON *const *)b, by);

    if (cJSON_IsNumber(one) && cJSON_IsNumber(other))
        return (one->valuedouble < other->valuedouble) - (one->valuedouble > other->valuedouble);
    if (cJSON_IsString(one) && cJSON_IsString(other))
        return strcmp(one->valuestring, other->valuestring);
    return cJSON_IsString(other) - cJSON_IsString(one);
}

static struct rows rows_of(const cJSON *list, bool (*wanted)(const cJSON *row), const char *by)
{
    struct rows rows = {.at = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(cJSON *))};
    const cJSON *row;

    if (!rows.at)
        out_of_memory();
    cJSON_ArrayForEach(row, list) if (!wanted || wanted(row)) rows.at[rows.n++] = row;
    if (by)
        qsort_r(rows.at, rows.n, sizeof(cJSON *), compare, (void *)by);
    return rows;
}

/* ---- Cells ---- */

static void cell_bar(struct grid *grid, double part, double whole)
{
    char bar[BAR + 1];
    double fraction = whole > 0 ? fmin(part / whole, 1) : 0;

    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)(fraction * BAR + 0.5));
    bar[BAR] = 0;
    grid_cell(grid, "[%s]", bar);
}

static void cell_percent(struct grid *grid, double part, double whole)
{
    grid_cell(grid, "%.0f %%", whole > 0 ? part / whole * 100 : 0);
}

static void cell_rate(struct grid *grid, const cJSON *row, const char *name)
{
    char text[UNITS_TEXT];

    grid_cell(grid, "%s", cJSON_IsNumber(member(row, name)) ? units_rate(number(row, name), text) : "-");
}

/* ---- Sections: titles and a row each, for wide and for narrow screens ---- */

static void wide_device(struct grid *grid, const cJSON *row)
{
    const cJSON *device = tier_of(row, "device");

    grid_member(grid, row, "index");
    grid_member(grid, row, "name");
    grid_member(grid, row, "state");
    cell_bar(grid, number(device, "used"), number(device, "capacity"));
    grid_bytes(grid, device, "used");
    grid_bytes(grid, device, "capacity");
    grid_bytes(grid, tier_of(row, "host"), "used");
    grid_bytes(grid, tier_of(row, "disk"), "used");
}

static void narrow_device(struct grid *grid, const cJSON *row)
{
    const cJSON *device = tier_of(row, "device");

    grid_member(grid, row, "index");
    grid_bytes(grid, device, "used");
    cell_percent(grid, number(device, "used"), number(device, "capacity"));
}

static void wide_link(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "device");
    grid_member(grid, row, "link");
    cell_rate(grid, row, "gb_per_s");
    cell_rate(grid, row, "gb_per_s_measured");
    grid_member(grid, row, "jobs");
    grid_bytes(grid, row, "bytes_queued");
}

static void narrow_link(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "link");
    cell_rate(grid, row, "gb_per_s");
}

static void wide_op(struct grid *grid, const cJSON *row)
{
    double done = number(row, "bytes_done"), total = number(row, "bytes_total");

    grid_member(grid, row, "op");
    grid_member(grid, row, "verb");
    cell_bar(grid, done, total);
    cell_percent(grid, done, total);
    grid_bytes(grid, row, "bytes_total");
    cell_rate(grid, row, "gb_per_s");
    grid_seconds(grid, row, "seconds_left");
}

static void narrow_op(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "verb");
    cell_percent(grid, number(row, "bytes_done"), number(row, "bytes_total"));
}

static void wide_model(struct grid *grid, const cJSON *row)
{
    const cJSON *tiers = member(row, "stored_by_tier"), *leases = member(row, "leases");

    grid_member(grid, row, "name");
    grid_member(grid, row, "state");
    grid_member(grid, row, "groups");
    grid_bytes(grid, tiers, "device");
    grid_bytes(grid, tiers, "host");
    grid_bytes(grid, tiers, "disk");
    grid_cell(grid, "%d", cJSON_GetArraySize(leases));
    grid_member(grid, row, "lock_waits");
}

static void narrow_model(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "name");
    grid_bytes(grid, row, "bytes");
}

static void wide_session(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "pid");
    grid_member(grid, row, "client");
    grid_take(grid, cell_owner(row, "uid"));
    grid_member(grid, row, "state");
    grid_member(grid, row, "leases");
    grid_bytes(grid, row, "bytes");
    grid_seconds(grid, row, "seconds");
    grid_member(grid, row, "awaiting");
}

static void narrow_session(struct grid *grid, const cJSON *row)
{
    grid_member(grid, row, "pid");
    grid_bytes(grid, row, "bytes");
}

static const struct section {
    const char *wide_titles[GRID_COLUMNS_MAX + 1], *narrow_titles[4];
    void (*wide)(struct grid *grid, const cJSON *row);
    void (*narrow)(struct grid *grid, const cJSON *row);
} sections[] = {
    {{">N", "DEVICE", "STATE", "", ">USED", ">OF", ">HOST", ">DISK"},
     {">N", ">USED", ">"},
     wide_device,
     narrow_device},
    {{">N", "LINK", ">NOW", ">BEST", ">JOBS", ">QUEUE"}, {"LINK", ">NOW"}, wide_link, narrow_link},
    {{"OP", "VERB", "", ">DONE", ">OF", ">RATE", ">LEFT"}, {"VERB", ">DONE"}, wide_op, narrow_op},
    {{"MODEL", "STATE", ">GROUPS", ">DEVICE", ">HOST", ">DISK", ">LEASES", ">WAITS"},
     {"MODEL", ">BYTES"},
     wide_model,
     narrow_model},
    {{">PID", "CLIENT", ">UID", "STATE", ">LEASES", ">BYTES", ">AGE", "AWAITING"},
     {">PID", ">BYTES"},
     wide_session,
     narrow_session},
};

#define SECTIONS (sizeof(sections) / sizeof(sections[0]))

static bool is_moving(const cJSON *link)
{
    return number(link, "gb_per_s") > 0 || number(link, "jobs") > 0;
}

static bool is_under_way(const cJSON *op)
{
    return !strcmp(text_of(op, "state"), "running") || !strcmp(text_of(op, "state"), "queued");
}

/* Those of all devices, each with the number of its own. The caller owns them. */
static cJSON *links_of(const cJSON *devices)
{
    cJSON *all = cJSON_CreateArray();
    const cJSON *device, *link, *links;

    cJSON_ArrayForEach(device, devices)
    {
        links = member(device, "links");
        cJSON_ArrayForEach(link, links)
        {
            cJSON *twin = cJSON_Duplicate(link, true);
            cJSON_AddNumberToObject(twin, "device", number(device, "index"));
            cJSON_AddItemToArray(all, twin);
        }
    }
    return all;
}

/* What a section leaves of its share goes to those after it. */
static void share_out(struct rows *rows, unsigned lines)
{
    unsigned wanting = 0;

    for (unsigned i = 0; i < SECTIONS; i++)
        wanting += rows[i].n > 0;
    for (unsigned i = 0; i < SECTIONS; i++) {
        if (!rows[i].n)
            continue;
        unsigned share = lines / wanting--;
        rows[i].shown = share < 2 ? 0 : rows[i].n < share - 1 ? rows[i].n : share - 1;
        lines -= rows[i].shown ? rows[i].shown + 1 : 0;
    }
}

static void show_section(const struct top *top, const struct section *section, const struct rows *rows)
{
    const char *const *titles = is_narrow(top) ? section->narrow_titles : section->wide_titles;
    struct grid grid;

    grid_begin(&grid, titles);
    for (unsigned i = 0; i < rows->shown; i++)
        (is_narrow(top) ? section->narrow : section->wide)(&grid, rows->at[i]);
    grid_end(&grid, top->cli);
}

/* At most as wide as the screen. */
static void show_line(const struct top *top, const char *text)
{
    int width = top->width ? (int)top->width : (int)strlen(text);

    printf("%.*s\n", width, text);
}

/* "2 models", "1 model". */
static int count(char *text, size_t size, const cJSON *status, const char *what)
{
    double n = number(status, what);
    char digits[UNITS_TEXT];

    return snprintf(text, size, ", %s %.*s", units_number(n, digits), (int)strlen(what) - (n == 1), what);
}

static void show_head(const struct top *top, const struct rows *rows)
{
    const cJSON *status = top->status;
    char version[41], uptime[UNITS_TEXT], line[256];
    unsigned more = 0;

    snprintf(version, sizeof(version), "%s", text_of(status, "version"));
    report_clean(version);
    for (unsigned i = 0; i < SECTIONS; i++)
        more += rows[i].n - rows[i].shown;
    int n = snprintf(line, sizeof(line), "hbmd %s, up %s", version,
                     units_seconds(number(status, "uptime_seconds"), uptime));
    n += count(line + n, sizeof(line) - (size_t)n, status, "models");
    n += count(line + n, sizeof(line) - (size_t)n, status, "buffers");
    n += count(line + n, sizeof(line) - (size_t)n, status, "sessions");
    if (member(status, "degraded") && member(status, "degraded")->child)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "; DEGRADED");
    if (more)
        snprintf(line + n, sizeof(line) - (size_t)n, "; %u rows have no room", more);
    show_line(top, line);
}

void top_show(const struct top *top)
{
    bool by_name = !strcmp(top->sort, "name"), by_age = !strcmp(top->sort, "age");
    const cJSON *devices = member(top->status, "devices");
    _cleanup_json_ cJSON *links = links_of(devices);
    struct rows rows[SECTIONS] = {
        rows_of(devices, NULL, NULL),
        rows_of(links, is_moving, NULL),
        rows_of(top->ops, is_under_way, NULL),
        rows_of(top->models, NULL,
                by_name  ? "name"
                : by_age ? NULL
                         : "bytes"),
        rows_of(top->sessions, NULL,
                by_name  ? "client"
                : by_age ? "seconds"
                         : "bytes"),
    };
    unsigned around = top->live ? 2 : 1;

    share_out(rows, top->height ? top->height > around ? top->height - around : 0 : ~0u);
    show_head(top, rows);
    for (unsigned i = 0; i < SECTIONS; i++) {
        show_section(top, &sections[i], &rows[i]);
        free(rows[i].at);
    }
    if (top->live && top->height > 1) {
        char keys[80];
        snprintf(keys, sizeof(keys), "by %s; b bytes, n name, a age; q quits", top->sort);
        printf("%.*s", (int)(top->width ? top->width : sizeof(keys)), keys);
    }
}
