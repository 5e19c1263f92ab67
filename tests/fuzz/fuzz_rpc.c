/* Operators against rpc and core: any bytes as lines, with a furnished catalog behind them. Every answer must be a
 * line of sound JSON, whatever was asked. The input's first byte says who asks, and whether a client is there. */
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/rpc/connection.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/scan.h"
#include "tests/fuzz/world.h"

static uv_loop_t loop;
static struct world world;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return uv_loop_init(&loop);
}

static void each_option(void *context,
                        void (*row)(void *to, const char *key, const char *value, const char *source), void *to)
{
    (void)context;
    row(to, "log_level", "info", "default");
}

static int listening(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    CHECK(!bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) && !listen(fd, 1));
    return fd;
}

static void check_line(const char *line, size_t size)
{
    const char *why = "";
    int code = scan_line(line, size, &why);

    /* A document that is larger than what we would read is none of an error. */
    if (code && size < LINE_BYTES_MAX)
        fprintf(stderr, "an answer is not sound: %s: %.*s\n", why, (int)size, line);
    if (getenv("VERBOSE"))
        fprintf(stderr, "  %.*s", (int)size, line);
    CHECK(!code || size >= LINE_BYTES_MAX);
}

/* What has come so far; whole lines are checked and dropped. */
static void hear(int fd)
{
    static char text[4 << 20];
    static size_t used;
    ssize_t n;
    char *newline;

    if (fd < 0)
        used = 0;
    while (fd >= 0 && (n = recv(fd, text + used, sizeof(text) - used, 0)) > 0) {
        used += (size_t)n;
        while ((newline = memchr(text, '\n', used))) {
            size_t size = (size_t)(newline - text) + 1;
            check_line(text, size);
            memmove(text, text + size, used - size);
            used -= size;
        }
        CHECK(used < sizeof(text));
    }
}

static void turn(int fd)
{
    for (unsigned i = 0; i < 4; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    hear(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct rpc_world terms = {.admin_gid = (gid_t)-1, .started_ms = 500, .each_option = each_option};
    struct input in = {bytes, size};
    struct rpc_server *server;
    uint8_t choice = take_byte(&in);
    int ends[2];

    world_begin(&world, false);
    world_furnish(&world);
    if (choice & 16)
        world_visit(&world);
    CHECK(!rpc_server_new(&loop, world.core, &terms, listening(), &server));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    CHECK(!connection_new(server, ends[1], choice & 1 ? root : choice & 2 ? bob : alice));
    while (in.left) {
        size_t n = in.left < 4096 ? in.left : 4096;
        ssize_t sent = send(ends[0], in.at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            break; /* it was hung up on, or is not being read: both are theirs to do */
        in.at += sent;
        in.left -= (size_t)sent;
        turn(ends[0]);
        if (!(choice & 4))
            world_step(&world, 10);
    }
    shutdown(ends[0], SHUT_WR);
    for (unsigned i = 0; i < 40 && !list_empty(&server->connections); i++) {
        turn(ends[0]);
        world_step(&world, 100);
        world.now += 20;
        core_tick(world.core);
    }
    if (choice & 8) /* the owner goes before its answers do */
        server = rpc_server_free(server);
    world_run(&world);
    turn(ends[0]);
    world_digest(&world);
    rpc_server_free(server);
    turn(-1);
    fd_close(ends[0]);
    turn(-1);
    CHECK(!uv_loop_alive(&loop));
    world_end(&world);
    return 0;
}
