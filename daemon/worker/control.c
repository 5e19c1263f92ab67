#include "daemon/worker/control.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/worker/channel.h"
#include "daemon/worker/check.h"
#include "daemon/worker/cipher.h"
#include "daemon/worker/crew.h"
#include "daemon/worker/device.h"
#include "daemon/worker/fault.h"
#include "daemon/worker/gds.h"
#include "daemon/worker/io.h"
#include "daemon/worker/job.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/staging.h"

#define DRAIN_SECONDS 2
#define EXIT_SPOILT 4

/* What runs beside what. A link has two threads, since mapping host memory costs half as long as copying it: one
 * job maps and unmaps while the other's bytes are on the link. Clients' files have three, of which the owner
 * gives nobody all, and none with our own spill files: theirs may lie where nobody answers. What is made ahead is in nobody's
 * way. Everywhere else one job runs at a time. */
enum engine { UP, DOWN, COMPUTE, DISK_READ, DISK_WRITE, FILES, AHEAD, ADMIN, WATCH, ENGINES };
static const unsigned jobs_of[ENGINES] = {
    [UP] = 2, [DOWN] = 2, [COMPUTE] = 1, [DISK_READ] = 1, [DISK_WRITE] = 1, [FILES] = 3, [AHEAD] = 1, [ADMIN] = 1, [WATCH] = 1};
static const enum engine engine_of_link[JOB_LINKS + 1] = {[JOB_LINK_DEVICE_TO_HOST] = DOWN,
                                                          [JOB_LINK_HOST_TO_DEVICE] = UP,
                                                          [JOB_LINK_DISK_WRITE] = DISK_WRITE,
                                                          [JOB_LINK_DISK_READ] = DISK_READ,
                                                          [JOB_LINK_NONE] = COMPUTE};

static struct control {
    struct channel channel;
    struct crew crew;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct list alive;  /* jobs not answered yet */
    unsigned running;   /* jobs not freed yet */
    unsigned releasing; /* jobs answered that still have something mapped */
    bool started;
    char state_dir[sizeof(((struct job_start_request *)0)->state_dir)];
} control = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .alive = LIST_INIT(control.alive)};

static unsigned engine_of(const struct job *job)
{
    switch (job->opcode) {
    case JOB_COPY: /* between two devices: on the streams of this side, and over no link to the host */
        if (job->request.copy.flags & JOB_FROM_PEER && job->request.copy.target.kind != JOB_EXTENT_HOST)
            return UP;
        if (job->request.copy.flags & JOB_TO_PEER && job->request.copy.source.kind != JOB_EXTENT_HOST)
            return DOWN;
        /* fall through */
    case JOB_PACK:
    case JOB_UNPACK:
    case JOB_HASH:
        return engine_of_link[job_link_of(job->opcode, &job->request)];
    case JOB_FILE:
        return FILES;
    case JOB_CREATE: /* where the disk does not answer, memory is made all the same */
        return job->request.create.kind == JOB_EXTENT_DISK ? DISK_WRITE
               : job->request.create.flags & JOB_AHEAD     ? AHEAD
                                                           : ADMIN;
    case JOB_ENCODE:
    case JOB_DECODE:
    case JOB_MEASURE:
    case JOB_OBSERVE:
        return COMPUTE;
    case JOB_QUERY:
    case JOB_CLIENTS:
    case JOB_LIMIT:
        return WATCH; /* asked every few milliseconds while a dead client is waited for: never behind a CREATE */
    }
    return ADMIN;
}

static void start(struct job *job)
{
    const struct job_start_request *r = &job->request.start;

    if (control.started) {
        fail(&job->failure, HBM_E_BAD_REQUEST, "this worker is started already");
        return;
    }
    if (r->spill_key && cipher_set_key(job->fds[0], &job->failure))
        return;
    staging_limit(r->pinned_bytes);
    pace_limit(r->limits);
    memcpy(control.state_dir, r->state_dir, sizeof(control.state_dir));
    control.started = !device_start(r, &job->reply.start, &job->failure);
    gds_start(r->gpudirect != 0, job->reply.start.rdma != 0);
    int refused = io_ring_refused();
    job->reply.start.disk_ring = !refused;
    job->reply.start.disk_errno = refused > 0 ? (uint32_t)refused : 0;
}

static void with_memory(struct job *job, void (*run)(struct job *))
{
    if (job_poll(job, &job->failure) || device_enter(&job->failure))
        return;
    run(job);
    device_leave();
}

void control_wait_for_releases(void)
{
    pthread_mutex_lock(&control.mutex);
    while (control.releasing)
        pthread_cond_wait(&control.changed, &control.mutex);
    pthread_mutex_unlock(&control.mutex);
}

static void perform(struct job *job)
{
    switch (job->opcode) {
    case JOB_START:
        start(job);
        break;
    case JOB_CREATE:
        if (job->request.create.kind != JOB_EXTENT_DISK)
            control_wait_for_releases();
        job_create(job, control.state_dir);
        break;
    case JOB_DESTROY:
        device_destroy(&job->request.destroy, &job->failure);
        break;
    case JOB_COPY:
        with_memory(job, job_copy);
        break;
    case JOB_PACK:
        with_memory(job, job_pack);
        break;
    case JOB_UNPACK:
        with_memory(job, job_unpack);
        break;
    case JOB_MEASURE:
        with_memory(job, job_measure);
        break;
    case JOB_OBSERVE:
        with_memory(job, job_observe);
        break;
    case JOB_ENCODE:
        with_memory(job, job_encode);
        break;
    case JOB_DECODE:
        with_memory(job, job_decode);
        break;
    case JOB_HASH:
        with_memory(job, job_hash);
        break;
    case JOB_FILE:
        with_memory(job, job_file);
        break;
    case JOB_QUERY:
        control_wait_for_releases();
        device_query(&job->reply.query, &job->failure);
        gds_report(&job->reply.query);
        break;
    case JOB_CLIENTS:
        device_clients(&job->request.clients, &job->reply.clients, &job->failure);
        break;
    case JOB_LIMIT:
        pace_limit(job->request.limit.limits);
        break;
    }
}

static void answer(struct job *job)
{
    pthread_mutex_lock(&control.mutex);
    list_unlink(&job->alive);
    pthread_mutex_unlock(&control.mutex);
    channel_reply(&control.channel, job);
}

void control_answer(struct job *job)
{
    pthread_mutex_lock(&control.mutex);
    control.releasing++;
    pthread_mutex_unlock(&control.mutex);
    job->answered = true;
    answer(job);
}

static void run(struct job *job)
{
    if (!fault_strike(job, &job->failure))
        perform(job);
    /* Before the reply: an owner that counts what is free must not see what this job still holds. */
    job_close_fds(job);
    if (!job->answered)
        answer(job);
    bool was_releasing = job->answered, failed = job->failure.error;
    job_free(job);
    pthread_mutex_lock(&control.mutex);
    control.releasing -= was_releasing;
    bool last = --control.running == 0;
    pthread_cond_broadcast(&control.changed);
    pthread_mutex_unlock(&control.mutex);
    /* Whoever met the error has said so by now: it ends this process, or the last one that had an answer to give. */
    if ((device_spoilt() || fault_spoilt()) && (failed || last)) {
        log_error("a device error has spoilt this worker: it ends, the owner starts another");
        _exit(EXIT_SPOILT);
    }
}

static void cancel(uint32_t serial)
{
    pthread_mutex_lock(&control.mutex);
    list_for_each (node, &control.alive) {
        struct job *job = list_entry(node, struct job, alive);

        if (serial == 0 || job->serial == serial)
            atomic_store(&job->cancelled, true);
    }
    pthread_mutex_unlock(&control.mutex);
}

/* False if the owner uses the serial already. */
static bool enlist(struct job *job)
{
    bool fresh = true;

    pthread_mutex_lock(&control.mutex);
    list_for_each (node, &control.alive)
        fresh &= list_entry(node, struct job, alive)->serial != job->serial;
    if (fresh) {
        list_append(&control.alive, &job->alive);
        control.running++;
    }
    pthread_mutex_unlock(&control.mutex);
    return fresh;
}

/* NULL: it is answered. */
static struct job *accept_job(struct packet *packet)
{
    struct job *job = job_new(&control.channel, packet);

    if (!job) {
        channel_refuse(&control.channel, packet->header.opcode, packet->header.serial, HBM_E_SYSTEM,
                       "out of memory for a job");
        return NULL;
    }
    if (!enlist(job)) {
        channel_refuse(&control.channel, job->opcode, job->serial, HBM_E_BAD_REQUEST,
                       "a job of that serial is running");
        return job_free(job);
    }
    if (job->opcode != JOB_START && job->opcode != JOB_LIMIT)
        return job;
    run(job); /* here: nothing that comes later may begin before the device is picked, or with the old limits */
    return NULL;
}

static struct job *handle(struct packet *packet)
{
    struct failure failure = {0};
    const struct packet_header *header = &packet->header;

    if (!check_packet(packet, &failure) && !control.started && header->opcode != JOB_START)
        fail(&failure, HBM_E_BAD_REQUEST, "a worker's first job is START");
    if (failure.error) {
        packet_close_fds(packet);
        if (header->serial)
            channel_refuse(&control.channel, header->opcode, header->serial, failure.error, failure.detail);
        else
            log_warning("a one-way packet was refused: %s", failure.detail);
    } else if (header->opcode == JOB_CANCEL) {
        struct job_cancel_request request;

        memcpy(&request, packet->body, sizeof(request));
        if (request.serial)
            cancel(request.serial);
    } else
        return accept_job(packet);
    return NULL;
}

static bool receive(struct job **job)
{
    static struct packet packet; /* of the one who receives */
    int error;

    packet.header = (struct packet_header){0};
    error = packet_receive(control.channel.fd, &packet);
    if (!error)
        *job = handle(&packet);
    else if (error == -ENOMEM || error == -ENOBUFS)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the kernel's want passes; the packet is still there */
    else if (error != -EPROTO && error != -EMFILE)
        return false;
    else if (packet.header.serial)
        channel_refuse(&control.channel, packet.header.opcode, packet.header.serial,
                       error == -EMFILE ? HBM_E_LIMIT : HBM_E_BAD_REQUEST,
                       error == -EMFILE ? "the worker has no room for more descriptors" : "the packet is malformed");
    return true;
}

/* Nobody waits for the jobs any more, but ending them properly lets the disk and the driver settle. */
static bool drain(void)
{
    struct timespec until;
    int late = 0;

    cancel(0);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += DRAIN_SECONDS;
    pthread_mutex_lock(&control.mutex);
    while (control.running && !late)
        late = pthread_cond_clockwait(&control.changed, &control.mutex, CLOCK_MONOTONIC, &until);
    bool idle = control.running == 0;
    pthread_mutex_unlock(&control.mutex);
    return idle;
}

int control_serve(int fd)
{
    channel_init(&control.channel, fd);
    control.crew = (struct crew){.receive = receive, .engine_of = engine_of, .run = run};
    int error = crew_start(&control.crew, jobs_of, ENGINES);
    if (error) {
        log_error("the worker's threads cannot be started: %s; raise its memory or its number of tasks (MemoryMax, "
                  "TasksMax, ulimit -v, -u)", strerror(-error));
        return 1;
    }
    crew_wait(&control.crew);
    if (!drain()) {
        crew_leave(&control.crew);
        _exit(0);
    }
    crew_join(&control.crew);
    staging_drop();
    return 0;
}
