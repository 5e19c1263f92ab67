#include "tests/fuzz/world.h"

#include <fcntl.h>
#include <limits.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "tests/fuzz/worker.h"

#define MIB ((uint64_t)1 << 20)

const struct principal alice = {.owner = {0, 1000}}, bob = {.owner = {0, 1001}},
                       root = {.owner = {0, 0}, .admin = true};

/* ---- What the core asks of the world ---- */

static void submit(void *context, struct job *job)
{
    list_append(&((struct world *)context)->jobs, &job->node);
}

static void cancel(void *context, struct job *job)
{
    if (!((struct world *)context)->too_late)
        job->error = HBM_E_CANCELLED;
}

static void store(void *context, struct store_request *request)
{
    list_append(&((struct world *)context)->storing, &request->node);
}

static void unkeep(struct kept *kept)
{
    list_unlink(&kept->node);
    fd_close(kept->fd);
    free(kept);
}

static void unstore(void *context, const char *name)
{
    struct world *world = context;

    if (world->dead)
        return;
    list_for_each_safe (node, &world->store) {
        struct kept *kept = list_entry(node, struct kept, node);
        if (!strcmp(kept->name, name))
            unkeep(kept);
    }
}

static uint64_t now_ms(void *context)
{
    return ((struct world *)context)->now;
}

static void wake_at(void *context, uint64_t at_ms)
{
    ((struct world *)context)->wake = at_ms;
}

void world_keep(struct world *world, const char *name, int fd)
{
    struct kept *kept = calloc(1, sizeof(*kept));

    CHECK(kept && fd >= 0);
    snprintf(kept->name, sizeof(kept->name), "%s", name);
    kept->fd = fd;
    list_append(&world->store, &kept->node);
}

/* ---- Life and death ---- */

static struct device *add_device(struct core *core, const char *uuid, bool is_cuda)
{
    static const uint64_t capacity[HBM_TIERS] = {32 * MIB, 32 * MIB, 32 * MIB};
    struct device *device = device_add(core, uuid, uuid, is_cuda, capacity);

    CHECK(device);
    device->state = DEVICE_READY;
    device->can_fd = true;
    device->can_cuda_ipc = is_cuda;
    device->worker_pid = 1;
    return device;
}

static void start(struct world *world)
{
    const struct core_env env = {world, submit, cancel, store, unstore, now_ms, wake_at, NULL, NULL, NULL};
    static const struct core_limits limits = {
        .offload_percent = 30, .reclaim_ms = 500, .memory_wait_ms = 200, .account[ACCOUNT_OPS] = 8, .account[ACCOUNT_BUFFERS] = 64};

    world->core = core_new(&env, &limits);
    CHECK(world->core);
    world->core->keeps = true;
    world->host = add_device(world->core, "host", false);
    world->gpu = add_device(world->core, "GPU-0", true);
}

static void quiet(enum log_level level, const char *field, const char *line)
{
    (void)field;
    if (getenv("VERBOSE"))
        fprintf(stderr, "  log %d: %s\n", level, line);
}

static int lowest_free_fd(void)
{
    int fd = dup(STDERR_FILENO);

    close(fd);
    return fd;
}

/* One directory for all inputs of a process; whoever runs it says where, and cleans up. */
static int scratch(void)
{
    static int fd = -1;
    const char *where = getenv("TMPDIR");
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/hbm-fuzz-XXXXXX", where ? where : "/dev/shm");
    if (fd < 0 && mkdtemp(path)) {
        int low = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fd = fcntl(low, F_DUPFD_CLOEXEC, 900); /* out of the way of lowest_free_fd */
        close(low);
    }
    CHECK(fd >= 0);
    return fd;
}

static void forget_ledger(int dir_fd)
{
    unlinkat(dir_fd, "ledger", 0);
    unlinkat(dir_fd, "ledger.new", 0);
    unlinkat(dir_fd, "ledger.damaged", 0);
}

void world_begin(struct world *world, bool with_ledger)
{
    *world = (struct world){.now = 1000, .dir_fd = -1, .copy = -1};
    if (with_ledger)
        world->dir_fd = scratch();
    world->lowest_fd = lowest_free_fd();
    log_set_sink(quiet);
    list_init(&world->jobs);
    list_init(&world->storing);
    list_init(&world->store);
    start(world);
    if (!with_ledger)
        return;
    CHECK(!ledger_open(world->dir_fd, &world->ledger));
    world->core->ledger = world->ledger;
    CHECK(!ledger_readopt(world->core, NULL, 0));
}

static void end_what_runs(struct world *world)
{
    while (!list_empty(&world->storing) || !list_empty(&world->jobs)) {
        world->fail_in = 1;
        world->fail_error = HBM_E_SHUTTING_DOWN;
        world_step(world, 1);
    }
}

void world_crash(struct world *world)
{
    /* A SIGKILL would free it all. Here what jobs and requests hold goes by their ends, and nobody hears of them.
     */
    world->core->ledger = NULL;
    world->core->env.unstore = NULL;
    world->core->draining = true;
    end_what_runs(world); /* before any session goes: no request is pending where nothing can be unstored */
    for (unsigned i = 0; i < 10; i++) { /* some wait for memory, with a job of their own behind it */
        world->now += 1000;
        core_tick(world->core);
        end_what_runs(world);
    }
    world->fail_in = 0;
    world->core = core_free(world->core);
    world->ledger = ledger_close(world->ledger);
}

int world_come_back(struct world *world)
{
    size_t n = 0, i = 0;

    world->wake = 0;
    start(world);
    int error = ledger_open(world->dir_fd, &world->ledger);
    if (!error)
        error = ledger_recover(world->ledger, world->copy);
    if (error)
        return error;
    if (world->copy >= 0)
        ledger_keep_copy(world->ledger, fcntl(world->copy, F_DUPFD_CLOEXEC, 3));
    world->core->ledger = world->ledger;
    list_for_each (node, &world->store)
        n++;
    struct kept_fd *fds = calloc(n + 1, sizeof(*fds));
    list_for_each (node, &world->store) {
        const struct kept *kept = list_entry(node, struct kept, node);
        snprintf(fds[i].name, sizeof(fds[i].name), "%s", kept->name);
        fds[i++].fd = fcntl(kept->fd, F_DUPFD_CLOEXEC, 3);
    }
    error = ledger_readopt(world->core, fds, n);
    for (i = 0; i < n; i++) {
        if (fds[i].fd >= 0)
            unstore(world, fds[i].name);
        fd_close(fds[i].fd);
    }
    free(fds);
    return error;
}

int world_restart(struct world *world)
{
    world_crash(world);
    return world_come_back(world);
}

void world_end(struct world *world)
{
    if (world->core) {
        world->driver_lists = false;
        world_run(world);
        list_for_each_safe (node, &world->core->sessions)
            session_process_ended(list_entry(node, struct session, node));
        for (unsigned i = 0; i < 100 && world->core->n_sessions; i++) {
            world->now += 1000;
            world_run(world);
        }
        CHECK(!world->core->n_sessions && !world->core->n_leases && !world->core->n_quarantined);
        world_check_books(world);
        world_crash(world);
    }
    while (!list_empty(&world->store))
        unkeep(list_entry(list_first(&world->store), struct kept, node));
    if (world->dir_fd >= 0)
        forget_ledger(world->dir_fd);
    world->copy = fd_close(world->copy);
    CHECK(world->lowest_fd < 0 || lowest_free_fd() == world->lowest_fd);
}

/* ---- Time ---- */

void world_end_store(struct world *world, struct store_request *request)
{
    list_unlink(&request->node);
    if (!world->dead && !request->refused)
        world_keep(world, request->name, fcntl(request->fd, F_DUPFD_CLOEXEC, 3));
    request->done(request);
}

void world_end_job(struct world *world, struct job *job)
{
    list_unlink(&job->node);
    worker_runs(world, job);
    job->done(job);
}

void world_step(struct world *world, unsigned n)
{
    while (n--) {
        struct list *store = list_first(&world->storing), *job = list_first(&world->jobs);

        if (store) {
            world_end_store(world, list_entry(store, struct store_request, node));
        } else if (job) {
            if (world->fail_in && !--world->fail_in)
                list_entry(job, struct job, node)->error = world->fail_error;
            world_end_job(world, list_entry(job, struct job, node));
        }
    }
}

void world_run(struct world *world)
{
    for (unsigned rounds = 0; rounds < 10000; rounds++) {
        world_step(world, 100);
        if (list_empty(&world->jobs) && list_empty(&world->storing) && (!world->wake || world->wake > world->now))
            return;
        if (world->wake && world->wake <= world->now)
            core_tick(world->core);
    }
    CHECK(!"the world comes to rest");
}
