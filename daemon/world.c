/* The world as core sees it: workers for its jobs, the store and the closers for its fds, a clock. */
#include <time.h>

#include "daemon/server.h"

uint64_t server_now(void *context)
{
    struct timespec now;

    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void submit(void *context, struct job *job)
{
    workers_submit(((struct server *)context)->workers, job);
}

static void cancel(void *context, struct job *job)
{
    workers_cancel(((struct server *)context)->workers, job);
}

static void store(void *context, struct store_request *request)
{
    store_put(((struct server *)context)->store, request);
}

static void unstore(void *context, const char *name)
{
    store_remove(((struct server *)context)->store, name);
}

void server_tick(uv_timer_t *timer)
{
    struct server *server = timer->data;

    core_tick(server->core);
}

static void wake_at(void *context, uint64_t at_ms)
{
    struct server *server = context;
    uint64_t now = server_now(server);

    if (!at_ms) {
        uv_timer_stop(&server->wake);
        return;
    }
    uv_update_time(&server->loop);
    uv_timer_start(&server->wake, server_tick, at_ms > now ? at_ms - now : 0, 0);
}

static void close_memory(void *context, int fd, void (*closed)(void *argument), void *argument)
{
    closers_memory(((struct server *)context)->closers, fd, closed, argument);
}

static bool close_sent(void *context, struct owner owner, int fd)
{
    return closers_sent(((struct server *)context)->closers, owner, fd);
}

static void find_origin(void *context, uint64_t session, int32_t pid)
{
    origins_ask(((struct server *)context)->origins, session, pid);
}

struct core_env server_env(struct server *server)
{
    return (struct core_env){
        .context = server,
        .submit = submit,
        .cancel = cancel,
        .store = store,
        .unstore = unstore,
        .now_ms = server_now,
        .wake_at = wake_at,
        .close_memory = close_memory,
        .close_sent = close_sent,
        .find_origin = find_origin,
    };
}

struct core_limits server_limits(const struct config *config)
{
    return (struct core_limits){
#define THING(NAME, name, words) .account[ACCOUNT_##NAME] = config->account_##name,
#include "daemon/core/thing.def"
#undef THING
        .soft_percent = config->account_soft,
        .sessions = config->max_sessions,
        .pieces_bytes = config->pin_pieces_bytes,
        .split_bytes = config->split_bytes,
        .offload_percent = config->offload_limit,
        .reclaim_ms = config->reclaim_seconds,
        .memory_wait_ms = config->memory_wait_seconds,
        .host_pool_idle_ms = config->host_pool_idle_seconds,
        .watermarks = {[HBM_TIER_DEVICE] = {config->device_high, config->device_low},
                       [HBM_TIER_HOST] = {config->host_high, config->host_low}},
    };
}
