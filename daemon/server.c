#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/arena.h"
#include "daemon/core/buffer.h"

#define DRAIN_MS 10000 /* what SIGTERM waits for operations to end */
#define DRAIN_POLL_MS 20

static const int SIGNALS[3] = {SIGTERM, SIGINT, SIGHUP};

/* With its handle a signal gets its default back: the second SIGTERM, of a supervisor whose whole process group was
 * told to end, would kill us in the middle of putting things away. */
static void ignore_signals(struct server *server)
{
    sigset_t ours;

    sigemptyset(&ours);
    for (unsigned i = 0; i < 3; i++)
        sigaddset(&ours, SIGNALS[i]);
    pthread_sigmask(SIG_BLOCK, &ours, NULL);
    for (unsigned i = 0; i < 3; i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
}

/* Ends everything that the loop turns for; server_free takes what is left. The sessions stay in the ledger. */
static void shut_down(struct server *server)
{
    server->stopping = server->shut = true;
    server->probe = probe_cancel(server->probe);
    listeners_shut_down(server);
    server->wire = wire_server_free(server->wire);
    server->rpc = rpc_server_free(server->rpc);
    /* Told to stop, and not by systemd, whose stop may be a restart: the memory goes with us or our supervisor, and
     * a ledger would only tell the next daemon of losses that were asked for. */
    server->stays_behind = server->failed || !server->store || store_ends_with_unit(server->store);
    /* The directory is still locked: who comes now is told that no daemon answers. */
    if (server->made_client_socket)
        unlinkat(server->dir_fd, CLIENT_SOCKET, 0);
    if (server->made_operator_socket)
        unlinkat(server->dir_fd, OPERATOR_SOCKET, 0);
    /* Running operations end, undone, while all they may call is still there. */
    if (server->store)
        store_flush(server->store);
    server->workers = workers_free(server->workers);
    server->store = store_free(server->store);
    if (server->closers)
        closers_stop(server->closers);
    if (server->origins)
        origins_stop(server->origins);
    watchdog_stop(&server->watchdog);
    uv_close((uv_handle_t *)&server->wake, NULL);
    uv_close((uv_handle_t *)&server->drain, NULL);
    ignore_signals(server);
}

static void on_failed(uv_timer_t *timer)
{
    shut_down(timer->data);
}

void server_fail(struct server *server, const char *why)
{
    log_error("%s", why);
    server->failed = server->stopping = true;
    uv_timer_start(&server->drain, on_failed, 0, 0);
}

static void on_drain(uv_timer_t *timer)
{
    struct server *server = timer->data;
    bool idle = core_is_idle(server->core);

    if (!idle && server_now(server) < server->stop_by_ms)
        return;
    if (!idle)
        log_warning("operations did not end in %d s: they are undone, and every buffer is as it was before them",
                    DRAIN_MS / 1000);
    log_info("stopped");
    shut_down(server);
}

static unsigned count_buffers(const struct arena *arena)
{
    unsigned n = 0;

    list_for_each (node, &arena->buffers)
        n += !list_entry(node, struct buffer, arena_node)->parent; /* scales go without saying */
    return n;
}

/* Of a unit nobody tells us which of the two this is, and afterwards it is too late to ask. */
static void say_what_a_stop_loses(const struct server *server)
{
    uint64_t bytes = 0;
    unsigned n = 0, in_workers = 0;

    list_for_each (node, &server->core->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        if (arena->extent->lost)
            continue;
        unsigned here = count_buffers(arena);
        bytes += arena->extent->size;
        n += here;
        in_workers += arena->extent->kind == JOB_EXTENT_CUDA_IPC ? here : 0;
    }
    if (in_workers)
        log_warning("%u cuda-ipc buffer%s lost to new attaches, by a restart too; who has them mapped keeps them",
                    in_workers, in_workers == 1 ? " is" : "s are");
    uint64_t mib = (bytes + (1u << 20) - 1) >> 20;
    if (n && server->store && store_ends_with_unit(server->store))
        log_write(LOG_LEVEL_WARNING, MESSAGE_STOP_LOSES, "if this is a stop, %u buffer%s lost with it (%" PRIu64
                    " MiB); `systemctl restart` keeps what `systemctl stop` loses",
                    n, n == 1 ? " is" : "s are", mib);
    else if (n)
        log_warning("%u buffer%s with this stop (%" PRIu64 " MiB); who has them mapped keeps them", n,
                    n == 1 ? " ends" : "s end", mib);
}

static void on_signal(uv_signal_t *handle, int signal)
{
    struct server *server = handle->data;

    if (signal == SIGHUP) {
        server_reload(server);
        return;
    }
    if (server->stopping)
        return;
    log_info("stopping: no new connections, running operations may end");
    say_what_a_stop_loses(server);
    server->stopping = true;
    notify_stopping();
    if (server->wire)
        wire_server_stop_listening(server->wire);
    listeners_stop_listening(server);
    core_drain(server->core);
    server->stop_by_ms = server_now(server) + DRAIN_MS;
    uv_timer_start(&server->drain, on_drain, 0, DRAIN_POLL_MS);
}

int server_new(const struct setup *setup, const struct config *config, struct server **ret)
{
    struct server *server = calloc(1, sizeof(*server));

    if (!server)
        return -ENOMEM;
    server->setup = setup;
    server->config = *config; /* its sections stay the caller's */
    server->dir_fd = server->lock_fd = server->spill_key = -1;
    server->started_ms = server_now(server);
    for (unsigned i = 0; i < NVIDIA_DEVICES_MAX; i++)
        server->held[i] = -1;
    int error = uv_loop_init(&server->loop);
    if (error) {
        free(server);
        return error;
    }
    uv_timer_init(&server->loop, &server->wake);
    uv_timer_init(&server->loop, &server->drain);
    for (unsigned i = 0; i < 3; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
    }
    server->wake.data = server->drain.data = server;
    struct core_env env = server_env(server);
    struct core_limits limits = server_limits(config);
    struct workers_world world = devices_world(server);
    server->core = core_new(&env, &limits);
    error = server->core ? closers_new(&server->loop, &server->closers) : -ENOMEM;
    if (!error)
        error = origins_new(&server->loop, server->core, &server->origins);
    if (!error)
        error = store_new(&server->loop, config->store_max, &server->store);
    if (!error)
        server->core->keeps = store_keeps(server->store);
    if (!error)
        error = workers_new(&server->loop, &world, &server->workers);
    *ret = server;
    return error;
}

/* Without all of them the ledger's memory would count as lost: better to end, and be started again with them. */
static bool take_passed(struct server *server)
{
    char why[160];
    int error = passed_take(&server->passed);

    for (size_t i = 0; error >= 0 && i < server->passed.n_kept; i++)
        error = store_count(server->store, server->passed.kept[i].name);
    if (error >= 0)
        return true;
    snprintf(why, sizeof(why), "the fds that the service manager passed cannot be taken: %s; restart to try again",
             strerror(-error));
    server_fail(server, why);
    return false;
}

int server_start(struct server *server)
{
    if (!take_passed(server) || !server_take_directories(server) || !spill_key_find(server) ||
        listeners_add(server) < 0)
        return -1;
    for (unsigned i = 0; i < 3; i++)
        uv_signal_start(&server->signals[i], on_signal, SIGNALS[i]);
    watchdog_start(&server->loop, &server->watchdog);
    if (server->config.device != CONFIG_DEVICE_HOST)
        hold_devices(server);
    devices_find(server);
    return server->failed ? -1 : 0;
}

void server_devices_found(struct server *server)
{
    char why[160];

    if (server->stopping)
        return;
    server->core->ledger = server->ledger;
    int error = ledger_readopt(server->core, server->passed.kept, server->passed.n_kept);
    if (error) {
        snprintf(why, sizeof(why), "the ledger in %.80s cannot be taken up again: %s", server->runtime_dir,
                 strerror(-error));
        server_fail(server, why);
        return;
    }
    server_drop_surplus(server);
    workers_start(server->workers);
    if (!server->devices_awaited)
        server_listen(server);
}

int server_run(struct server *server)
{
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return server->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

struct server *server_free(struct server *server)
{
    if (!server)
        return NULL;
    if (!server->shut)
        shut_down(server);
    uv_run(&server->loop, UV_RUN_DEFAULT); /* the last close callbacks */
    server->core = core_free(server->core);
    server->closers = closers_free(server->closers);
    server->origins = origins_free(server->origins);
    uv_loop_close(&server->loop);
    if (server->ledger) {
        ledger_close(server->ledger);
        if (!server->stays_behind) {
            unlinkat(server->dir_fd, "ledger", 0);
            known_devices_remove(server->dir_fd);
        }
    }
    hold_clear(server);
    fd_close(server->spill_key);
    devices_clear(server);
    listeners_free(server);
    passed_clear(&server->passed);
    fd_close(server->dir_fd);
    fd_close(server->lock_fd);
    free(server);
    return NULL;
}
