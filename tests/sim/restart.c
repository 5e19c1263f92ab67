/* The owner's death: between two steps, or at any write to the ledger, done, half done or not; and its successor.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/ledger_internal.h"
#include "proto/memfd.h"
#include "tests/sim/sim.h"

/* ---- The ledger's disk. These two stand before the C library's (Makefile: --wrap). ---- */

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);

static bool is_ledgers(int fd)
{
    struct stat status, dir;

    return !fstat(fd, &status) && !fstat(sim.world.dir_fd, &dir) && status.st_dev == dir.st_dev;
}

static void save_words(void)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct client *client = &sim.clients[i];
        if (!client->words)
            continue;
        if (!client->words_at_death)
            client->words_at_death = malloc(LOCKWORD_PAGE_BYTES);
        CHECK(client->words_at_death);
        memcpy((void *)client->words_at_death, (void *)client->words, LOCKWORD_PAGE_BYTES);
    }
}

/* From here on nothing that the core does reaches anyone. */
static void die(void)
{
    sim.disk.die_in = 0;
    sim.disk.behind = sim.world.ledger->behind;
    sim.world.dead = true;
    sim.doing.any = true;
    sim.doing.makes |= !list_empty(&sim.asks) || !list_empty(&sim.running);
    save_words();
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    if (!sim.disk.full && !sim.disk.die_in && !sim.world.dead)
        return __real_write(fd, bytes, size);
    if (!is_ledgers(fd))
        return __real_write(fd, bytes, size);
    if (sim.world.dead)
        return (ssize_t)size;
    if (sim.disk.die_in && !--sim.disk.die_in) {
        size_t n = sim.disk.last < size ? sim.disk.last : size;
        CHECK(__real_write(fd, bytes, n) == (ssize_t)n);
        trace("  the owner dies at a write of %zu bytes, of which %zu are written", size, n);
        die();
        return (ssize_t)size;
    }
    if (!sim.disk.full)
        return __real_write(fd, bytes, size);
    if (size > 64 && random_one_in(&sim.random, 2))
        return __real_write(fd, bytes, 24);
    errno = ENOSPC;
    return -1;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return sim.world.dead ? 0 : __real_renameat(from_dir, from, to_dir, to);
}

void disk_arm(void)
{
    static const unsigned last[] = {0, 1, 16, 40, UINT32_MAX, UINT32_MAX};

    sim.disk.die_in = 1 + random_below(&sim.random, 6);
    sim.disk.last = last[random_below(&sim.random, 6)];
}

/* ---- What the successor finds ---- */

static void lose_fd(struct kept *kept)
{
    unsigned long long id;

    trace("  the store has lost %s", kept->name[0] == 'x' ? "an extent" : "a model's metadata");
    if (sscanf(kept->name, "x-%llx-", &id) == 1)
        sim.lost[sim.n_lost++ % 64] = id;
    list_unlink(&kept->node);
    close(kept->fd);
    free(kept);
}

static void tamper_with_store(void)
{
    sim.n_lost = 0;
    list_for_each_safe (node, &sim.world.store) {
        struct kept *kept = list_entry(node, struct kept, node);
        if ((kept->name[0] == 'x' || kept->name[0] == 'm') && random_one_in(&sim.random, 60))
            lose_fd(kept);
    }
    if (random_one_in(&sim.random, 4))
        world_keep(&sim.world, "x-123456-3e8-1000", memfd_fixed("surplus", 4096));
}

static void die_out(void)
{
    uint64_t now = sim.world.now;

    world_crash(&sim.world);
    sim.world.now = now;
    CHECK(list_empty(&sim.asks)); /* every call is answered once, even now */
    while (!list_empty(&sim.running)) {
        struct running *running = list_entry(list_first(&sim.running), struct running, node);
        list_unlink(&running->node);
        free(running);
    }
    sim.world.dead = false;
    sim.disk.full = false;
    sim.disk.die_in = 0;
}

static void meet_sessions(void)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct client *client = &sim.clients[i];
        struct session *session = client_session(client);
        CHECK(session || client->state != CLIENT_DOWN);
        if (session && client->process_ended)
            session_process_ended(session);
    }
}

/* Rows were not written, for want of room: anything may be gone. All clients end; what is there is learnt anew. */
static void begin_anew(void)
{
    trace("  rows were behind: all begins anew");
    model_forget();
    for (unsigned i = 0; i < CLIENTS; i++)
        client_forget(&sim.clients[i]);
    list_for_each_safe (node, &core()->sessions)
        session_process_ended(list_entry(node, struct session, node));
    for (unsigned i = 0; i < 100 && core()->n_sessions; i++) {
        sim.world.now += 1000;
        world_run(&sim.world);
    }
    CHECK(!core()->n_sessions && !core()->n_leases);
    sim.doing.any = sim.doing.makes = sim.doing.renames = true;
    model_meets_restart();
}

void owner_dies(void)
{
    sim.count.restarts++;
    if (!sim.world.dead) {
        trace("the owner is killed");
        die();
        memset(&sim.doing, 0, sizeof(sim.doing));
    }
    die_out();
    for (unsigned i = 0; i < CLIENTS; i++)
        client_comes_down(&sim.clients[i]);
    tamper_with_store();
    CHECK(!world_come_back(&sim.world));
    sim_settle_in();
    if (sim.disk.behind) {
        begin_anew();
    } else {
        meet_sessions();
        model_meets_restart();
    }
}
