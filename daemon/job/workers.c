#include "daemon/job/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/usdt.h"

static void end_failed(uv_timer_t *timer)
{
    struct workers *workers = timer->data;
    struct list *node;

    while ((node = list_first(&workers->failed))) {
        struct job *job = list_entry(node, struct job, node);
        list_unlink(node);
        USDT4(job_end, job->device, job->serial, job->opcode, job->error);
        job->done(job);
    }
}

void workers_fail_later(struct workers *workers, struct job *job, int error, const char *why)
{
    job->error = error;
    snprintf(job->detail, sizeof(job->detail), "%s", why);
    list_append(&workers->failed, &job->node);
    if (!workers->freed)
        uv_timer_start(&workers->failing, end_failed, 0, 0);
}

int workers_new(uv_loop_t *loop, const struct workers_world *world, struct workers **ret)
{
    struct workers *workers = calloc(1, sizeof(*workers));

    if (!workers)
        return -ENOMEM;
    workers->loop = loop;
    workers->world = *world;
    list_init(&workers->processes);
    list_init(&workers->failed);
    uv_timer_init(loop, &workers->failing);
    workers->failing.data = workers;
    *ret = workers;
    return 0;
}

int workers_add(struct workers *workers, const struct worker_spec *spec)
{
    struct worker **list = realloc(workers->list, (workers->n + 1) * sizeof(*list));
    struct worker *worker = calloc(1, sizeof(*worker));

    if (list)
        workers->list = list;
    if (!list || !worker) {
        free(worker);
        return -ENOMEM;
    }
    worker->workers = workers;
    worker->index = workers->n;
    snprintf(worker->program, sizeof(worker->program), "%s", spec->program);
    snprintf(worker->uuid, sizeof(worker->uuid), "%s", spec->uuid);
    snprintf(worker->state_dir, sizeof(worker->state_dir), "%s", spec->state_dir);
    snprintf(worker->peers, sizeof(worker->peers), "%s", spec->peers);
    worker->spill_key = spec->spill_key;
    worker->pinned_bytes = spec->pinned_bytes;
    worker->idle_ms = spec->idle_ms;
    worker->gpudirect = spec->gpudirect;
    worker->patience_ms = spec->patience_ms;
    worker->links = spec->links;
    worker->fd = -1;
    worker->backoff_ms = WORKER_BACKOFF_MIN_MS;
    list_init(&worker->queued);
    uv_timer_init(workers->loop, &worker->restart);
    uv_timer_init(workers->loop, &worker->deadline);
    worker->restart.data = worker->deadline.data = worker;
    worker->open_handles = 2;
    workers->list[workers->n++] = worker;
    workers->n_alive++;
    return 0;
}

static void limits_told(struct job *job);

void worker_tell_limits(struct worker *worker)
{
    struct job *job = &worker->limit;

    /* Where it cannot be told now: when it has answered, or has started; without a worker the next START says it. */
    worker->limits_changed = worker->limiting || worker->state == WORKER_STARTING;
    if (worker->limits_changed || worker->state != WORKER_READY)
        return;
    *job = (struct job){.opcode = JOB_LIMIT, .device = worker->index, .done = limits_told};
    for (unsigned i = 0; i < JOB_LINKS; i++)
        job->request.limit.limits[i] = worker->links[i].limit;
    worker->limiting = true;
    workers_submit(worker->workers, job);
}

static void limits_told(struct job *job)
{
    struct worker *worker = container_of(job, struct worker, limit);

    worker->limiting = false;
    if (job->error && worker->state == WORKER_READY)
        log_warning("the worker of %s was not told the limits of its links: %s; reload the configuration to try again",
                    worker->uuid, job->detail);
    if (worker->limits_changed && !worker->closing)
        worker_tell_limits(worker);
}

void workers_limit(struct workers *workers, uint32_t index, const uint64_t limits[JOB_LINKS])
{
    struct worker *worker = workers->list[index];

    for (unsigned i = 0; i < JOB_LINKS; i++)
        worker->links[i].limit = limits[i];
    worker_put_off_deadlines(worker);
    worker_tell_limits(worker);
}

void workers_start(struct workers *workers)
{
    /* From the loop, so that a program that is not there is told like a worker that died. */
    for (unsigned i = 0; i < workers->n; i++)
        worker_start_in(workers->list[i], 0);
}

void workers_submit(struct workers *workers, struct job *job)
{
    job->error = 0;
    job->detail[0] = '\0';
    job->reply_fd = -1;
    job->bytes_done = 0;
    job->serial = 0;
    job->sent = false;
    list_init(&job->node);
    list_init(&job->behind);
    if (workers->freed) {
        workers_fail_later(workers, job, HBM_E_SHUTTING_DOWN, "its worker is being stopped");
        return;
    }
    if (job->device >= workers->n) {
        workers_fail_later(workers, job, HBM_E_NO_DEVICE, "the device of this memory is not served any more");
        return;
    }
    struct worker *worker = workers->list[job->device];
    if (job->opcode == JOB_FILE && worker_is_held_by(worker, job->share)) {
        workers_fail_later(workers, job, HBM_E_IO,
                           "processes of this device's worker are held by files that do not answer: end what serves them");
        return;
    }
    worker_queue(worker, job);
    if (worker->state == WORKER_READY)
        worker_flush(worker);
    else
        worker_watch_deadlines(worker);
}

void workers_cancel(struct workers *workers, struct job *job)
{
    if (job->error || job->device >= workers->n)
        return; /* it waits to be ended already */
    struct worker *worker = workers->list[job->device];
    if (!job->sent) {
        worker_unqueue(worker, job);
        workers_fail_later(workers, job, HBM_E_CANCELLED, "before it began");
        return;
    }
    /* A full socket loses the wish: the job then runs to its end, as if the wish had come too late. */
    struct packet_header header = {.opcode = JOB_CANCEL};
    struct job_cancel_request wish = {.serial = job->serial};
    if (worker->fd >= 0)
        (void)packet_send(worker->fd, &header, &wish, sizeof(wish), NULL, 0);
}

static void free_if_done(struct workers *workers)
{
    if (!workers->freed || workers->n_alive || !workers->failing_closed)
        return;
    free(workers->list);
    free(workers);
}

void workers_one_less(struct workers *workers)
{
    workers->n_alive--;
    free_if_done(workers);
}

static void failing_closed(uv_handle_t *handle)
{
    struct workers *workers = handle->data;

    workers->failing_closed = true;
    free_if_done(workers);
}

struct workers *workers_free(struct workers *workers)
{
    if (!workers)
        return NULL;
    workers->freed = true;
    for (unsigned i = 0; i < workers->n; i++) {
        worker_close(workers->list[i]);
        worker_end_jobs(workers->list[i], HBM_E_SHUTTING_DOWN, "its worker is being stopped");
    }
    list_for_each (node, &workers->processes)
        worker_forget(list_entry(node, struct process, node));
    end_failed(&workers->failing);
    uv_close((uv_handle_t *)&workers->failing, failing_closed);
    return NULL;
}
