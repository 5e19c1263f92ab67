/* One screen each: the daemon, its devices, models, clients, configuration. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/cell.h"
#include "client/ctl/grid.h"
#include "client/ctl/member.h"
#include "client/ctl/report.h"
#include "client/ctl/scoped.h"
#include "client/ctl/units.h"
#include "client/ctl/verbs.h"

static void print_counts(const cJSON *status, const char *const *names)
{
    for (unsigned i = 0; names[i]; i++) {
        _cleanup_free_ char *text = cell_text(member(status, names[i]));
        printf("%s%s %s", i ? ", " : "", names[i], text);
    }
    putchar('\n');
}

/* Where there is more than the main one. */
static void print_listeners(const cJSON *listeners)
{
    const cJSON *row;

    if (cJSON_GetArraySize(listeners) < 2)
        return;
    cJSON_ArrayForEach(row, listeners)
    {
        _cleanup_free_ char *name = cell_text(member(row, "listener"));
        report_clean(name);
        printf("%s %s: ", row == listeners->child ? "listener" : ", listener", name);
        if (cJSON_IsFalse(member(row, "serves")))
            printf("not served, sessions %.0f", number(row, "sessions"));
        else
            printf("sessions %.0f", number(row, "sessions"));
    }
    putchar('\n');
}

/* Where locks came by: those of resident memory do not. */
static void print_lock_waits(const cJSON *status)
{
    double waits = number(status, "lock_waits"), prefetched = number(status, "prefetched_locks");
    char time[UNITS_TEXT];

    if (waits > 0 || prefetched > 0)
        printf("locks that found memory away %.0f, and took %s; that found it prefetched, or on its way %.0f\n", waits,
               units_seconds(number(status, "lock_wait_seconds"), time), prefetched);
}

static void print_pressure(const cJSON *status)
{
    double evictions = number(status, "evictions");
    char bytes[UNITS_TEXT];

    if (evictions > 0)
        printf("moved away for want of room %.0f, %s; back soon %.0f, and left alone for that %.0f\n", evictions,
               units_bytes(number(status, "evicted_bytes"), bytes), number(status, "bounces"), number(status, "spared"));
}

static void print_degraded(const cJSON *ailments)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, ailments)
    {
        _cleanup_free_ char *cause = cell_text(member(row, "cause"));
        _cleanup_free_ char *remedy = cell_text(member(row, "remedy"));
        char age[UNITS_TEXT];
        printf("degraded: nothing new is taken on for %s: %s; %s\n", units_seconds(number(row, "seconds"), age),
               cause, remedy);
    }
}

void show_status(const struct cli *cli, const cJSON *status)
{
    static const char *const holds[] = {"buffers", "models", "sessions", "ops", "leases", NULL};
    static const char *const history[] = {
        "quarantined", "late_reclaims", "reclaimed_sessions", "violations", "lost", "epoch", NULL};
    _cleanup_free_ char *version = cell_text(member(status, "version"));
    _cleanup_free_ char *pid = cell_text(member(status, "pid"));
    char uptime[UNITS_TEXT], rss[UNITS_TEXT];

    printf("hbmd %s, pid %s, up %s, %s resident\n", version, pid,
           units_seconds(number(status, "uptime_seconds"), uptime), units_bytes(number(status, "rss_bytes"), rss));
    print_counts(status, holds);
    print_counts(status, history);
    print_lock_waits(status);
    print_pressure(status);
    print_listeners(member(status, "listeners"));
    print_degraded(member(status, "degraded"));
    putchar('\n');
    show_devices(cli, member(status, "devices"));
}

/* "1.5 GiB of 8.0 GiB", "-" for a tier that the device does not have. */
static void tier_cell(struct grid *grid, const cJSON *device, const char *name)
{
    const cJSON *tier;
    char used[UNITS_TEXT], capacity[UNITS_TEXT];

    cJSON_ArrayForEach(tier, member(device, "tiers"))
    {
        const char *text = cJSON_GetStringValue(member(tier, "tier"));
        if (text && !strcmp(text, name)) {
            grid_cell(grid, "%s of %s", units_bytes(number(tier, "used"), used),
                      units_bytes(number(tier, "capacity"), capacity));
            return;
        }
    }
    grid_cell(grid, "-");
}

static void print_ready(const cJSON *devices)
{
    const cJSON *row, *tier;
    char bytes[UNITS_TEXT];

    cJSON_ArrayForEach(row, devices)
    {
        _cleanup_free_ char *index = cell_text(member(row, "index"));
        cJSON_ArrayForEach(tier, member(row, "tiers"))
        {
            if (number(tier, "ready") > 0)
                printf("device %s: %s of host memory are made ahead, ready for whoever offloads first\n", index,
                       units_bytes(number(tier, "ready"), bytes));
        }
    }
}

static void print_peers(const cJSON *devices)
{
    const cJSON *row;
    char bytes[UNITS_TEXT];

    cJSON_ArrayForEach(row, devices)
    {
        _cleanup_free_ char *index = cell_text(member(row, "index"));
        if (number(row, "peer_bytes") > 0)
            printf("device %s: %s of its memory are other devices' buffers\n", index,
                   units_bytes(number(row, "peer_bytes"), bytes));
    }
}

/* A device that is not served, and why; or how its last worker ended. */
static void print_trouble(const cJSON *devices)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, devices)
    {
        const cJSON *ended = member(row, "worker_ended");
        bool failed = cJSON_IsString(member(row, "problem"));
        _cleanup_free_ char *index = cell_text(member(row, "index"));
        _cleanup_free_ char *why = cell_text(failed ? member(row, "problem") : member(ended, "why"));
        _cleanup_free_ char *remedy = cell_text(member(row, "remedy"));
        char ago[UNITS_TEXT], after[UNITS_TEXT];
        report_clean(why);
        if (failed)
            printf("device %s: %s; %s\n", index, why, remedy);
        else if (cJSON_IsObject(ended))
            printf("device %s: %s, %s ago; served again after %s\n", index, why,
                   units_seconds(number(ended, "seconds_ago"), ago),
                   units_seconds(number(ended, "served_again_after"), after));
    }
}

static void rate_cell(struct grid *grid, const cJSON *link, const char *name)
{
    char rate[UNITS_TEXT];

    if (cJSON_IsNumber(member(link, name)))
        grid_cell(grid, "%s", units_rate(number(link, name), rate));
    else
        grid_cell(grid, "-");
}

/* "3, 1.5 GiB" */
static void queue_cell(struct grid *grid, const cJSON *link)
{
    char bytes[UNITS_TEXT];

    if (number(link, "jobs") > 0)
        grid_cell(grid, "%.0f, %s", number(link, "jobs"), units_bytes(number(link, "bytes_queued"), bytes));
    else
        grid_cell(grid, "-");
}

static void show_links(const struct cli *cli, const cJSON *devices)
{
    static const char *const titles[] = {">N", "LINK", ">NOW", ">MEASURED", ">LIMIT", ">QUEUE", ">MOVED", NULL};
    const cJSON *row, *link;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, devices)
    {
        cJSON_ArrayForEach(link, member(row, "links"))
        {
            grid_member(&grid, row, "index");
            grid_member(&grid, link, "link");
            rate_cell(&grid, link, "gb_per_s");
            rate_cell(&grid, link, "gb_per_s_measured");
            rate_cell(&grid, link, "gb_per_s_limit");
            queue_cell(&grid, link);
            grid_bytes(&grid, link, "bytes_moved");
        }
    }
    grid_end(&grid, cli);
}

static void print_gpudirect(const cJSON *device)
{
    static const char *const ways[] = {"read", "write"};
    const cJSON *gpudirect = member(member(device, "disk_io"), "gpudirect");
    const char *state = cJSON_GetStringValue(member(gpudirect, "state"));
    _cleanup_free_ char *index = cell_text(member(device, "index"));

    if (state && !strcmp(state, "failed"))
        printf("device %s: GPUDirect Storage failed and is not used any more: see the log\n", index);
    for (unsigned i = 0; i < 2; i++) {
        const cJSON *way = member(gpudirect, ways[i]);
        if (cJSON_IsNumber(member(way, "gb_per_s")))
            printf("device %s: disk %ss %s by GPUDirect Storage: %.2f GB/s so, %.2f GB/s staged\n", index, ways[i],
                   cJSON_IsTrue(member(way, "chosen")) ? "go" : "do not go", number(way, "gb_per_s"),
                   number(way, "gb_per_s_staged"));
    }
}

/* Where it is not by the fastest way that there is. */
static void print_slow_disk(const cJSON *device)
{
    const cJSON *disk = member(device, "disk_io");
    bool by_threads = cJSON_IsString(member(disk, "why")), cached = cJSON_IsFalse(member(disk, "past_page_cache"));
    _cleanup_free_ char *index = cell_text(member(device, "index"));
    _cleanup_free_ char *why = cell_text(member(disk, "why"));

    if (by_threads)
        printf("device %s: disks are read and written by threads, without io_uring: %s\n", index, why);
    if (cached)
        printf("device %s: the disk tier goes through the page cache: state_dir's file system refuses O_DIRECT\n",
               index);
}

/* Where something moves before anybody has to wait for room. */
static void print_marks(const cJSON *devices)
{
    const cJSON *row, *tier;

    cJSON_ArrayForEach(row, devices)
    {
        _cleanup_free_ char *index = cell_text(member(row, "index"));
        double set = number(row, "working_set");
        char used[UNITS_TEXT], capacity[UNITS_TEXT];
        cJSON_ArrayForEach(tier, member(row, "tiers"))
        {
            const char *name = cJSON_GetStringValue(member(tier, "tier"));
            if (name && !strcmp(name, "device") && set > number(tier, "capacity"))
                printf("device %s: %s were used within 10 s, and its device tier has %s\n", index,
                       units_bytes(set, used), units_bytes(number(tier, "capacity"), capacity));
            double high = number(tier, "high"), low = number(tier, "low");
            char over[UNITS_TEXT], until[UNITS_TEXT];
            if (cJSON_IsNumber(member(tier, "high")) && high < number(tier, "capacity"))
                printf("device %s: what is idle leaves the %s tier over %s, until it has %s\n", index,
                       cJSON_GetStringValue(member(tier, "tier")), units_bytes(high, over), units_bytes(low, until));
        }
    }
}

void show_devices(const struct cli *cli, const cJSON *devices)
{
    static const char *const titles[] = {">N",    "UUID",  "NAME",    "KIND",      "STATE", ">DEVICE",
                                         ">HOST", ">DISK", ">WORKER", ">RESTARTS", NULL};
    const cJSON *row;
    struct grid grid;

    if (cli_value(cli, "--links")) {
        show_links(cli, devices);
        return;
    }
    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, devices)
    {
        grid_member(&grid, row, "index");
        grid_member(&grid, row, "uuid");
        grid_member(&grid, row, "name");
        grid_member(&grid, row, "kind");
        grid_member(&grid, row, "state");
        tier_cell(&grid, row, "device");
        tier_cell(&grid, row, "host");
        tier_cell(&grid, row, "disk");
        grid_member(&grid, row, "worker_pid");
        grid_member(&grid, row, "worker_restarts");
    }
    grid_end(&grid, cli);
    print_marks(devices);
    print_ready(devices);
    print_peers(devices);
    print_trouble(devices);
    cJSON_ArrayForEach(row, devices)
    {
        print_slow_disk(row);
        print_gpudirect(row);
    }
}

/* "3 for 1.2 s", "-" where none had to. */
static void waits_cell(struct grid *grid, const cJSON *row)
{
    double waits = number(row, "lock_waits");
    char time[UNITS_TEXT];

    if (waits > 0)
        grid_cell(grid, "%.0f for %s", waits, units_seconds(number(row, "lock_wait_seconds"), time));
    else
        grid_cell(grid, "-");
}

static bool any_on_peer(const cJSON *models)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, models) if (number(member(row, "bytes_by_tier"), "peer") > 0) return true;
    return false;
}

void show_models(const struct cli *cli, const cJSON *models)
{
    static const char *const titles[] = {"NAME",  "STATE", ">BUFFERS", ">GROUPS", ">BYTES", ">DEVICE",
                                         ">HOST", ">DISK", "ON",       "OWNER",   "LEASES", ">LOCKS WAITED", NULL};
    static const char *const with_peer[] = {"NAME",  "STATE", ">BUFFERS", ">GROUPS", ">BYTES", ">DEVICE",       ">HOST",
                                            ">DISK", ">PEER", "ON",       "OWNER",   "LEASES", ">LOCKS WAITED", NULL};
    bool peer = any_on_peer(models);
    const cJSON *row;
    struct grid grid;

    if (cli->n_words) {
        show_details(cli, models);
        return;
    }

    grid_begin(&grid, peer ? with_peer : titles);
    cJSON_ArrayForEach(row, models)
    {
        const cJSON *tiers = member(row, "stored_by_tier");
        grid_member(&grid, row, "name");
        grid_member(&grid, row, "state");
        grid_member(&grid, row, "buffers");
        grid_member(&grid, row, "groups");
        grid_bytes(&grid, row, "bytes");
        grid_bytes(&grid, tiers, "device");
        grid_bytes(&grid, tiers, "host");
        grid_bytes(&grid, tiers, "disk");
        if (peer)
            grid_bytes(&grid, tiers, "peer");
        grid_member(&grid, row, "device");
        grid_take(&grid, cell_owner(row, "owner"));
        grid_take(&grid, cell_leases(member(row, "leases")));
        waits_cell(&grid, row);
    }
    grid_end(&grid, cli);
}

static bool any_origin(const cJSON *sessions)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, sessions) if (cJSON_IsString(member(row, "pod_uid")) || cJSON_IsString(member(row, "container_id"))) return true;
    return false;
}

/* Of a container as much as others show. */
static void origin_cell(struct grid *grid, const cJSON *row)
{
    const char *pod = cJSON_GetStringValue(member(row, "pod_uid")), *container = cJSON_GetStringValue(member(row, "container_id"));

    if (pod)
        grid_cell(grid, "pod %s", pod);
    else if (container)
        grid_cell(grid, "container %.12s", container);
    else
        grid_cell(grid, "-");
}

void show_sessions(const struct cli *cli, const cJSON *sessions)
{
    const char *const titles[] = {"SESSION", ">PID",     ">UID",  "CLIENT", "STATE", ">LEASES", ">BYTES",
                                  ">AGE",    "AWAITING", ">FOR", any_origin(sessions) ? "IN" : NULL, NULL};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, sessions)
    {
        grid_member(&grid, row, "session");
        grid_member(&grid, row, "pid");
        grid_take(&grid, cell_owner(row, "uid"));
        grid_member(&grid, row, "client");
        grid_member(&grid, row, "state");
        grid_member(&grid, row, "leases");
        grid_bytes(&grid, row, "bytes");
        grid_seconds(&grid, row, "seconds");
        grid_member(&grid, row, "awaiting");
        grid_seconds(&grid, row, "awaiting_seconds");
        if (titles[10])
            origin_cell(&grid, row);
    }
    grid_end(&grid, cli);
}

static const cJSON *thing_of(const cJSON *account, const char *name)
{
    const cJSON *thing;

    cJSON_ArrayForEach(thing, member(account, "things"))
    {
        const char *is = cJSON_GetStringValue(member(thing, "thing"));
        if (is && !strcmp(is, name))
            return thing;
    }
    return NULL;
}

/* "3", or "3 of 8" where there is a limit; "-" where the daemon, of another version, counts no such thing. */
static void thing_cell(struct grid *grid, const cJSON *account, const char *name)
{
    const cJSON *thing = thing_of(account, name);
    bool bytes = strstr(name, "bytes");
    char used[UNITS_TEXT], limit[UNITS_TEXT];

    const char *(*text)(double, char *) = bytes ? units_bytes : units_number;
    if (!thing)
        grid_cell(grid, "-");
    else if (cJSON_IsNumber(member(thing, "limit")))
        grid_cell(grid, "%s of %s", text(number(thing, "used"), used), text(number(thing, "limit"), limit));
    else
        grid_cell(grid, "%s", text(number(thing, "used"), used));
}

void show_accounts(const struct cli *cli, const cJSON *accounts)
{
    static const char *const titles[] = {"LISTENER", ">UID",      ">DEVICE",   ">HOST",   ">DISK", ">BUFFERS", ">OBJECTS",
                                         ">OBSERVED", ">SESSIONS", ">LEASES", ">OPS",  ">UNREAD",  ">FDS",     NULL};
    static const char *const things[] = {"device_bytes", "host_bytes", "disk_bytes", "buffers",     "objects",   "observations",
                                         "sessions",     "leases",     "ops",        "queue_bytes", "unread_fds"};
    const cJSON *row;
    struct grid grid;

    grid_begin(&grid, titles);
    cJSON_ArrayForEach(row, accounts)
    {
        grid_member(&grid, row, "listener");
        if (cJSON_IsNull(member(row, "uid")))
            grid_cell(&grid, "all");
        else
            grid_member(&grid, row, "uid");
        for (unsigned i = 0; i < sizeof(things) / sizeof(things[0]); i++)
            thing_cell(&grid, row, things[i]);
    }
    grid_end(&grid, cli);
}

void show_config(const struct cli *cli, const cJSON *rows)
{
    const cJSON *row;

    (void)cli;
    cJSON_ArrayForEach(row, rows)
    {
        _cleanup_free_ char *key = cell_text(member(row, "key"));
        _cleanup_free_ char *value = cell_text(member(row, "value"));
        _cleanup_free_ char *source = cell_text(member(row, "source"));
        report_clean(value);
        report_clean(source);
        printf("%s = %s (%s)\n", key, value, source);
    }
}
