#include "client/ctl/metrics.h"

#include <stdbool.h>
#include <string.h>

#include "client/ctl/member.h"
#include "proto/errors.h"

#define GAUGE "gauge"
#define COUNTER "counter"

/* A member of the answer, or of each row of one of its lists, or of each row of a list in those. */
struct family {
    const char *list, *inner; /* NULL: there is none */
    const char *name, *type, *member, *help;
};

/* clang-format off */
static const struct family families[] = {
    {NULL, NULL, "hbm_uptime_seconds", GAUGE, "uptime_seconds", "Time since hbmd started."},
    {NULL, NULL, "hbm_resident_memory_bytes", GAUGE, "rss_bytes", "Resident memory of hbmd itself, without workers."},
    {NULL, NULL, "hbm_buffers", GAUGE, "buffers", "Buffers that there are."},
    {NULL, NULL, "hbm_models", GAUGE, "models", "Models that there are, those being built among them."},
    {NULL, NULL, "hbm_sessions", GAUGE, "sessions", "Sessions of clients, those awaited among them."},
    {NULL, NULL, "hbm_leases", GAUGE, "leases", "Leases on buffers and models."},
    {NULL, NULL, "hbm_operations", GAUGE, "ops", "Operations waiting or under way."},
    {NULL, NULL, "hbm_quarantined_sessions", GAUGE, "quarantined", "Clients that are gone and whose process or GPU work is awaited."},
    {NULL, NULL, "hbm_quarantined_bytes", GAUGE, "quarantined_bytes", "Memory that clients keep that are gone and awaited."},
    {NULL, NULL, "hbm_quarantined_age_seconds", GAUGE, "quarantined_seconds", "How long the first of the clients that are gone has been awaited; 0 without any."},
    {NULL, NULL, "hbm_reclaimed_sessions_total", COUNTER, "reclaimed_sessions", "Clients whose death was cleaned up after."},
    {NULL, NULL, "hbm_late_reclaims_total", COUNTER, "late_reclaims", "Clients not quiescent 15 s after their death."},
    {NULL, NULL, "hbm_violations_total", COUNTER, "violations", "Clients disconnected for what they sent."},
    {NULL, NULL, "hbm_lost_total", COUNTER, "lost", "Groups of buffers whose contents are gone."},
    {NULL, NULL, "hbm_attaches_total", COUNTER, "attaches", "Leases on buffers and models that were there already."},
    {NULL, NULL, "hbm_attached_bytes_total", COUNTER, "attached_bytes", "Bytes that these leases were on."},
    {NULL, NULL, "hbm_lock_waits_total", COUNTER, "lock_waits", "Locks that found memory away."},
    {NULL, NULL, "hbm_lock_wait_seconds_total", COUNTER, "lock_wait_seconds", "Time that locks took that found memory away."},
    {NULL, NULL, "hbm_prefetched_locks_total", COUNTER, "prefetched_locks", "Locks that found memory back, or on its way, by a prefetch."},
    {NULL, NULL, "hbm_evictions_total", COUNTER, "evictions", "Groups of buffers moved away for want of room."},
    {NULL, NULL, "hbm_evicted_bytes_total", COUNTER, "evicted_bytes", "Bytes moved away for want of room."},
    {NULL, NULL, "hbm_bounces_total", COUNTER, "bounces", "Groups of buffers that were back soon after they were moved away for want of room: thrash."},
    {NULL, NULL, "hbm_spared_total", COUNTER, "spared", "Times that a group was not moved away, since it had come back soon before."},
    {NULL, NULL, "hbm_degraded_times_total", COUNTER, "degraded_times", "Times that hbmd lacked something for taking on more."},
    {"listeners", NULL, "hbm_listener_serves", GAUGE, "serves", "1 where clients can come by it."},
    {"listeners", NULL, "hbm_listener_sessions", GAUGE, "sessions", "Sessions of clients that came by it."},
    {"pods", NULL, "hbm_pod_sessions", GAUGE, "sessions", "Sessions of the pod's processes, as far as the scraper may see them."},
    {"pods", NULL, "hbm_pod_mapped_bytes", GAUGE, "bytes", "Memory that the pod's processes map, each piece once."},
    {"devices", NULL, "hbm_device_worker_restarts_total", COUNTER, "worker_restarts", "Workers that ended and were replaced."},
    {"devices", NULL, "hbm_device_unaccounted_bytes", GAUGE, "unaccounted", "Memory that the driver counts as used and nobody known holds; missing where it does not tell."},
    {"devices", NULL, "hbm_device_working_set_bytes", GAUGE, "working_set", "Memory used of late, an estimate."},
    {"devices", NULL, "hbm_device_peer_bytes", GAUGE, "peer_bytes", "Of the device tier, other devices' buffers."},
    {"devices", "tiers", "hbm_tier_capacity_bytes", GAUGE, "capacity", "What hbmd may hand out there."},
    {"devices", "tiers", "hbm_tier_used_bytes", GAUGE, "used", "What is handed out there, or being given back."},
    {"devices", "tiers", "hbm_tier_closing_bytes", GAUGE, "closing", "Of what is used there, what is being given back."},
    {"devices", "tiers", "hbm_tier_pooled_bytes", GAUGE, "pooled", "Of what is used there, free memory kept pinned for the next move."},
    {"devices", "links", "hbm_link_moved_bytes_total", COUNTER, "bytes_moved", "What went over it."},
    {"devices", "links", "hbm_link_busy_seconds_total", COUNTER, "busy_seconds", "Time that something went over it."},
    {"devices", "links", "hbm_link_queued_bytes", GAUGE, "bytes_queued", "What is under way on it or waiting."},
    {"devices", "links", "hbm_link_jobs", GAUGE, "jobs", "Copies under way on it or waiting."},
};
/* clang-format on */

/* What tells the rows of a list apart: the label's name, and the member that it is. */
static const struct {
    const char *list, *label, *member;
} labels[] = {
    {"devices", "device", "uuid"},
    {"listeners", "listener", "listener"},
    {"pods", "pod_uid", "pod_uid"},
    {"tiers", "tier", "tier"},
    {"links", "link", "link"},
};

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* NAME="TEXT" */
static void label(FILE *out, const char *name, const char *text)
{
    fprintf(out, "%s=\"", name);
    for (; text && *text; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else
            fprintf(out, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
    fputc('"', out);
}

static void label_of(FILE *out, const char *list, const cJSON *row)
{
    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
        if (!strcmp(labels[i].list, list))
            label(out, labels[i].label, cJSON_GetStringValue(member(row, labels[i].member)));
}

/* outer and inner: the rows that the labels are of, NULL where there is none. */
static void sample(FILE *out, const struct family *family, const cJSON *row, const cJSON *outer, const cJSON *inner)
{
    const cJSON *item = member(row, family->member);

    if (!cJSON_IsNumber(item) && !cJSON_IsBool(item))
        return;
    fputs(family->name, out);
    if (outer) {
        fputc('{', out);
        label_of(out, family->list, outer);
        if (inner) {
            fputc(',', out);
            label_of(out, family->inner, inner);
        }
        fputc('}', out);
    }
    fprintf(out, " %.17g\n", cJSON_IsBool(item) ? (double)cJSON_IsTrue(item) : item->valuedouble);
}

static void write_family(FILE *out, const struct family *family, const cJSON *status)
{
    const cJSON *rows, *row, *inners, *inner;

    head(out, family->name, family->type, family->help);
    if (!family->list)
        return sample(out, family, status, NULL, NULL);
    rows = member(status, family->list);
    cJSON_ArrayForEach(row, rows)
    {
        if (!family->inner) {
            sample(out, family, row, row, NULL);
            continue;
        }
        inners = member(row, family->inner);
        cJSON_ArrayForEach(inner, inners) sample(out, family, inner, row, inner);
    }
}

static void write_devices(FILE *out, const cJSON *devices)
{
    const cJSON *row;

    head(out, "hbm_device_info", GAUGE, "What the device is.");
    cJSON_ArrayForEach(row, devices)
    {
        fputs("hbm_device_info{", out);
        label_of(out, "devices", row);
        fputc(',', out);
        label(out, "kind", cJSON_GetStringValue(member(row, "kind")));
        fputc(',', out);
        label(out, "name", cJSON_GetStringValue(member(row, "name")));
        fputs("} 1\n", out);
    }
    head(out, "hbm_device_ready", GAUGE,
         "1 where the device is served, 0 while it starts, is drained or has failed.");
    cJSON_ArrayForEach(row, devices)
    {
        const char *state = cJSON_GetStringValue(member(row, "state"));
        fputs("hbm_device_ready{", out);
        label_of(out, "devices", row);
        fprintf(out, "} %d\n", state && !strcmp(state, "ready"));
    }
}

static void write_degraded(FILE *out, const cJSON *degraded)
{
    static const char *const ailments[] = {"ledger", "fds", "memory"};
    const cJSON *row;

    head(out, "hbm_degraded", GAUGE, "1 while hbmd lacks it, and takes on nothing new.");
    for (unsigned i = 0; i < sizeof(ailments) / sizeof(ailments[0]); i++) {
        bool lacks = false;
        cJSON_ArrayForEach(row, degraded)
        {
            const char *what = cJSON_GetStringValue(member(row, "what"));
            lacks |= what && !strcmp(what, ailments[i]);
        }
        fprintf(out, "hbm_degraded{what=\"%s\"} %d\n", ailments[i], lacks);
    }
}

static double refusals(const cJSON *status, const char *error)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, member(status, "refusals"))
    {
        const char *name = cJSON_GetStringValue(member(row, "error"));
        if (name && !strcmp(name, error))
            return member(row, "n") ? member(row, "n")->valuedouble : 0;
    }
    return 0;
}

/* Each from the start: a counter that comes into being with its first error has not risen, to Prometheus. */
static void write_refusals(FILE *out, const cJSON *status)
{
    static const char *const errors[] = {
#define ERROR(name, number, what, remedy) #name,
#include "proto/errors.def"
#undef ERROR
    };

    head(out, "hbm_refusals_total", COUNTER, "Answers to clients and operators that were an error.");
    for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        fprintf(out, "hbm_refusals_total{error=\"%s\"} %.17g\n", errors[i], refusals(status, errors[i]));
}

void metrics_write(FILE *out, const cJSON *status)
{
    head(out, "hbm_up", GAUGE, "1 where hbmd answered.");
    fprintf(out, "hbm_up %d\n", status != NULL);
    if (!status)
        return;
    head(out, "hbm_build_info", GAUGE, "Which hbmd it is.");
    fputs("hbm_build_info{", out);
    label(out, "version", cJSON_GetStringValue(member(status, "version")));
    fputs("} 1\n", out);
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        write_family(out, &families[i], status);
    write_devices(out, member(status, "devices"));
    write_degraded(out, member(status, "degraded"));
    write_refusals(out, status);
}
