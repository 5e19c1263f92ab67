/* Clients against wire and core, all of it: packets right and wrong, with and without fds, lock words scribbled on,
 * clients that do not read, hang up and die, operators, time that passes, jobs that wait or fail, owners that die and
 * whose clients come back, or some of them. At last the owner dies, and what it granted must come back. */
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "tests/fuzz/client.h"
#include "tests/fuzz/world.h"

#define CLIENTS 3

static uv_loop_t loop;
static struct world world;
static struct wire_server *server;
static struct client clients[CLIENTS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return uv_loop_init(&loop);
}

static void turn(void)
{
    for (unsigned i = 0; i < 3; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

static void join(unsigned i, struct principal who)
{
    client_connect(&clients[i], server, who, 100 + (int32_t)i);
}

static int listening(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    CHECK(!bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) && !listen(fd, 1));
    return fd;
}

static void serve(void)
{
    static const struct wire_world terms = {.daemon_uid = 0, .admin_gid = (gid_t)-1, .max_links = 16};

    CHECK(!wire_server_new(&loop, world.core, &terms, listening(), &server));
}

static void stop_serving(void)
{
    server = wire_server_free(server);
    turn();
    CHECK(!uv_loop_alive(&loop));
}

static void owner_dies(struct input *in)
{
    uint8_t absent = take_byte(in);

    stop_serving();
    CHECK(!world_restart(&world));
    serve();
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].fd = fd_close(clients[i].fd);
        if (!(absent >> i & 1))
            client_come_back(&clients[i], server, in);
    }
}

static void operate(struct input *in, const struct client *client, uint8_t what)
{
    struct core *core = world.core;
    const struct parking park = {.encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    struct call *call = world_call(what & 0x10 ? alice : root, NULL);
    char name[HBM_NAME_MAX], to[HBM_NAME_MAX];

    take_text(in, name, sizeof(name));
    switch (what & 0xf) {
    case 0:
        verb_kick(core, call, client->session);
        break;
    case 1:
        take_text(in, to, sizeof(to));
        verb_rename(core, call, name, to);
        break;
    case 2:
        verb_rm(core, call, name);
        break;
    case 3:
        verb_free_sel(core, call, name);
        break;
    case 4:
        verb_sleep(core, call, name, what & 0x20 ? HBM_TIER_DISK : HBM_TIER_HOST, what & 0x40 ? &park : NULL);
        break;
    case 5:
        verb_wake(core, call, name);
        break;
    case 6:
        verb_drain(core, call, name);
        break;
    default:
        verb_hash(core, call, name);
    }
}

static void act(struct input *in)
{
    uint8_t choice = take_byte(in), how;
    struct client *client = &clients[(choice >> 5) % CLIENTS];

    switch (choice & 0x1f) {
    case 0:
        client_say_noise(client, in);
        break;
    case WIRE_RESUME:
        if (take_byte(in) & 1)
            client_come_back(client, server, in);
        else
            client_say(client, in, WIRE_RESUME);
        break;
    case WIRE_PREFETCH: /* or an operator's verb */
        how = take_byte(in);
        if (how & 0x80)
            client_say(client, in, how & 0x40 ? WIRE_LOCK_EARLY + how % 5 : WIRE_PREFETCH);
        else
            operate(in, client, how);
        break;
    case WIRE_AHEAD: /* or more of the order, or what only a daemon says */
        how = take_byte(in);
        client_say(client, in, how & 0x80 ? WIRE_AHEAD + how % 4 : WIRE_EVENT_FIRST + how % 3);
        break;
    case 23:
        owner_dies(in);
        break;
    case 24:
        world.now += take_number(in) % 100000;
        core_tick(world.core);
        break;
    case 25:
        world_step(&world, take_byte(in));
        break;
    case 26:
        world.fail_in = 1 + take_byte(in) % 4;
        world.fail_error = -1 - take_byte(in) % 30;
        break;
    case 27:
        client_scribble(client, server, in);
        break;
    case 28:
        client->reads = !client->reads;
        break;
    case 29:
        client->fd = fd_close(client->fd);
        break;
    case 30: /* its process ends; another one connects in its place, now and then */
        life_end(&client->life);
        client->fd = fd_close(client->fd);
        turn();
        life_forget(&client->life);
        join((unsigned)(client - clients), choice & 0x20 ? bob : alice);
        if (choice < 0xa0)
            client_hello(client);
        break;
    case 31:
        world.driver_lists = !world.driver_lists;
        break;
    default:
        client_say(client, in, choice & 0x1f);
    }
    turn();
    if (!world.fail_in && (choice & 0x1f) != 25)
        world_step(&world, in->left ? in->at[0] & 7 : 7);
    for (unsigned i = 0; i < CLIENTS; i++)
        if (clients[i].reads)
            client_hear(&clients[i]);
}

static bool is_building(void)
{
    list_for_each (node, &world.core->models)
        if (list_entry(node, struct model, node)->state == MODEL_BUILDING)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};

    world_begin(&world, true);
    serve();
    for (unsigned i = 0; i < CLIENTS; i++) {
        join(i, i == 2 ? bob : alice);
        if (size % 16) /* else they have to say it themselves */
            client_hello(&clients[i]);
    }
    turn();
    world_step(&world, 2 * CLIENTS);
    for (unsigned i = 0; in.left && i < 48; i++)
        act(&in);

    world.fail_in = 0;
    stop_serving();
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_hear(&clients[i]);
        fd_close(clients[i].fd);
        life_forget(&clients[i].life);
    }
    world_run(&world);
    bool comparable = !is_building() && !world.blocks;
    uint64_t before = world_digest(&world);
    CHECK(!world_restart(&world));
    CHECK(!comparable || world_digest(&world) == before);
    world_end(&world);
    return 0;
}
