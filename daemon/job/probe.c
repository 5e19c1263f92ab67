/* Asks `hbm-worker-cuda --probe` which GPUs there are: one line each, UUID, NAME and TOTAL bytes between tabs. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/job/workers.h"

#define PROBE_MS 30000 /* a driver that wakes eight sleeping GPUs takes its time */

struct probe {
    uv_process_t process;
    uv_pipe_t output;
    uv_timer_t timer;
    probe_done done;
    void *context;
    struct probe_device devices[PROBE_DEVICES_MAX];
    int n;
    char line[16384]; /* all of the output */
    size_t length;
    char why[256];
    bool exited, ended;
    unsigned open;
};

static void closed(uv_handle_t *handle)
{
    struct probe *probe = handle->data;

    if (--probe->open == 0)
        free(probe);
}

static void close_all(struct probe *probe)
{
    uv_close((uv_handle_t *)&probe->process, closed);
    uv_close((uv_handle_t *)&probe->output, closed);
    uv_close((uv_handle_t *)&probe->timer, closed);
}

static void finish(struct probe *probe)
{
    if (!probe->exited || !probe->ended)
        return;
    char *rest = probe->line, *line;
    while ((line = strsep(&rest, "\n")) && probe->n < PROBE_DEVICES_MAX) {
        struct probe_device *device = &probe->devices[probe->n];
        char *uuid = strsep(&line, "\t"), *name = strsep(&line, "\t"), *total = strsep(&line, "\t");
        if (!total || !*uuid)
            continue;
        snprintf(device->uuid, sizeof(device->uuid), "%s", uuid);
        snprintf(device->name, sizeof(device->name), "%s", name);
        device->total_bytes = strtoull(total, NULL, 10);
        probe->n++;
    }
    if (!probe->n && *probe->why)
        probe->n = -1;
    else if (!probe->n)
        snprintf(probe->why, sizeof(probe->why), "no GPU was found");
    close_all(probe);
    probe->done(probe->context, probe->devices, probe->n, probe->n > 0 ? NULL : probe->why);
}

static void on_process_exit(uv_process_t *process, int64_t status, int signal)
{
    struct probe *probe = process->data;

    probe->exited = true;
    if ((status || signal) && !*probe->why)
        snprintf(probe->why, sizeof(probe->why), "the probe for GPUs ended with %s %lld",
                 signal ? "signal" : "status", signal ? (long long)signal : (long long)status);
    finish(probe);
}

static void on_timer(uv_timer_t *timer)
{
    struct probe *probe = timer->data;

    snprintf(probe->why, sizeof(probe->why), "the probe for GPUs did not end in %d s", PROBE_MS / 1000);
    uv_process_kill(&probe->process, SIGKILL);
    probe->exited = probe->ended = true; /* a process stuck in the driver cannot even be reaped */
    finish(probe);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct probe *probe = handle->data;

    (void)suggested;
    *buffer = uv_buf_init(probe->line + probe->length, (unsigned)(sizeof(probe->line) - 1 - probe->length));
}

static void on_output(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct probe *probe = stream->data;

    (void)buffer;
    if (n >= 0) {
        probe->length += (size_t)n;
        return;
    }
    uv_read_stop(stream);
    probe->ended = true;
    finish(probe);
}

int probe_start(uv_loop_t *loop, const char *program, probe_done done, void *context, struct probe **ret)
{
    struct probe *probe = calloc(1, sizeof(*probe));
    char flag[] = "--probe";
    char *arguments[] = {(char *)program, flag, NULL};

    if (!probe)
        return -ENOMEM;
    probe->done = done;
    probe->context = context;
    uv_pipe_init(loop, &probe->output, 0);
    uv_timer_init(loop, &probe->timer);
    probe->process.data = probe->output.data = probe->timer.data = probe;
    probe->open = 3;
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&probe->output},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
    };
    uv_process_options_t options = {
        .file = program, .args = arguments, .exit_cb = on_process_exit, .stdio = stdio, .stdio_count = 3};
    int error = uv_spawn(loop, &probe->process, &options);
    if (error) {
        close_all(probe);
        return error;
    }
    uv_timer_start(&probe->timer, on_timer, PROBE_MS, 0);
    uv_read_start((uv_stream_t *)&probe->output, on_room, on_output);
    *ret = probe;
    return 0;
}

struct probe *probe_cancel(struct probe *probe)
{
    if (!probe)
        return NULL;
    if (!probe->exited)
        uv_process_kill(&probe->process, SIGKILL);
    close_all(probe);
    return NULL;
}

bool worker_program_path(const char *dir, const char *name, char *path, size_t size)
{
    char self[2048];
    ssize_t n;

    if (*dir) {
        snprintf(path, size, "%s/%s", dir, name);
        return access(path, X_OK) == 0;
    }
    n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        snprintf(path, size, "%.*s/%s", (int)(slash - self), self, name);
        if (access(path, X_OK) == 0)
            return true;
    }
    snprintf(path, size, "/usr/lib/hbmd/%s", name);
    return access(path, X_OK) == 0;
}
