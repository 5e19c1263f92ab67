/* The map on a terminal: a bar a tier, a letter a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/map.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"

#define PLAIN_BAR 60 /* columns of a bar where no terminal says how many there are */
#define BEFORE 7     /* columns of what stands before a bar */
#define BEHIND 24    /* and behind it, where there is room for both */
#define BAR_MIN 8
#define FREE '.'
#define OTHER '#' /* used, by nothing that this user sees */
#define SMALLER '+'
#define LOOSE '='

/* The largest models have letters: large ones where somebody has a lease. */
static int letter(const struct map *map, unsigned owner, bool leased)
{
    unsigned place = 0;

    if (!*map->owners[owner].name)
        return LOOSE;
    for (unsigned i = 0; i < owner; i++)
        place += *map->owners[i].name != 0;
    return place > 25 ? SMALLER : (leased ? 'A' : 'a') + (int)place;
}

static void print_bar(const struct map *map, const struct piece *pieces, unsigned n, const cJSON *tier,
                      unsigned columns)
{
    double capacity = number(tier, "capacity"), used = number(tier, "used"), at = 0;
    double whole = capacity > used ? capacity : used;
    unsigned column = 0;

    for (unsigned i = 0; i <= n; i++) {
        at = i < n ? at + pieces[i].bytes : used;
        int mark = i < n ? letter(map, pieces[i].owner, pieces[i].leased) : OTHER;
        double end = whole > 0 ? at / whole * columns : 0;
        if (i < n && end > 0 && end < 1)
            end = 1; /* what the legend names first is seen, however little it is */
        while (column < columns && column + 0.5 < end) {
            putchar(mark);
            column++;
        }
    }
    for (; column < columns; column++)
        putchar(FREE);
}

static void print_tier(const struct map *map, const char *device, const cJSON *tier, unsigned width)
{
    bool narrow = width && width < BEFORE + BAR_MIN + BEHIND;
    unsigned columns = !width   ? PLAIN_BAR
                       : narrow ? width > BEFORE + 1 ? width - BEFORE - 1 : 1
                                : width - BEFORE - BEHIND;
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tier, "tier"));
    char used[UNITS_TEXT], capacity[UNITS_TEXT];
    unsigned n;
    const struct piece *pieces = map_tier(map, device, name ? name : "", &n);

    printf("%-6s ", name);
    print_bar(map, pieces, n, tier, columns);
    if (narrow)
        putchar('\n');
    else
        printf(" %s of %s\n", units_bytes(number(tier, "used"), used),
               units_bytes(number(tier, "capacity"), capacity));
}

static void print_legend(const struct map *map)
{
    char bytes[UNITS_TEXT];
    bool smaller = false;

    for (unsigned i = 0; i < map->n_owners; i++) {
        const struct map_owner *owner = &map->owners[i];
        int mark = letter(map, i, owner->leased);
        if (mark == SMALLER) {
            smaller = true;
            continue;
        }
        _cleanup_free_ char *name = strdup(*owner->name ? owner->name : "buffers of no model");
        if (!name)
            out_of_memory();
        report_clean(name);
        printf("%c  %s, %s%s\n", mark, name, units_bytes(owner->bytes, bytes), owner->leased ? ", leased" : "");
    }
    if (smaller)
        printf("%c  smaller models\n", SMALLER);
    printf("%c  others', or being given back or kept for the next move\n%c  free\n", OTHER, FREE);
}

void map_print(const struct map *map, unsigned width)
{
    const cJSON *device, *tier;

    cJSON_ArrayForEach(device, map->devices)
    {
        const cJSON *tiers = cJSON_GetObjectItemCaseSensitive(device, "tiers");
        const char *uuid = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(device, "uuid"));
        _cleanup_free_ char *name = cell_text(cJSON_GetObjectItemCaseSensitive(device, "name"));
        report_clean(name);
        printf("device %.0f, %s\n", number(device, "index"), name);
        cJSON_ArrayForEach(tier, tiers) print_tier(map, uuid ? uuid : "", tier, width);
    }
    print_legend(map);
}
