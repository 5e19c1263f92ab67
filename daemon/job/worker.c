/* A worker's process: started, missed, started again. */
#include "daemon/job/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/base/usdt.h"

extern char **environ;

/* The environment without what the service manager meant for us alone. NULL: memory is out. */
static char **worker_environment(void)
{
    static const char *const ours[] = {"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_", "FDSTORE="};
    size_t n = 0, kept = 0;

    while (environ[n])
        n++;
    char **copy = calloc(n + 1, sizeof(*copy));
    for (size_t i = 0; copy && i < n; i++) {
        bool leave_out = false;
        for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]); k++)
            leave_out |= !strncmp(environ[i], ours[k], strlen(ours[k]));
        if (!leave_out)
            copy[kept++] = environ[i];
    }
    return copy;
}

static void try_again(struct worker *worker)
{
    uint64_t pause = worker->backoff_ms;

    if (worker->closing)
        return;
    worker->backoff_ms = pause * 2 < WORKER_BACKOFF_MAX_MS ? pause * 2 : WORKER_BACKOFF_MAX_MS;
    worker_start_in(worker, pause);
}

static void handle_closed(uv_handle_t *handle)
{
    struct worker *worker = handle->data;
    struct workers *workers = worker->workers;

    if (--worker->open_handles || !worker->closing)
        return;
    free(worker);
    workers_one_less(workers);
}

static void process_closed(uv_handle_t *handle)
{
    struct process *process = handle->data;
    struct workers *workers = process->workers;
    struct worker *worker = process->worker;

    list_unlink(&process->node);
    free(process);
    if (worker) {
        worker->process = NULL;
        try_again(worker);
    }
    workers_one_less(workers);
}

void worker_forget(struct process *process)
{
    if (!uv_is_closing((uv_handle_t *)&process->handle))
        uv_close((uv_handle_t *)&process->handle, process_closed);
}

static void tell_end(struct worker *worker, int64_t status, int signal)
{
    char why[HBM_DETAIL_MAX];

    worker->running = false;
    if (signal)
        snprintf(why, sizeof(why), "the worker of %s was killed by signal %d", worker->uuid, signal);
    else
        snprintf(why, sizeof(why), "the worker of %s ended with status %lld", worker->uuid, (long long)status);
    if (worker->state != WORKER_DOWN)
        worker_readable(worker); /* answers it gave before it died count */
    worker_down(worker, why);
}

static void on_process_exit(uv_process_t *handle, int64_t status, int signal)
{
    struct process *process = handle->data;

    if (process->worker)
        tell_end(process->worker, status, signal);
    worker_forget(process);
}

static unsigned count_given_up(const struct worker *worker)
{
    unsigned n = 0;

    list_for_each (node, &worker->workers->processes) {
        const struct process *process = list_entry(node, struct process, node);
        n += !process->worker && process->index == worker->index;
    }
    return n;
}

static void give_up(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    if (!worker->running || count_given_up(worker) == WORKER_GIVEN_UP_MAX)
        return; /* the next one starts when it ends */
    log_warning(
        "process %d, a worker of %s, was killed and does not end: a driver or a file system does not answer it; "
        "starting another beside it",
        worker->process->handle.pid, worker->uuid);
    worker->process->worker = NULL;
    worker->process = NULL;
    worker->running = false;
    try_again(worker);
}

static void kill_process(struct worker *worker)
{
    uv_process_kill(&worker->process->handle, SIGKILL);
    uv_timer_start(&worker->restart, give_up, WORKER_ENDING_MS, 0);
}

static void poll_closed(uv_handle_t *handle)
{
    struct worker *worker = handle->data;

    worker->poll_open = false;
    handle_closed(handle);
}

void worker_down(struct worker *worker, const char *why)
{
    struct workers *workers = worker->workers;

    if (worker->state == WORKER_DOWN)
        return;
    if (worker->state == WORKER_READY && uv_now(workers->loop) - worker->ready_ms > WORKER_STABLE_MS)
        worker->backoff_ms = WORKER_BACKOFF_MIN_MS;
    /* Once it is tried every few seconds, the same words again would only fill the log. */
    log_write(worker->backoff_ms < WORKER_BACKOFF_MAX_MS ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG, MESSAGE_WORKER_DIED,
              "%s; starting another", why);
    USDT2(worker_down, worker->index, why);
    worker->state = WORKER_DOWN;
    uv_close((uv_handle_t *)&worker->poll, poll_closed);
    worker->fd = fd_close(worker->fd);
    if (worker->running)
        kill_process(worker);
    workers->world.gone(workers->world.context, worker->index, why);
    worker_end_jobs(worker, HBM_E_WORKER_DIED, why);
}

void worker_poll(uv_poll_t *poll, int status, int events)
{
    struct worker *worker = poll->data;

    if (status < 0)
        worker->polled = 0; /* it has been stopped */
    if (status < 0 || (events & (UV_READABLE | UV_DISCONNECT)))
        worker_readable(worker);
    if (worker->state != WORKER_DOWN && (events & UV_WRITABLE))
        worker_flush(worker);
}

/* A start is two calls of the kernel, also where nothing changes. */
void worker_watch(struct worker *worker, int events)
{
    if (worker->polled != events)
        uv_poll_start(&worker->poll, events, worker_poll);
    worker->polled = events;
}

static void on_started(struct job *job)
{
    struct worker *worker = container_of(job, struct worker, start);
    struct workers *workers = worker->workers;
    char why[HBM_DETAIL_MAX + 96];

    if (worker->state != WORKER_STARTING)
        return; /* it died, and that has been told */
    if (job->error) {
        snprintf(why, sizeof(why), "the worker of %s cannot serve it (%s): %s", worker->uuid,
                 hbm_error_what(job->error), job->detail);
        worker_down(worker, why);
        return;
    }
    worker->state = WORKER_READY;
    worker->ready_ms = uv_now(workers->loop);
    workers->world.ready(workers->world.context, worker->index, &job->reply.start);
    if (worker->limits_changed)
        worker_tell_limits(worker);
    worker_flush(worker);
}

static void start_first_job(struct worker *worker)
{
    struct job_start_request *request = &worker->start.request.start;

    worker->start = (struct job){.opcode = JOB_START, .device = worker->index, .done = on_started, .reply_fd = -1};
    snprintf(request->uuid, sizeof(request->uuid), "%s", worker->uuid);
    snprintf(request->state_dir, sizeof(request->state_dir), "%s", worker->state_dir);
    snprintf(request->peers, sizeof(request->peers), "%s", worker->peers);
    request->pinned_bytes = worker->pinned_bytes;
    request->idle_ms = worker->idle_ms;
    request->gpudirect = worker->gpudirect;
    for (unsigned i = 0; i < JOB_LINKS; i++)
        request->limits[i] = worker->links[i].limit;
    if (worker->spill_key >= 0) {
        request->spill_key = 1;
        worker->start.fds[worker->start.n_fds++] = worker->spill_key;
    }
    /* Ahead of what was submitted while there was no worker. */
    list_init(&worker->start.behind);
    list_append(worker->queued.next, &worker->start.node);
    worker_flush(worker);
}

static int spawn_with(struct worker *worker, int their_end)
{
    char fd_text[] = "3";
    char *arguments[] = {worker->program, "--fd", fd_text, NULL};
    uv_stdio_container_t stdio[4] = {
        {.flags = UV_IGNORE},
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO}, /* what it says goes where our log goes */
        {.flags = UV_INHERIT_FD, .data.fd = their_end},
    };
    _cleanup_free_ char **environment = worker_environment();
    uv_process_options_t options = {
        .file = worker->program,
        .args = arguments,
        .env = environment,
        .exit_cb = on_process_exit,
        .flags = UV_PROCESS_DETACHED, /* a terminal's Ctrl-C is for us: the worker's jobs are to end first */
        .stdio = stdio,
        .stdio_count = 4,
    };

    struct process *process = environment ? calloc(1, sizeof(*process)) : NULL;
    if (!process)
        return -ENOMEM;
    *process = (struct process){.workers = worker->workers, .worker = worker, .index = worker->index};
    process->handle.data = process;
    list_append(&worker->workers->processes, &process->node);
    worker->workers->n_alive++;
    worker->process = process; /* a handle that failed to start wants closing too */
    return uv_spawn(worker->workers->loop, &process->handle, &options);
}

/* Its end of the pair, or -errno. Also when clients hold all fds but the reserve. */
static int spawn(struct worker *worker)
{
    int pair[2], error;

    fd_reserve_lift(true);
    error = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0 ? -errno : 0;
    if (!error) {
        error = spawn_with(worker, pair[1]);
        fd_close(pair[1]);
        if (error)
            fd_close(pair[0]);
    }
    fd_reserve_lift(false);
    return error ? error : pair[0];
}

static void spawn_worker(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    struct workers *workers = worker->workers;
    int fd = spawn(worker);
    char why[HBM_DETAIL_MAX + sizeof(worker->program)];

    if (fd < 0) {
        snprintf(why, sizeof(why), "cannot start %s: %s; %s", worker->program, strerror(-fd),
                 fd == -ENOENT || fd == -EACCES ? "install it there, or set worker_dir in hbmd.conf"
                                                      : "trying again");
        if (worker->backoff_ms == WORKER_BACKOFF_MIN_MS)
            log_error("%s", why);
        workers->world.gone(workers->world.context, worker->index, why);
        worker_end_jobs(worker, HBM_E_WORKER_DIED, why);
        if (worker->process)
            worker_forget(worker->process);
        else
            try_again(worker);
        return;
    }
    worker->running = true;
    worker->fd = fd;
    worker->state = WORKER_STARTING;
    worker->eof = false;
    worker->open_handles++;
    worker->poll_open = true;
    uv_poll_init(workers->loop, &worker->poll, worker->fd);
    worker->poll.data = worker;
    worker->polled = 0;
    worker_watch(worker, UV_READABLE);
    workers->world.spawned(workers->world.context, worker->index, worker->process->handle.pid);
    start_first_job(worker);
}

void worker_start_in(struct worker *worker, uint64_t pause_ms)
{
    uv_timer_start(&worker->restart, spawn_worker, pause_ms, 0);
}

void worker_close(struct worker *worker)
{
    worker->closing = true;
    worker->state = WORKER_DOWN;
    if (worker->poll_open && !uv_is_closing((uv_handle_t *)&worker->poll))
        uv_close((uv_handle_t *)&worker->poll, poll_closed);
    worker->fd = fd_close(worker->fd);
    if (worker->running)
        uv_process_kill(&worker->process->handle, SIGKILL);
    if (worker->process)
        worker->process->worker = NULL;
    worker->process = NULL;
    uv_close((uv_handle_t *)&worker->restart, handle_closed);
    uv_close((uv_handle_t *)&worker->deadline, handle_closed);
}
