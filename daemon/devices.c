/* Which devices there are, and how their workers' lives show in core. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/books.h"
#include "daemon/core/host_ahead.h"
#include "daemon/server.h"

/* Workers one after the other that ended young, before they served. */
#define MISSES_MAX 3
#define YOUNG_MS 2000

struct device_start {
    bool heard;  /* how it went at first, or in an earlier daemon's life */
    bool served; /* the latest worker did */
    unsigned misses;
    uint64_t spawned_ms; /* 0: none was */
};

static uint64_t machine_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static uint64_t free_disk(const char *path)
{
    struct statvfs status;

    return statvfs(path, &status) == 0 ? (uint64_t)status.f_bavail * status.f_frsize : 0;
}

/* What is handed out of it. Host devices are parts of one memory: each gets its share. */
static uint64_t device_bytes(const struct server *server, const struct known_device *known)
{
    const struct known_devices *all = &server->known;

    return config_bytes(server->config.device_bytes, known->found.total_bytes) / (all->is_cuda ? 1 : all->n);
}

/* Its worker says so, or has said it to an earlier daemon: what is asked of it then waits for the next one. */
static void serve(struct server *server, struct device *device, const struct known_device *known)
{
    snprintf(device->name, sizeof(device->name), "%s", known->found.name);
    device->capacity[HBM_TIER_DEVICE] = device_bytes(server, known);
    device->granularity = known->granularity;
    device->can_fd = known->can_fd;
    device->can_cuda_ipc = known->can_cuda_ipc;
    if (device->state != DEVICE_DRAINED)
        device->state = DEVICE_READY;
}

static uint64_t part_of(uint64_t limit, unsigned n)
{
    return limit && limit < n ? 1 : limit / n;
}

/* The disk is one for all devices, a link is each one's own. */
static void limit(struct server *server, unsigned index)
{
    const struct config *config = &server->config;
    unsigned n = server->known.n;
    const uint64_t limits[JOB_LINKS] = {
        [JOB_LINK_DEVICE_TO_HOST] = config->host_link_limit,
        [JOB_LINK_HOST_TO_DEVICE] = config->host_link_limit,
        [JOB_LINK_DISK_WRITE] = part_of(config->disk_write_limit, n),
        [JOB_LINK_DISK_READ] = part_of(config->disk_read_limit, n),
    };

    workers_limit(server->workers, index, limits);
}

void devices_limit(struct server *server)
{
    for (unsigned i = 0; i < server->core->n_devices; i++)
        limit(server, i);
}

/* Where host memory is the device, what is made ahead is as much of it as what it is for: only who asks for that has it. */
static uint64_t pool_bytes(const struct server *server)
{
    const struct config *config = &server->config;

    if (!server->known.is_cuda && !strcmp(config->source[CONFIG_host_pool_bytes], "default"))
        return 0;
    return config_bytes(config->host_pool_bytes, machine_memory());
}

void devices_pool(struct server *server)
{
    list_for_each (node, &server->core->devices)
        host_ahead_limit(list_entry(node, struct device, node), pool_bytes(server));
}

static unsigned n_peers(const struct server *server)
{
    return server->known.n - 1 < JOB_PEERS_MAX ? server->known.n - 1 : JOB_PEERS_MAX;
}

/* The others, by index: the n-th of them. */
static unsigned peer_at(unsigned index, unsigned n)
{
    return n < index ? n : n + 1;
}

static void list_peers(const struct server *server, unsigned index, char text[JOB_PEERS_TEXT])
{
    size_t at = 0;

    text[0] = 0;
    for (unsigned n = 0; n < n_peers(server); n++)
        at += (size_t)snprintf(text + at, JOB_PEERS_TEXT - at, "%s%s", n ? "," : "",
                               server->known.at[peer_at(index, n)].found.uuid);
}

static uint64_t reached(const struct server *server, unsigned index, uint64_t listed)
{
    uint64_t mask = 0;

    for (unsigned n = 0; n < n_peers(server); n++)
        mask |= (listed >> n & 1) << peer_at(index, n);
    return mask;
}

/* Host memory and disk are one for all devices: each gets its part. */
static bool add(struct server *server, unsigned index, const char *program)
{
    const struct config *config = &server->config;
    const struct known_device *known = &server->known.at[index];
    const struct probe_device *found = &known->found;
    unsigned n = server->known.n;
    uint64_t capacity[HBM_TIERS] = {
        [HBM_TIER_DEVICE] = device_bytes(server, known),
        [HBM_TIER_HOST] = config_bytes(config->host_bytes, machine_memory()) / n,
        [HBM_TIER_DISK] = config_bytes(config->disk_bytes, free_disk(server->state_dir)) / n,
    };
    char peers[JOB_PEERS_TEXT];
    struct worker_spec spec = {
        .program = program,
        .peers = peers,
        .uuid = found->uuid,
        .state_dir = server->state_dir,
        .spill_key = server->spill_key,
        .pinned_bytes = config_bytes(config->pinned_bytes, machine_memory()),
        .idle_ms = config->worker_idle_seconds,
        .gpudirect = config->gpudirect_storage,
        .patience_ms = config->worker_patience_seconds,
    };

    list_peers(server, index, peers);
    struct device *device = device_add(server->core, found->uuid, found->name, server->known.is_cuda, capacity);
    if (!device)
        return false;
    spec.links = device->links;
    if (workers_add(server->workers, &spec) < 0)
        return false;
    limit(server, index);
    server->device_starts[index].heard = known->granularity != 0;
    if (known->granularity)
        serve(server, device, known);
    else
        server->devices_awaited++;
    return true;
}

/* All that are known. */
static void adopt_devices(struct server *server)
{
    const struct known_devices *known = &server->known;
    char program[1024];

    if (!worker_program_path(server->config.worker_dir, known->is_cuda ? "hbm-worker-cuda" : "hbm-worker", program,
                             sizeof(program)))
        log_error("the worker %s is missing; install it, or set worker_dir in hbmd.conf", program);
    server->device_starts = calloc(known->n, sizeof(*server->device_starts));
    for (unsigned i = 0; i < known->n; i++) {
        if (!server->device_starts || !add(server, i, program)) {
            server_fail(server, "there is no memory for the devices' tables");
            return;
        }
    }
    devices_pool(server);
    server_devices_found(server);
}

static void adopt_found(struct server *server, const struct probe_device *found, unsigned n, bool is_cuda)
{
    server->known = (struct known_devices){.is_cuda = is_cuda, .n = n};
    for (unsigned i = 0; i < n; i++)
        server->known.at[i].found = found[i];
    adopt_devices(server);
}

/* "host", "host-1", ... */
static void host_device(unsigned index, struct probe_device *ret)
{
    *ret = (struct probe_device){.name = "host memory", .total_bytes = machine_memory()};
    snprintf(ret->uuid, sizeof(ret->uuid), index ? "host-%u" : "host", index);
}

static unsigned n_host_devices(const struct server *server)
{
    unsigned n = server->config.host_devices;

    return n < 1 ? 1 : n > PROBE_DEVICES_MAX ? PROBE_DEVICES_MAX : n;
}

static bool is_known(const void *context, const char *uuid)
{
    return known_devices_have(context, uuid);
}

/* As many host devices as are configured now, but none less than memory lies on. */
static void follow_config(const struct server *server, struct known_devices *known)
{
    struct known_devices fewer = *known;

    if (known->is_cuda)
        return;
    for (; known->n < n_host_devices(server); known->n++) {
        known->at[known->n] = (struct known_device){0};
        host_device(known->n, &known->at[known->n].found);
    }
    fewer.n = n_host_devices(server);
    if (fewer.n < known->n && ledger_lies_on(server->ledger, is_known, &fewer))
        known->n = fewer.n;
}

/* What is kept was served a moment ago: neither a probe nor a worker is waited for, if all of its devices are
 * known. A file that is not taken now must not be taken later, when it is older than what is kept then. */
static bool adopt_known(struct server *server)
{
    struct known_devices *known = &server->known;
    enum config_device wanted = server->config.device;
    bool kept = memory_was_kept(server);

    if (kept && known_devices_read(server->dir_fd, known) &&
        wanted != (known->is_cuda ? CONFIG_DEVICE_HOST : CONFIG_DEVICE_CUDA) &&
        ledger_lies_on(server->ledger, is_known, known)) {
        log_info("the memory kept is served at once, by what was known of its devices");
        follow_config(server, known);
        adopt_devices(server);
        return true;
    }
    if (kept)
        log_info("what is known of the memory's devices is not to be used: they are looked for first");
    known_devices_remove(server->dir_fd);
    return false;
}

static void adopt_host(struct server *server)
{
    struct probe_device host[PROBE_DEVICES_MAX];
    unsigned n = n_host_devices(server);

    for (unsigned i = 0; i < n; i++)
        host_device(i, &host[i]);
    adopt_found(server, host, n, false);
}

static void no_gpu(struct server *server, const char *why)
{
    char sentence[512];

    if (server->config.device == CONFIG_DEVICE_AUTO) {
        log_info("serving host memory: %s", why);
        adopt_host(server);
        return;
    }
    snprintf(sentence, sizeof(sentence), "no GPU to serve: %s; look at nvidia-smi, or use --device host", why);
    server_fail(server, sentence);
}

static void probed(void *context, const struct probe_device *devices, int n, const char *why)
{
    struct server *server = context;

    server->probe = NULL;
    if (n > 0)
        adopt_found(server, devices, (unsigned)n, true);
    else if (n < 0 && hold_was_kept(server))
        /* Going on with host memory would drop what clients have on the GPUs: the next start may see them again. */
        server_fail(server, "the GPUs served before cannot be probed: look at nvidia-smi and dmesg, or give them "
                            "up with --device host");
    else
        no_gpu(server, why);
}

void devices_find(struct server *server)
{
    char program[1024];
    int error;

    if (adopt_known(server))
        return;
    if (server->config.device == CONFIG_DEVICE_HOST) {
        adopt_host(server);
        return;
    }
    if (!worker_program_path(server->config.worker_dir, "hbm-worker-cuda", program, sizeof(program))) {
        no_gpu(server, "hbm-worker-cuda is not installed");
        return;
    }
    error = probe_start(&server->loop, program, probed, server, &server->probe);
    if (error)
        no_gpu(server, strerror(-error));
}

void devices_clear(struct server *server)
{
    free(server->device_starts);
}

/* The first word from each device: with the last of them the sockets open. */
static void heard(struct server *server, uint32_t index)
{
    if (server->device_starts[index].heard)
        return;
    server->device_starts[index].heard = true;
    if (--server->devices_awaited == 0)
        server_listen(server);
}

static void spawned(void *context, uint32_t index, int32_t pid)
{
    struct server *server = context;
    struct device *device = device_at(server->core, index);

    device->worker_pid = pid;
    if (server->device_starts[index].spawned_ms)
        device->worker_restarts++;
    server->device_starts[index].served = false;
    server->device_starts[index].spawned_ms = server_now(server);
}

/* For the next daemon. */
static void keep_known(struct server *server)
{
    int error = known_devices_write(server->dir_fd, &server->known);

    if (error)
        log_warning("the next start has to probe the devices: the runtime directory cannot be written: %s",
                    strerror(-error));
}

static void see_disk(struct device *device, const struct job_start_reply *reply)
{
    bool told = device->disk.by == DISK_BY_THREADS;

    device->disk.by = reply->disk_ring ? DISK_BY_RING : DISK_BY_THREADS;
    device->disk.refused = (int)reply->disk_errno;
    if (!reply->disk_ring && !told)
        log_warning("device %u reads and writes disks by threads, without io_uring (%s): see "
                    "kernel.io_uring_disabled and the service's system call filter",
                    device->index, reply->disk_errno ? strerror(device->disk.refused) : "not asked for");
}

static void ready(void *context, uint32_t index, const struct job_start_reply *reply)
{
    struct server *server = context;
    struct device *device = device_at(server->core, index);
    struct known_device *known = &server->known.at[index];
    bool first = !server->device_starts[index].heard;

    snprintf(known->found.name, sizeof(known->found.name), "%.*s", (int)sizeof(reply->name) - 1, reply->name);
    known->found.total_bytes = reply->total_bytes;
    known->granularity = reply->granularity ? reply->granularity : 4096;
    known->can_fd = reply->can_fd;
    known->can_cuda_ipc = reply->can_cuda_ipc;
    serve(server, device, known);
    device->reaches = reached(server, index, reply->reaches);
    keep_known(server);
    server->device_starts[index].served = true;
    server->device_starts[index].misses = 0;
    if (device->worker_gone_ms && !device->recovery_ms)
        device->recovery_ms = server_now(server) - device->worker_gone_ms;
    books_ask(server->core, device);
    host_ahead_wake(device);
    see_disk(device, reply);
    log_info("device %u %s %s: %s, %" PRIu64 " MiB to hand out, %" PRIu64 " MiB host, %" PRIu64 " MiB disk", index,
             device->uuid, device->name, first ? "ready" : "ready again", device->capacity[HBM_TIER_DEVICE] >> 20,
             device->capacity[HBM_TIER_HOST] >> 20, device->capacity[HBM_TIER_DISK] >> 20);
    event_emit(&server->core->events, "device.ready", 0, device->uuid, 0, UINT32_MAX, device->worker_pid, "%s",
               device->name);
    heard(server, index);
}

static void gone(void *context, uint32_t index, const char *why)
{
    struct server *server = context;
    struct device *device = device_at(server->core, index);
    struct device_start *start = &server->device_starts[index];

    /* After one that served, or was killed before it could, the next is expected to serve: what is asked meanwhile, or
     * who comes to ask, waits for it. One that took long to fail, or some in a row, mark the device until one does. */
    bool young = server_now(server) - start->spawned_ms < YOUNG_MS;
    bool failed = !start->served && (++start->misses >= MISSES_MAX || !young);
    if (failed && device->state != DEVICE_DRAINED) {
        if (device->state != DEVICE_FAILED)
            log_write(LOG_LEVEL_ERROR, MESSAGE_DEVICE_FAILED,
                      "device %u %s is not served: %s; it is tried again, see dmesg for what became of it", index,
                      device->uuid, why);
        device->state = DEVICE_FAILED;
    }
    event_emit(&server->core->events, "device.worker_gone", 0, device->uuid, 0, UINT32_MAX, device->worker_pid,
               "%s", why);
    device_worker_gone(server->core, device, why);
    if (device->state != DEVICE_STARTING)
        heard(server, index);
}

struct workers_world devices_world(struct server *server)
{
    return (struct workers_world){.context = server, .spawned = spawned, .ready = ready, .gone = gone};
}
