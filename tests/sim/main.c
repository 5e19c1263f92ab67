/* usage: sim SEED STEPS. The same seed gives the same run; what does not hold ends it, with the last events. */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/host_ahead.h"
#include "daemon/core/listener.h"
#include "tests/sim/sim.h"

#define EVENTS_SHOWN 60

struct sim sim;

static uint64_t seed, steps;
static char events[EVENTS_SHOWN][160];
static unsigned n_events;

void trace(const char *format, ...)
{
    va_list arguments;
    char *line = events[n_events++ % EVENTS_SHOWN];
    int n = snprintf(line, sizeof(events[0]), "%" PRIu64 ": ", sim.step);

    va_start(arguments, format);
    vsnprintf(line + n, sizeof(events[0]) - (size_t)n, format, arguments);
    va_end(arguments);
    if (getenv("SIM_TRACE"))
        fprintf(stderr, "%s\n", line);
}

/* Also what the sanitizers call before they end the process. */
static void tell(void)
{
    unsigned from = n_events > EVENTS_SHOWN ? n_events - EVENTS_SHOWN : 0;

    for (; from < n_events; from++)
        fprintf(stderr, "  %s\n", events[from % EVENTS_SHOWN]);
    fprintf(stderr, "FAIL - seed %" PRIu64 ", step %" PRIu64 "; again: sim %" PRIu64 " %" PRIu64 "\n", seed,
            sim.step, seed, steps);
}

static void aborted(int number)
{
    tell();
    signal(number, SIG_DFL);
    raise(number);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* ---- The world ---- */

/* After each start: little memory, so that it is short of it. */
void sim_settle_in(void)
{
    static const uint64_t host[HBM_TIERS] = {160 << 10, 96 << 10, 96 << 10},
                          gpu[HBM_TIERS] = {224 << 10, 128 << 10, 96 << 10};

    memcpy(sim.world.host->capacity, host, sizeof(host));
    memcpy(sim.world.gpu->capacity, gpu, sizeof(gpu));
    static const struct watermarks marks[] = {{0, 0}, {100, 90}, {60, 40}, {30, 10}, {15, 5}};
    core()->limits.watermarks[HBM_TIER_DEVICE] = marks[random_below(&sim.random, 5)];
    core()->limits.watermarks[HBM_TIER_HOST] = marks[random_below(&sim.random, 5)];
    core()->limits.split_bytes = random_one_in(&sim.random, 3) ? 0 : 4096;
    core()->grain = 2048;
    core()->passing = 16 << 10;
    core()->limits.host_pool_idle_ms = 20000;
    host_ahead_limit(sim.world.host, random_below(&sim.random, 3) * (24 << 10));
    host_ahead_limit(sim.world.gpu, random_below(&sim.random, 3) * (24 << 10));
    struct listener *other = listener_of(core(), 1);
    uint64_t *limits[] = {core()->limits.account, other->each};
    other->devices = UINT64_MAX;
    for (unsigned i = 0; i < 2; i++) {
        limits[i][ACCOUNT_SESSIONS] = 4;
        limits[i][ACCOUNT_BUFFERS] = 24;
        limits[i][ACCOUNT_OBJECTS] = 8;
        limits[i][ACCOUNT_DEVICE_BYTES] = 256 << 10;
    }
}

static struct list *any_of(struct list *head)
{
    struct list *chosen = NULL;
    unsigned n = 0;

    list_for_each (node, head)
        if (random_one_in(&sim.random, ++n))
            chosen = node;
    return chosen;
}

/* In any order: a worker has a queue each way, and more than one of it runs. */
static void something_ends(void)
{
    static const int errors[] = {HBM_E_NO_MEMORY,   HBM_E_IO,      HBM_E_CHECKSUM,
                                 HBM_E_WORKER_DIED, HBM_E_QUALITY, HBM_E_CUDA};
    struct list *store = any_of(&sim.world.storing), *node = any_of(&sim.world.jobs);

    if (store && (!node || random_one_in(&sim.random, 2))) {
        struct store_request *request = list_entry(store, struct store_request, node);
        request->refused = request->use == STORE_NEW && random_one_in(&sim.random, 40);
        world_end_store(&sim.world, list_entry(store, struct store_request, node));
    } else if (node) {
        struct job *job = list_entry(node, struct job, node);
        if (!job->error && random_one_in(&sim.random, 12))
            job->error = errors[random_below(&sim.random, 6)];
        trace("a job of kind %u ends: %s", job->opcode, job->error ? hbm_error_name(job->error) : "well");
        world_end_job(&sim.world, job);
    }
}

static void time_passes(void)
{
    static const unsigned ms[] = {1, 2, 5, 20, 100, 300, 1500, 12000};

    sim.world.now += ms[random_below(&sim.random, 8)];
    if (sim.world.wake && sim.world.wake <= sim.world.now)
        core_tick(core());
}

static void worker_dies(void)
{
    struct device *device = random_one_in(&sim.random, 2) ? sim.world.host : sim.world.gpu;

    if (!device->worker_pid) {
        device->worker_pid = 1;
        return;
    }
    trace("the worker of %s dies", device->uuid);
    list_for_each (node, &sim.world.jobs) {
        struct job *job = list_entry(node, struct job, node);
        if (job->device != device->index)
            continue;
        job->error = HBM_E_WORKER_DIED;
        job->at_large = random_one_in(&sim.random, 2);
    }
    list_for_each (node, &sim.known) {
        struct known *known = list_entry(node, struct known, node);
        const struct buffer *buffer = buffer_get(core(), known->id);
        known->lost |=
            buffer && buffer->arena->extent->kind == JOB_EXTENT_CUDA_IPC && buffer->arena->device == device;
    }
    device_worker_gone(core(), device, "it was killed");
}

static void bits_flip(void)
{
    const struct arena *chosen = NULL;
    unsigned n = 0;

    list_for_each (node, &core()->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        bool counts = arena->extent->has_checksum && !arena->extent->lost && !arena->transition;
        if (counts && random_one_in(&sim.random, ++n))
            chosen = arena;
    }
    if (chosen)
        contents_damage(chosen);
}

/* ---- What happens next ---- */

static struct client *any_client(void)
{
    return &sim.clients[random_below(&sim.random, CLIENTS)];
}

static void client_acts(struct client *client)
{
    unsigned choice = random_below(&sim.random, 100);

    if (client->state == CLIENT_NONE) {
        client_connect(client);
    } else if (client->state == CLIENT_DOWN) {
        if (choice < 60)
            client_resume(client);
        else if (choice < 65)
            client_process_ends(client);
        else
            client_writes(client);
    } else if (client->state == CLIENT_GONE) {
        if (!client->process_ended && choice < 30)
            client_process_ends(client);
        else if (client->process_ended && choice < 30)
            client->listed = false;
        else if (client_writes_on(client) && !client->clean)
            client_writes(client);
    } else if (client->state == CLIENT_UP) {
        if (client->kicked || (choice < 1 && random_one_in(&sim.random, 2)))
            client_hang_up(client, random_one_in(&sim.random, 2));
        else if (choice < 1)
            client_process_ends(client);
        else if (choice < 50)
            ask_something(client);
        else if (choice < 62)
            client_locks(client);
        else if (choice < 76)
            client_unlocks(client);
        else if (choice < 88)
            client_lets_go(client);
        else
            client_writes(client);
    }
}

static void disk_acts(void)
{
    if (sim.disk.full || random_one_in(&sim.random, 2)) {
        sim.disk.full = !sim.disk.full;
        trace("the ledger's disk is %s", sim.disk.full ? "full" : "not full any more");
    } else {
        disk_arm();
    }
}

/* Seldom, but all of it. */
static void fate_acts(void)
{
    unsigned choice = random_below(&sim.random, 25);

    if (choice < 4)
        worker_dies();
    else if (choice < 10)
        sim.mute = !sim.mute;
    else if (choice < 16)
        sim.world.too_late = !sim.world.too_late;
    else if (choice < 21)
        disk_acts();
    else if (choice < 22)
        bits_flip();
    else if (!sim.disk.full || random_one_in(&sim.random, 4))
        owner_dies();
}

static void act(void)
{
    unsigned choice = random_below(&sim.random, 1000);
    struct list *letter = any_of(&sim.letters);
    bool work = !list_empty(&sim.world.jobs) || !list_empty(&sim.world.storing);

    if (choice < 300 && work)
        something_ends();
    else if (choice < 450 && letter)
        client_reads(list_entry(letter, struct letter, node));
    else if (choice < 530)
        time_passes();
    else if (choice < 590)
        ask_as_operator();
    else if (choice < 612)
        fate_acts();
    else if (choice < 620)
        contents_write_late();
    else
        client_acts(any_client());
}

/* ---- Rest, and the end ---- */

static void settle(void)
{
    if (sim.world.dead)
        owner_dies();
    asks_poll();
    check_all();
    memset(&sim.doing, 0, sizeof(sim.doing));
}

static void rest(void)
{
    sim.disk.die_in = 0;
    for (unsigned i = 0; i < 200; i++) {
        while (!list_empty(&sim.world.jobs) || !list_empty(&sim.world.storing)) {
            something_ends();
            settle();
        }
        for (unsigned j = 0; j < CLIENTS; j++)
            client_lets_go(&sim.clients[j]);
        settle();
        if (core_is_idle(core()) && list_empty(&sim.world.jobs) && list_empty(&sim.world.storing))
            break;
        sim.world.now += 50;
        core_tick(core());
        settle();
        sim.step++;
    }
    CHECK(core_is_idle(core()));
    check_at_rest();
}

static void the_end(void)
{
    trace("the end");
    sim.disk.full = false;
    sim.mute = false;
    sim.world.host->worker_pid = sim.world.gpu->worker_pid = 1;
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct client *client = &sim.clients[i];
        if (client->state != CLIENT_NONE && !client->process_ended)
            client_process_ends(client);
        client->listed = false;
        settle();
    }
    for (unsigned i = 0; i < 100 && core()->n_sessions; i++) {
        sim.world.now += 1000;
        core_tick(core());
        settle();
        rest();
    }
    CHECK(!core()->n_sessions && !core()->n_leases && !core()->n_quarantined && list_empty(&sim.asks));
    ask_free_all();
    settle();
    rest();
    CHECK(!core()->n_buffers && !core()->n_models && list_empty(&core()->arenas));
    CHECK(!core()->buffer_names && !core()->model_names && list_empty(&sim.known) && list_empty(&sim.models));
    sim.world.now += 61000; /* what the host pool keeps */
    core_tick(core());
    rest();
    list_for_each (node, &core()->devices)
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            CHECK(!list_entry(node, struct device, node)->used[tier]);
    CHECK(list_empty(&core()->timers) && list_empty(&sim.world.store));
}

static void begin(void)
{
    struct list *lists[] = {&sim.known, &sim.models, &sim.held, &sim.asks, &sim.letters, &sim.running};

    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    for (unsigned i = 0; i < CLIENTS; i++)
        sim.clients[i] = (struct client){.page_fd = -1};
    sim.random.state = seed;
    world_begin(&sim.world, true);
    sim.world.perform = contents_perform;
    sim_settle_in();
}

static void end(void)
{
    char path[64], dir[PATH_MAX] = "";

    contents_write_late();
    for (unsigned i = 0; i < 256; i++)
        if (sim.blocks[i])
            close(sim.blocks[i]);
    while (!list_empty(&sim.running)) {
        struct running *running = list_entry(list_first(&sim.running), struct running, node);
        list_unlink(&running->node);
        free(running);
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", sim.world.dir_fd);
    CHECK(readlink(path, dir, sizeof(dir) - 1) > 0);
    world_end(&sim.world);
    rmdir(dir);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: sim SEED STEPS\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 0);
    steps = strtoull(argv[2], NULL, 0);
    signal(SIGABRT, aborted);
    signal(SIGSEGV, aborted);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(tell);
    begin();
    for (uint64_t i = 0; i < steps; i++) {
        sim.step++;
        act();
        settle();
        if (i % 500 == 499)
            rest();
    }
    the_end();
    end();
    printf("ok - seed %" PRIu64 ": %" PRIu64 " steps, %" PRIu64 " answers (%" PRIu64 " refusals), %" PRIu64
           " leases, %" PRIu64 " copies (%" PRIu64
           " in parts), %" PRIu64 " writes, %" PRIu64 " deaths of clients, %" PRIu64
           " of the owner\n",
           seed, steps, sim.count.answers, sim.count.refusals, sim.count.grants, sim.count.moves, sim.count.parts, sim.count.writes,
           sim.count.deaths, sim.count.restarts);
    return 0;
}
