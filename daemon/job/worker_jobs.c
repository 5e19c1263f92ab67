/* The conversation with a worker: jobs out, at most WORKER_IN_FLIGHT at once, answers in, matched by serial. */
#include "daemon/job/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/base/log.h"
#include "daemon/base/usdt.h"

#define PACKETS_A_WAKEUP 64

static uint64_t job_bytes(const struct job *job)
{
    switch (job->opcode) {
    case JOB_CREATE:
        return job->request.create.size; /* zeroed */
    case JOB_COPY:
        return job->request.copy.bytes;
    case JOB_PACK:
        return job->request.pack.bytes;
    case JOB_UNPACK:
        return job->request.unpack.bytes;
    case JOB_MEASURE:
        return job->request.measure.raw.size;
    case JOB_OBSERVE:
        return job->request.observe.extent.size;
    case JOB_ENCODE:
        return job->request.encode.source.size + job->request.encode.target.size;
    case JOB_DECODE:
        return job->request.decode.source.size + job->request.decode.target.size;
    case JOB_HASH:
        return job->request.hash.bytes;
    case JOB_FILE:
        return job->request.file.extent.size;
    }
    return 0;
}

/* What is encoded or decoded besides, before or after it goes over the link. */
static uint64_t coded_bytes(const struct job *job)
{
    return job->opcode == JOB_PACK     ? job->request.pack.raw.size
           : job->opcode == JOB_UNPACK ? job->request.unpack.raw.size
                                       : 0;
}

/* Whose turn it is: a client's files may lie where nobody answers, and hold up nothing else of its own. */
static uint64_t turn_of(const struct job *job)
{
    return job->opcode == JOB_FILE ? ~job->share : job->share;
}

static struct flight *flight_of(struct worker *worker, uint32_t serial)
{
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++)
        if (worker->flights[i].job && worker->flights[i].job->serial == serial)
            return &worker->flights[i];
    return NULL;
}

/* At the slowest that is still in order. */
static uint64_t time_for(const struct worker *worker, const struct flight *flight)
{
    uint64_t limit = flight->link == JOB_LINK_NONE ? 0 : worker->links[flight->link].limit;
    double a_ms = limit && limit < (uint64_t)WORKER_BYTES_A_MS * 1000 ? (double)limit / 1000 : (double)WORKER_BYTES_A_MS;
    double ms = (double)flight->bytes / a_ms + (double)coded_bytes(flight->job) / (double)WORKER_BYTES_A_MS;

    return ms < (double)WORKER_LONGEST_MS ? (uint64_t)ms : WORKER_LONGEST_MS;
}

static void take_off(struct worker *worker, struct job *job)
{
    struct flight *flight = worker->flights;

    while (flight->job)
        flight++;
    worker->n_flights++;
    *flight = (struct flight){.job = job, .link = job_link_of(job->opcode, &job->request), .bytes = job_bytes(job)};
    flight->takes_ms = time_for(worker, flight);
    worker->ms_in_flight += flight->takes_ms;
    /* It may have to wait in the worker behind all that is in flight. */
    flight->deadline_ms = uv_now(worker->workers->loop) + worker->patience_ms + worker->ms_in_flight;
    if (flight->link != JOB_LINK_NONE)
        traffic_begin(&worker->links[flight->link], flight->bytes, uv_hrtime());
}

void worker_put_off_deadlines(struct worker *worker)
{
    uint64_t now = uv_now(worker->workers->loop);

    worker->ms_in_flight = 0;
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++) {
        struct flight *flight = &worker->flights[i];
        if (!flight->job)
            continue;
        flight->takes_ms = time_for(worker, flight);
        worker->ms_in_flight += flight->takes_ms;
    }
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++) {
        uint64_t at = now + worker->patience_ms + worker->ms_in_flight;
        if (worker->flights[i].job && worker->flights[i].deadline_ms < at)
            worker->flights[i].deadline_ms = at;
    }
    worker_watch_deadlines(worker);
}

/* So many of its bytes are done, it says; no more than it has, and never fewer than before. */
static void hear_progress(struct worker *worker, struct flight *flight, uint64_t bytes)
{
    if (bytes > flight->bytes)
        bytes = flight->bytes;
    if (flight->link == JOB_LINK_NONE || bytes <= flight->told)
        return;
    traffic_move(&worker->links[flight->link], bytes - flight->told, uv_hrtime());
    flight->told = bytes;
}

static struct job *land(struct worker *worker, struct flight *flight)
{
    struct job *job = flight->job;

    if (flight->link != JOB_LINK_NONE)
        traffic_end(&worker->links[flight->link], flight->bytes - flight->told, uv_hrtime());
    worker->ms_in_flight -= flight->takes_ms;
    worker->n_flights--;
    flight->job = NULL;
    return job;
}

void worker_queue(struct worker *worker, struct job *job)
{
    list_init(&job->behind);
    list_for_each (node, &worker->queued) {
        struct job *first = list_entry(node, struct job, node);
        if (turn_of(first) != turn_of(job) || first == &worker->start)
            continue;
        list_append(&first->behind, &job->node);
        return;
    }
    list_append(&worker->queued, &job->node);
}

/* The next of its share takes its place, at the end of the round. */
void worker_unqueue(struct worker *worker, struct job *job)
{
    struct list *next = list_first(&job->behind);

    list_unlink(&job->node);
    if (!next)
        return;
    struct job *heir = list_entry(next, struct job, node);
    list_unlink(next);
    list_move_all(&heir->behind, &job->behind);
    list_append(&worker->queued, &heir->node);
}

static int send_job(struct worker *worker, struct job *job)
{
    struct packet_header header = {.opcode = job->opcode, .serial = worker->serial + 1};
    int error =
        packet_send(worker->fd, &header, &job->request, job_row(job->opcode)->request_size, job->fds, job->n_fds);

    if (error)
        return error;
    if (++worker->serial == UINT32_MAX)
        worker->serial = 0;
    job->serial = header.serial;
    job->sent = true;
    worker_unqueue(worker, job);
    take_off(worker, job);
    USDT4(job_begin, job->device, job->serial, job->opcode, job_bytes(job));
    return 0;
}

static bool may_take_off(const struct worker *worker, const struct job *job)
{
    unsigned own = 0, room = WORKER_IN_FLIGHT - WORKER_RESERVE;

    if (!job->share)
        return worker->n_flights < WORKER_IN_FLIGHT;
    if (worker->n_flights >= room)
        return false;
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++)
        own += worker->flights[i].job && turn_of(worker->flights[i].job) == turn_of(job);
    unsigned fair = (room - (worker->n_flights - own)) / 2;
    unsigned most = job->opcode == JOB_FILE ? WORKER_FILES_SHARE : WORKER_SHARE;
    return own == 0 || own < (fair < most ? fair : most);
}

static struct job *next_job(struct worker *worker)
{
    list_for_each (node, &worker->queued) {
        struct job *job = list_entry(node, struct job, node);
        if (worker->state != WORKER_READY && job != &worker->start)
            return NULL; /* nothing comes before that one */
        if (may_take_off(worker, job))
            return job;
    }
    return NULL;
}

void worker_flush(struct worker *worker)
{
    int want = UV_READABLE;
    struct job *job;

    if (worker->eof)
        return;
    while ((job = next_job(worker))) {
        int error = send_job(worker, job);
        if (!error)
            continue;
        if (error == -EAGAIN || error == -ENOMEM || error == -ENOBUFS)
            want |= UV_WRITABLE; /* the worker's room or the kernel's memory: both come again */
        if ((want & UV_WRITABLE) || error == -EPIPE)
            break; /* its end is heard of by reading */
        char why[96];
        snprintf(why, sizeof(why), "the job could not be sent to the worker: %s", strerror(-error));
        worker_unqueue(worker, job);
        workers_fail_later(worker->workers, job, HBM_E_SYSTEM, why);
    }
    worker_watch(worker, want);
    worker_watch_deadlines(worker);
}

/* The job was done, but there was no room here for the fd that came of it: it is gone, and with it what was made. */
static void lose_fd(struct job *job)
{
    job->error = HBM_E_LIMIT;
    snprintf(job->detail, sizeof(job->detail), FD_RAN_OUT);
}

/* Only clients' files that do not answer are left there: it goes, and takes no other job along. */
static bool waits_for_files_alone(const struct worker *worker)
{
    unsigned n = 0;

    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++)
        n += worker->flights[i].job && worker->flights[i].late;
    return n && n == worker->n_flights;
}

static uint32_t listener_of(uint64_t share)
{
    return (uint32_t)((share - 1) >> 32);
}

bool worker_is_held_by(const struct worker *worker, uint64_t share)
{
    unsigned own = 0, listeners = 0;

    list_for_each (node, &worker->workers->processes) {
        const struct process *process = list_entry(node, struct process, node);
        if (process->worker || process->index != worker->index || !process->share)
            continue;
        own += process->share == share;
        listeners += listener_of(process->share) == listener_of(share);
    }
    return own >= WORKER_HELD_BY_SHARE || listeners >= WORKER_HELD_BY_LISTENER;
}

static void give_up_on_files(struct worker *worker)
{
    char why[HBM_DETAIL_MAX];

    for (unsigned i = 0; i < WORKER_IN_FLIGHT && worker->process; i++)
        if (worker->flights[i].job && worker->flights[i].late)
            worker->process->share = worker->flights[i].job->share;
    snprintf(why, sizeof(why), "the worker of %s did not answer in time (a client's file does not)", worker->uuid);
    worker_down(worker, why);
}

/* A worker's packet that is none is the end of that worker: nothing it says can be trusted. */
static const char *take_reply(struct worker *worker, struct packet *packet, bool fd_lost)
{
    const struct packet_header *header = &packet->header;
    struct flight *flight;

    if (header->serial == 0) {
        const struct job_progress_request *progress = (const void *)packet->body;
        if (header->opcode != JOB_PROGRESS || packet->body_size != sizeof(*progress) || packet->n_fds)
            return "it sent a one-way message that is none";
        flight = flight_of(worker, progress->serial);
        if (!flight)
            return NULL; /* crossed with the answer */
        hear_progress(worker, flight, progress->bytes);
        flight->job->bytes_done = progress->bytes;
        if (flight->job->progress)
            flight->job->progress(flight->job);
        return NULL;
    }
    flight = flight_of(worker, header->serial);
    if (!flight || flight->job->opcode != header->opcode)
        return "it answered a job that was not asked";
    const struct job_row *row = job_row(header->opcode);
    const struct packet_refusal *refusal = (const void *)packet->body;
    if (header->status > 0 || (header->status && (packet->body_size != sizeof(*refusal) || packet->n_fds)) ||
        (!header->status && (packet->body_size != row->reply_size || packet->n_fds > row->fds_out_max)))
        return "it sent an answer of the wrong form";

    if (!header->status)
        hear_progress(worker, flight, flight->bytes);
    struct job *job = land(worker, flight);
    if (fd_lost) {
        lose_fd(job);
    } else if (header->status) {
        job->error = header->status;
        snprintf(job->detail, sizeof(job->detail), "%.*s", (int)sizeof(refusal->detail) - 1, refusal->detail);
    } else {
        memcpy(&job->reply, packet->body, packet->body_size);
        job->reply_fd = packet_take_fd(packet, 0);
    }
    USDT4(job_end, job->device, job->serial, job->opcode, job->error);
    job->done(job);
    return NULL;
}

void worker_readable(struct worker *worker)
{
    char why[HBM_DETAIL_MAX];
    const char *wrong = NULL;
    int error = 0;

    for (unsigned i = 0; i < PACKETS_A_WAKEUP && worker->state != WORKER_DOWN && !wrong; i++) {
        error = packet_receive(worker->fd, &worker->packet);
        if (error && error != -EMFILE)
            break;
        wrong = take_reply(worker, &worker->packet, error == -EMFILE);
        error = 0;
        packet_close_fds(&worker->packet);
    }
    if (worker->state == WORKER_DOWN || worker->eof)
        return;
    if (error == -EAGAIN || error == -ENOMEM || error == -ENOBUFS || (!error && !wrong)) {
        worker_flush(worker);
        if (waits_for_files_alone(worker))
            give_up_on_files(worker);
        return;
    }
    if (error == -EPIPE && worker->running) {
        worker->eof = true; /* how it died says more, and comes at once */
        uv_poll_stop(&worker->poll);
        uv_process_kill(&worker->process->handle, SIGKILL);
        return;
    }
    if (!wrong)
        wrong = strerror(-error);
    snprintf(why, sizeof(why), "the worker of %s is given up: %s", worker->uuid, wrong);
    worker_down(worker, why);
}

void worker_end_jobs(struct worker *worker, int error, const char *why)
{
    struct list *node;

    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++) {
        if (!worker->flights[i].job)
            continue;
        struct job *job = land(worker, &worker->flights[i]);
        job->at_large = worker->running;
        workers_fail_later(worker->workers, job, error, why);
    }
    while ((node = list_first(&worker->queued))) {
        struct job *job = list_entry(node, struct job, node);
        worker_unqueue(worker, job);
        workers_fail_later(worker->workers, job, error, why);
    }
    uv_timer_stop(&worker->deadline);
}

/* Armed only while something is waited for: an idle owner sleeps. */
void worker_watch_deadlines(struct worker *worker)
{
    uint64_t now = uv_now(worker->workers->loop), first = UINT64_MAX;

    if (worker->closing)
        return;
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++)
        if (worker->flights[i].job && worker->flights[i].deadline_ms < first)
            first = worker->flights[i].deadline_ms;
    if (worker->state == WORKER_DOWN && !list_empty(&worker->queued)) {
        if (!uv_is_active((uv_handle_t *)&worker->deadline))
            uv_timer_start(&worker->deadline, worker_deadline, worker->patience_ms, 0);
    } else if (first == UINT64_MAX) {
        uv_timer_stop(&worker->deadline);
    } else {
        uv_timer_start(&worker->deadline, worker_deadline, first > now ? first - now : 0, 0);
    }
}

void worker_deadline(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    uint64_t now = uv_now(worker->workers->loop);
    char why[HBM_DETAIL_MAX];

    if (worker->state == WORKER_DOWN) {
        snprintf(why, sizeof(why),
                 worker->running ? "the worker of %s was killed and does not end: the driver holds it"
                                 : "no worker of %s could be started in time",
                 worker->uuid);
        worker->workers->world.gone(worker->workers->world.context, worker->index, why);
        worker_end_jobs(worker, HBM_E_DEVICE_LOST, why);
        return;
    }
    for (unsigned i = 0; i < WORKER_IN_FLIGHT; i++) {
        struct job *job = worker->flights[i].job;
        if (!job || worker->flights[i].deadline_ms > now)
            continue;
        if (job->opcode == JOB_FILE && !worker->flights[i].late) {
            /* Others' jobs are worth that patience once more. */
            worker->flights[i].late = job->late = true;
            worker->flights[i].deadline_ms = now + worker->patience_ms;
            continue;
        }
        if (worker->flights[i].late) {
            give_up_on_files(worker);
            return;
        }
        snprintf(why, sizeof(why), "the worker of %s did not answer in time (%s)", worker->uuid,
                 job_row(job->opcode)->name);
        worker_down(worker, why);
        return;
    }
    if (waits_for_files_alone(worker))
        give_up_on_files(worker);
    else
        worker_watch_deadlines(worker);
}
