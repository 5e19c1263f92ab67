/* The operators' socket served in this process: a core behind it, no daemon, a clock of our own. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/core/buffer.h"
#include "daemon/core/op.h"
#include "daemon/rpc/rpc.h"

static uint64_t clock_ms = 1000;

static uint64_t now_ms(void *context)
{
    (void)context;
    return clock_ms;
}

static void wake_at(void *context, uint64_t at_ms)
{
    (void)context;
    (void)at_ms;
}

static void each_option(void *context,
                        void (*row)(void *to, const char *key, const char *value, const char *source), void *to)
{
    (void)context;
    row(to, "log-level", "info", "default");
}

struct fixture {
    uv_loop_t loop;
    struct core *core;
    struct rpc_server *server;
    struct sockaddr_un address;
    socklen_t address_size;
};

/* An abstract address: nothing to clean up, and no two runs meet. */
static int start_for(void **state, uid_t daemon_uid)
{
    static const struct core_env env = {.now_ms = now_ms, .wake_at = wake_at};
    static const struct core_limits limits = {0};
    struct rpc_world world = {
        .daemon_uid = daemon_uid, .admin_gid = (gid_t)-1, .started_ms = 500, .each_option = each_option};
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    uv_loop_init(&fixture->loop);
    fixture->core = core_new(&env, &limits);
    fixture->address.sun_family = AF_UNIX;
    bind(fd, (struct sockaddr *)&fixture->address, sizeof(sa_family_t));
    fixture->address_size = sizeof(fixture->address);
    getsockname(fd, (struct sockaddr *)&fixture->address, &fixture->address_size);
    listen(fd, 100);
    *state = fixture;
    return rpc_server_new(&fixture->loop, fixture->core, &world, fd, &fixture->server);
}

static int start(void **state)
{
    return start_for(state, getuid());
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    int left;

    fixture->server = rpc_server_free(fixture->server);
    uv_run(&fixture->loop, UV_RUN_DEFAULT);
    left = uv_loop_close(&fixture->loop);
    fixture->core = core_free(fixture->core);
    free(fixture);
    return left;
}

static int client_open(struct fixture *fixture)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&fixture->address, fixture->address_size), 0);
    return fd;
}

static void turn(struct fixture *fixture, int times)
{
    while (times--)
        uv_run(&fixture->loop, UV_RUN_NOWAIT);
}

/* What has come after some turns, at most size - 1 bytes. */
static char *hear(struct fixture *fixture, int fd, char *text, size_t size)
{
    size_t used = 0;

    for (int i = 0; i < 50; i++) {
        turn(fixture, 1);
        ssize_t n = recv(fd, text + used, size - 1 - used, 0);
        used += n > 0 ? (size_t)n : 0;
    }
    text[used] = 0;
    return text;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void expect(struct fixture *fixture, const char *question, const char *answer)
{
    char text[65536];
    int fd = client_open(fixture);

    say(fd, question);
    assert_string_equal(hear(fixture, fd, text, sizeof(text)), answer);
    close(fd);
    turn(fixture, 3);
}

static void expect_part(struct fixture *fixture, const char *question, const char *part)
{
    char text[65536];
    int fd = client_open(fixture);

    say(fd, question);
    if (!strstr(hear(fixture, fd, text, sizeof(text)), part))
        fail_msg("%s is not in the answer %s", part, text);
    close(fd);
    turn(fixture, 3);
}

#define ASK(id, rest) "{\"jsonrpc\":\"2.0\",\"id\":" id "," rest "}\n"
#define NOTIFY(rest) "{\"jsonrpc\":\"2.0\"," rest "}\n"
#define LS "\"method\":\"hbm.ls\""
