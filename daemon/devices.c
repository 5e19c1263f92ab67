/* Which devices there are, and how their workers' lives show in core. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "daemon/base/log.h"
#include "daemon/core/books.h"
#include "daemon/server.h"

/* Workers one after the other that ended young, before they served. */
#define MISSES_MAX 3
#define YOUNG_MS 2000

struct device_start {
    bool heard;  /* how it went at first */
    bool served; /* the latest worker did */
    unsigned misses;
    uint64_t spawned_ms;
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

/* Host memory and disk are one for all devices: each gets its part. */
static bool add(struct server *server, const struct probe_device *found, unsigned n, bool is_cuda,
                const char *program)
{
    const struct config *config = &server->config;
    uint64_t capacity[HBM_TIERS] = {
        [HBM_TIER_DEVICE] = config_bytes(config->device_bytes, found->total_bytes),
        [HBM_TIER_HOST] = config_bytes(config->host_bytes, machine_memory()) / n,
        [HBM_TIER_DISK] = config_bytes(config->disk_bytes, free_disk(server->state_dir)) / n,
    };
    struct worker_spec spec = {
        .program = program,
        .uuid = found->uuid,
        .state_dir = server->state_dir,
        .spill_key = server->spill_key,
        .pinned_bytes = config_bytes(config->pinned_bytes, machine_memory()),
        .idle_ms = config->worker_idle_seconds,
        .patience_ms = config->worker_patience_seconds,
    };

    return device_add(server->core, found->uuid, found->name, is_cuda, capacity) &&
           workers_add(server->workers, &spec) == 0;
}

static void adopt_devices(struct server *server, const struct probe_device *found, unsigned n, bool is_cuda)
{
    char program[1024];

    if (!worker_program_path(server->config.worker_dir, is_cuda ? "hbm-worker-cuda" : "hbm-worker", program,
                             sizeof(program)))
        log_error("the worker %s is missing; install it, or set worker_dir in hbmd.conf", program);
    server->device_starts = calloc(n, sizeof(*server->device_starts));
    for (unsigned i = 0; i < n; i++) {
        if (!server->device_starts || !add(server, &found[i], n, is_cuda, program)) {
            server_fail(server, "there is no memory for the devices' tables");
            return;
        }
    }
    server->devices_awaited = n;
    server_devices_found(server);
}

static void adopt_host(struct server *server)
{
    struct probe_device host = {.uuid = "host", .name = "host memory", .total_bytes = machine_memory()};

    adopt_devices(server, &host, 1, false);
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
        adopt_devices(server, devices, (unsigned)n, true);
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
    if (server->device_starts[index].heard)
        device->worker_restarts++;
    server->device_starts[index].served = false;
    server->device_starts[index].spawned_ms = server_now(server);
}

static void ready(void *context, uint32_t index, const struct job_start_reply *reply)
{
    struct server *server = context;
    struct device *device = device_at(server->core, index);
    bool first = !server->device_starts[index].heard;

    snprintf(device->name, sizeof(device->name), "%.*s", (int)sizeof(reply->name) - 1, reply->name);
    device->capacity[HBM_TIER_DEVICE] = config_bytes(server->config.device_bytes, reply->total_bytes);
    device->granularity = reply->granularity ? reply->granularity : 4096;
    device->can_fd = reply->can_fd;
    device->can_cuda_ipc = reply->can_cuda_ipc;
    if (device->state != DEVICE_DRAINED)
        device->state = DEVICE_READY;
    server->device_starts[index].served = true;
    server->device_starts[index].misses = 0;
    if (device->worker_gone_ms && !device->recovery_ms)
        device->recovery_ms = server_now(server) - device->worker_gone_ms;
    books_ask(server->core, device);
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
            log_error("device %u %s is not served: %s; it is tried again, see dmesg for what became of it", index,
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
