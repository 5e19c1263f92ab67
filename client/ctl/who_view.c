/* `hbmctl who`: a line about each device, then who holds what of it. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

/* Its memory is the machine's, and no driver is asked. */
static bool is_host(const cJSON *device)
{
    const char *uuid = cJSON_GetStringValue(member(device, "uuid"));

    return uuid && !strcmp(uuid, "host");
}

static void print_books(const cJSON *device)
{
    const cJSON *driver = member(device, "driver"), *unaccounted = member(device, "unaccounted");
    _cleanup_free_ char *index = cell_text(member(device, "index"));
    _cleanup_free_ char *name = cell_text(member(device, "name"));
    char ledger[UNITS_TEXT], used[UNITS_TEXT], total[UNITS_TEXT], rest[UNITS_TEXT];

    report_clean(name);
    printf("device %s, %s: %s in the ledger; ", index, name, units_bytes(number(device, "ledger"), ledger));
    if (cJSON_IsObject(driver))
        printf("the %s counts %s of %s as used; ", is_host(device) ? "machine" : "driver", units_bytes(number(driver, "used"), used),
               units_bytes(number(driver, "total"), total));
    else
        printf("its worker has not said what is in use; ");
    if (cJSON_IsNumber(unaccounted))
        printf("%s unaccounted\n", units_bytes(unaccounted->valuedouble, rest));
    else
        printf("what else is in use is not known\n");
}

static void tiers(struct grid *grid, const cJSON *row)
{
    grid_bytes(grid, row, "device");
    grid_bytes(grid, row, "host");
    grid_bytes(grid, row, "disk");
}

static void add_accounts(struct grid *grid, const cJSON *device)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, member(device, "accounts"))
    {
        const cJSON *unmapped = member(row, "unmapped");
        grid_cell(grid, "account");
        grid_take(grid, cell_owner(row, "uid"));
        grid_cell(grid, "-");
        grid_cell(grid, "-");
        tiers(grid, row);
        grid_cell(grid, "all that it has");
        grid_cell(grid, "kept");
        grid_take(grid, cell_owner(row, "uid"));
        grid_cell(grid, "-");
        grid_cell(grid, "-");
        tiers(grid, unmapped);
        grid_cell(grid, "of that, mapped by nobody");
    }
}

static void add_sessions(struct grid *grid, const cJSON *device)
{
    const cJSON *row;
    char locked[UNITS_TEXT];

    cJSON_ArrayForEach(row, member(device, "sessions"))
    {
        const char *awaiting = cJSON_GetStringValue(member(row, "awaiting")), *pod = cJSON_GetStringValue(member(row, "pod_uid"));
        grid_cell(grid, "session");
        grid_take(grid, cell_owner(row, "uid"));
        grid_member(grid, row, "pid");
        grid_member(grid, row, "client");
        tiers(grid, row);
        if (awaiting)
            grid_cell(grid, "gone; awaiting %s", awaiting);
        else
            grid_cell(grid, "%s locked%s%s", units_bytes(number(row, "locked"), locked), pod ? ", in pod " : "", pod ? pod : "");
    }
}

static void add_processes(struct grid *grid, const cJSON *device)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, member(device, "processes"))
    {
        _cleanup_free_ char *is = cell_text(member(row, "is"));
        grid_cell(grid, "process");
        grid_member(grid, row, "uid");
        grid_member(grid, row, "pid");
        grid_member(grid, row, "name");
        grid_bytes(grid, row, "bytes");
        grid_cell(grid, "-");
        grid_cell(grid, "-");
        grid_cell(grid, "%s, by the driver's count", is);
    }
}

static void add_rest(struct grid *grid, const cJSON *device)
{
    const cJSON *others = member(device, "others");

    if (number(others, "device") + number(others, "host") + number(others, "disk") > 0) {
        for (unsigned i = 0; i < 4; i++)
            grid_cell(grid, i ? "-" : "others");
        tiers(grid, others);
        grid_cell(grid, "for administrators to see");
    }
    if (number(device, "pooled") > 0) {
        for (unsigned i = 0; i < 5; i++)
            grid_cell(grid, i ? "-" : "pool");
        grid_bytes(grid, device, "pooled");
        grid_cell(grid, "-");
        grid_cell(grid, "free, pinned for its owner's next move");
    }
}

void show_who(const struct cli *cli, const cJSON *devices)
{
    static const char *const titles[] = {"WHAT", ">UID", ">PID", "NAME", ">DEVICE", ">HOST", ">DISK", "HOW", NULL};
    const cJSON *device;
    struct grid grid;

    cJSON_ArrayForEach(device, devices)
    {
        print_books(device);
        grid_begin(&grid, titles);
        add_accounts(&grid, device);
        add_sessions(&grid, device);
        add_rest(&grid, device);
        add_processes(&grid, device);
        grid_end(&grid, cli);
    }
}
