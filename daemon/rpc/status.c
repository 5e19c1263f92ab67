/* The daemon and its devices: hbm.status, hbm.devices, hbm.config, rpc.discover. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/health.h"
#include "daemon/core/listener.h"
#include "daemon/core/peer.h"
#include "daemon/core/recency.h"
#include "daemon/core/tier.h"
#include "daemon/rpc/discover.h"
#include "daemon/rpc/dispatch.h"
#include "daemon/rpc/links.h"
#include "daemon/rpc/rows.h"

#define BOOKS_FRESH_MS 1000
#define PODS_TOLD 256u /* more than a node may have */

static void write_mark(struct writer *writer, const char *key, const struct tier *tier, uint64_t bytes)
{
    if (tier->has_marks)
        write_number(writer, key, bytes);
    else
        write_null(writer, key);
}

static void write_tiers(struct writer *writer, const struct device *device)
{
    write_open(writer, "tiers", '[');
    for (unsigned i = 0; i < HBM_TIERS; i++) {
        const struct tier tier = device_tier(device, i);
        if (!tier.capacity && !tier.used)
            continue;
        write_open(writer, NULL, '{');
        write_string(writer, "tier", hbm_tier_name(i));
        write_number(writer, "capacity", tier.capacity);
        write_number(writer, "used", tier.used);
        write_number(writer, "closing", tier.closing);
        if (i == HBM_TIER_HOST) {
            write_number(writer, "pooled", tier.pooled);
            write_number(writer, "ready", device->ahead.bytes);
        }
        write_number(writer, "free", tier.used < tier.capacity ? tier.capacity - tier.used : 0);
        write_mark(writer, "high", &tier, tier.high);
        write_mark(writer, "low", &tier, tier.low);
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

static void write_peers(struct writer *writer, const struct device *device)
{
    write_number(writer, "peer_bytes", peer_bytes(device->core, device));
    write_open(writer, "peers", '[');
    list_for_each (node, &device->core->devices) {
        const struct device *other = list_entry(node, struct device, node);
        if (peer_reaches(device, other))
            write_string(writer, NULL, other->uuid);
    }
    write_close(writer, ']');
}

/* The answer is never waited for here: it is there for whoever looks next. */
static void refresh(struct core *core, struct device *device)
{
    if (device->worker_pid && core_now(core) >= device->books.at_ms + BOOKS_FRESH_MS)
        books_ask(core, device);
}

/* How its last worker ended, and what it means that it has none. */
static void write_worker(struct writer *writer, const struct core *core, const struct device *device)
{
    if (device->worker_pid)
        write_integer(writer, "worker_pid", device->worker_pid);
    else
        write_null(writer, "worker_pid");
    write_number(writer, "worker_restarts", device->worker_restarts);
    if (device->worker_gone_ms) {
        write_open(writer, "worker_ended", '{');
        write_string(writer, "why", device->worker_why);
        write_real(writer, "seconds_ago", (double)(core_now(core) - device->worker_gone_ms) / 1e3);
        write_real(writer, "served_again_after", device->recovery_ms ? (double)device->recovery_ms / 1e3 : (double)NAN);
        write_close(writer, '}');
    } else {
        write_null(writer, "worker_ended");
    }
    bool failed = device->state == DEVICE_FAILED;
    write_string(writer, "problem", failed ? device->worker_why : NULL);
    write_string(writer, "remedy",
                 !failed           ? NULL
                 : device->is_cuda ? "see dmesg for an Xid, nvidia-smi for its health; it is tried again every 5 s"
                                   : "see the daemon's log; it is tried again every 5 s");
}

void write_devices(struct writer *writer, const char *key, struct core *core)
{
    write_open(writer, key, '[');
    list_for_each (node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        refresh(core, device);
        write_open(writer, NULL, '{');
        write_number(writer, "index", device->index);
        write_string(writer, "uuid", device->uuid);
        write_string(writer, "name", device->name);
        write_string(writer, "kind", device->is_cuda ? "cuda" : "host");
        write_string(writer, "state", device_state_name(device->state));
        write_worker(writer, core, device);
        write_tiers(writer, device);
        write_links(writer, device);
        write_number(writer, "working_set", working_set(device));
        write_peers(writer, device);
        write_unaccounted(writer, core, device);
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

/* 0 where /proc is not there. */
static uint64_t resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "re");

    if (!statm)
        return 0;
    if (fscanf(statm, "%lu %lu", &total, &resident) != 2)
        resident = 0;
    fclose(statm);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void write_lock_waits(struct writer *writer, const struct lock_waits *waits)
{
    write_number(writer, "lock_waits", waits->n);
    write_real(writer, "lock_wait_seconds", (double)waits->ms / 1e3);
    write_number(writer, "prefetched_locks", waits->prefetched);
}

static uint32_t ops_under_way(const struct core *core)
{
    uint32_t n = 0;

    list_for_each (node, &core->ops)
        n += !op_has_ended(list_entry(node, struct op, node));
    return n;
}

/* What gone clients still map, each piece once, and for how long the first of them has been awaited. */
static void write_quarantined(struct writer *writer, struct core *core)
{
    uint64_t visit = ++core->visits, bytes = 0, since_ms = core_now(core);
    struct awaiting awaiting;

    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        if (!session_awaiting(session, &awaiting))
            continue;
        if (awaiting.since_ms < since_ms)
            since_ms = awaiting.since_ms;
        list_for_each (inner, &session->mappings) {
            struct extent *extent = list_entry(inner, struct mapping, session_node)->extent;
            bytes += extent->visit == visit ? 0 : extent->size;
            extent->visit = visit;
        }
    }
    write_number(writer, "quarantined", core->n_quarantined);
    write_number(writer, "quarantined_bytes", bytes);
    write_real(writer, "quarantined_seconds", (double)(core_now(core) - since_ms) / 1e3);
}

static void write_refusals(struct writer *writer, const struct core *core)
{
    const uint64_t *refusals = core->counters.refusals;

    write_open(writer, "refusals", '[');
    for (unsigned i = 0; i < sizeof(core->counters.refusals) / sizeof(*refusals); i++) {
        if (!refusals[i])
            continue;
        write_open(writer, NULL, '{');
        write_string(writer, "error", hbm_error_name(-(int)i));
        write_number(writer, "n", refusals[i]);
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

static void write_listeners(struct writer *writer, const struct core *core, const struct principal *who)
{
    write_open(writer, "listeners", '[');
    list_for_each (node, &core->listeners) {
        const struct listener *listener = list_entry(node, struct listener, node);
        if (!who->admin && listener->id != who->owner.listener)
            continue;
        write_open(writer, NULL, '{');
        write_string(writer, "listener", listener->name);
        write_bool(writer, "serves", listener->serves);
        write_number(writer, "sessions", listener->whole.use[ACCOUNT_SESSIONS]);
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

static int by_pod(const void *a, const void *b)
{
    return strcmp((*(struct session *const *)a)->origin.pod, (*(struct session *const *)b)->origin.pod);
}

/* Those whose pod is known, of whom this reader may hear, in the pods' order. NULL with *n 0 if there are none. */
static const struct session **sessions_in_pods(const struct core *core, const struct principal *who, uint32_t *n)
{
    const struct session **sessions = core->n_sessions ? calloc(core->n_sessions, sizeof(struct session *)) : NULL;

    *n = 0;
    list_for_each (node, &core->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        if (sessions && *n < core->n_sessions && *session->origin.pod && (who->admin || owner_equal(session->who.owner, who->owner)))
            sessions[(*n)++] = session;
    }
    if (*n)
        qsort(sessions, *n, sizeof(*sessions), by_pod);
    return sessions;
}

static uint64_t mapped_by(const struct session *session, uint64_t visit)
{
    uint64_t bytes = 0;

    list_for_each (node, &session->mappings) {
        struct extent *extent = list_entry(node, struct mapping, session_node)->extent;
        bytes += extent->visit == visit ? 0 : extent->size;
        extent->visit = visit;
    }
    return bytes;
}

static void write_pods(struct writer *writer, struct core *core, const struct principal *who)
{
    uint32_t n, pods = 0;
    _cleanup_free_ const struct session **sessions = sessions_in_pods(core, who, &n);

    write_open(writer, "pods", '[');
    for (uint32_t i = 0; i < n && pods < PODS_TOLD; pods++) {
        const struct session *first = sessions[i];
        uint64_t visit = ++core->visits, bytes = 0;
        uint32_t from = i;
        for (; i < n && !strcmp(sessions[i]->origin.pod, first->origin.pod); i++)
            bytes += mapped_by(sessions[i], visit);
        write_open(writer, NULL, '{');
        write_string(writer, "pod_uid", first->origin.pod);
        write_number(writer, "sessions", i - from);
        write_number(writer, "bytes", bytes);
        write_close(writer, '}');
    }
    write_close(writer, ']');
}

static void write_degraded(struct writer *writer, struct core *core)
{
    health_look(core);
    write_open(writer, "degraded", '[');
    for (unsigned i = 0; i < AILMENTS; i++) {
        if (!core->ailing[i].since_ms)
            continue;
        write_open(writer, NULL, '{');
        write_string(writer, "what", ailment_name(i));
        write_string(writer, "cause", core->ailing[i].cause);
        write_string(writer, "remedy", ailment_remedy(i));
        write_real(writer, "seconds", (double)(core_now(core) - core->ailing[i].since_ms) / 1e3);
        write_close(writer, '}');
    }
    write_close(writer, ']');
    write_number(writer, "degraded_times", core->counters.degraded);
}

void handle_STATUS(struct request *request, const struct STATUS_args *args)
{
    struct core *core = request->core;
    struct writer *writer = answer_begin(request);

    (void)args;
    write_open(writer, "result", '{');
    write_string(writer, "version", HBM_VERSION);
    write_integer(writer, "pid", getpid());
    write_real(writer, "uptime_seconds",
               (double)(core_now(core) - request->connection->server->world.started_ms) / 1e3);
    write_number(writer, "epoch", core->ids.epoch);
    write_devices(writer, "devices", core);
    write_number(writer, "buffers", core->n_buffers);
    write_number(writer, "models", core->n_models);
    write_number(writer, "sessions", core->n_sessions);
    write_number(writer, "ops", ops_under_way(core));
    write_number(writer, "leases", core->n_leases);
    write_quarantined(writer, core);
    write_number(writer, "late_reclaims", core->counters.late_reclaims);
    write_number(writer, "reclaimed_sessions", core->counters.reclaimed_sessions);
    write_number(writer, "violations", core->counters.violations);
    write_number(writer, "lost", core->counters.lost);
    write_number(writer, "attaches", core->counters.attaches);
    write_number(writer, "attached_bytes", core->counters.attached_bytes);
    write_lock_waits(writer, &core->lock_waits);
    write_number(writer, "evictions", core->counters.evictions);
    write_number(writer, "evicted_bytes", core->counters.evicted_bytes);
    write_number(writer, "bounces", core->counters.bounces);
    write_number(writer, "spared", core->counters.spared);
    write_degraded(writer, core);
    write_refusals(writer, core);
    write_number(writer, "rss_bytes", resident_bytes());
    write_listeners(writer, core, &request->connection->who);
    write_pods(writer, core, &request->connection->who);
    write_close(writer, '}');
    answer_end(request);
}

void handle_DEVICES(struct request *request, const struct DEVICES_args *args)
{
    (void)args;
    write_devices(answer_begin(request), "result", request->core);
    answer_end(request);
}

static void write_option(void *to, const char *key, const char *value, const char *source)
{
    struct writer *writer = to;

    write_open(writer, NULL, '{');
    write_string(writer, "key", key);
    write_string(writer, "value", value);
    write_string(writer, "source", source);
    write_close(writer, '}');
}

void handle_CONFIG(struct request *request, const struct CONFIG_args *args)
{
    const struct rpc_world *world = &request->connection->server->world;
    struct writer *writer = answer_begin(request);

    (void)args;
    write_open(writer, "result", '[');
    if (world->each_option)
        world->each_option(world->context, write_option, writer);
    write_close(writer, ']');
    answer_end(request);
}

void handle_DISCOVER(struct request *request, const struct DISCOVER_args *args)
{
    (void)args;
    write_discovery(answer_begin(request), "result");
    answer_end(request);
}
