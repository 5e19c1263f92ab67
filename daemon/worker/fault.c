#include "daemon/worker/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/worker/device.h"
#include "daemon/worker/job.h"
#include "proto/jobs.h"

#define FAULTS_MAX 8

enum { KILL = 1, HANG, STICKY, HOLD };

static const struct {
    const char *name;
    int action; /* one of these, or a negative hbm_error */
} actions[] = {
    {"kill", KILL},
    {"hang", HANG},
    {"sticky", STICKY},
    {"hold", HOLD},
    {"io", HBM_E_IO},
    {"nomem", HBM_E_NO_MEMORY},
    {"nospace", HBM_E_NO_SPACE},
    {"cuda", HBM_E_CUDA},
    {"lost", HBM_E_DEVICE_LOST},
    {"checksum", HBM_E_CHECKSUM},
};

static struct {
    unsigned opcode;
    int action;
    unsigned nth, chunk; /* chunk 0: before the job begins */
    atomic_uint seen;
} faults[FAULTS_MAX];
static unsigned n_faults;
static atomic_bool spoilt;

static int action_by_name(const char *name)
{
    for (unsigned i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (!strcmp(actions[i].name, name))
            return actions[i].action;
    return 0;
}

static unsigned opcode_by_name(const char *name)
{
    for (unsigned i = 0; i < JOB_OPCODES; i++)
        if (job_row(i) && !strcasecmp(job_row(i)->name, name))
            return i;
    return 0;
}

void fault_init(void)
{
    const char *text = getenv("HBM_WORKER_FAULT");
    _cleanup_free_ char *copy = text ? strdup(text) : NULL;
    char *rest = NULL;

    for (char *one = copy ? strtok_r(copy, ",", &rest) : NULL; one; one = strtok_r(NULL, ",", &rest)) {
        char job[16] = "", action[16] = "";
        unsigned nth = 1, chunk = 0;
        int n = sscanf(one, "%15[^:]:%15[^:]:%u@%u", job, action, &nth, &chunk);

        if (n < 2 || !opcode_by_name(job) || !action_by_name(action) || n_faults == FAULTS_MAX) {
            log_warning("HBM_WORKER_FAULT: \"%s\" is no JOB:ACTION[:N[@CHUNK]]", one);
            continue;
        }
        faults[n_faults].opcode = opcode_by_name(job);
        faults[n_faults].action = action_by_name(action);
        faults[n_faults].nth = nth;
        faults[n_faults++].chunk = chunk;
    }
}

static bool used_up(void)
{
    const char *path = getenv("HBM_WORKER_FAULT_ONCE");
    _cleanup_fd_ int fd = path ? open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600) : -1;

    return path && fd < 0;
}

bool fault_spoilt(void)
{
    return atomic_load(&spoilt);
}

/* A kernel reads where nothing is mapped. The host device has none, and only ends as if it had. */
static int spoil(struct failure *failure)
{
    if (device_enter(failure))
        return failure->error;
    uint64_t *hashes = device_hashes_new(1);
    if (hashes) {
        (void)device_hash(DEVICE_COMPUTE, NULL, (const void *)4096, 1, hashes, failure);
        device_drain(DEVICE_COMPUTE);
    }
    device_leave();
    atomic_store(&spoilt, true);
    return fail(failure, HBM_E_CUDA, "a faulting kernel, asked for by HBM_WORKER_FAULT");
}

/* Until it is cancelled; whoever asked for that is told that it holds. */
static int hold(struct job *job, struct failure *failure)
{
    const char *path = getenv("HBM_WORKER_FAULT_HELD");
    _cleanup_fd_ int fd = path ? open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600) : -1;

    if (fd >= 0 && write(fd, "held\n", 5) < 0)
        log_warning("HBM_WORKER_FAULT_HELD: %s cannot be written", path);
    while (!job_poll(job, failure)) {
        job_advance(job, 0); /* what is done is told, as by any job that waits */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return failure->error;
}

static int act(int action, struct job *job, struct failure *failure)
{
    if (action == KILL)
        raise(SIGKILL);
    if (action == HANG)
        for (;;)
            pause();
    if (action == STICKY)
        return spoil(failure);
    if (action == HOLD)
        return hold(job, failure);
    return fail(failure, action, "asked for by HBM_WORKER_FAULT");
}

static bool is_another_device(const struct job *job)
{
    static bool is_another;
    const char *uuid = getenv("HBM_WORKER_FAULT_DEVICE");

    if (job->opcode == JOB_START && uuid) /* the first, and alone */
        is_another = strcmp(uuid, job->request.start.uuid) != 0;
    return is_another;
}

int fault_strike(struct job *job, struct failure *failure)
{
    if (is_another_device(job))
        return 0;
    for (unsigned i = 0; i < n_faults; i++) {
        if (faults[i].opcode != job->opcode || atomic_fetch_add(&faults[i].seen, 1) + 1 != faults[i].nth ||
            used_up())
            continue;
        if (!faults[i].chunk)
            return act(faults[i].action, job, failure);
        job->fault = i + 1;
    }
    return 0;
}

int fault_strike_chunk(struct job *job, struct failure *failure)
{
    if (!job->fault || atomic_fetch_add(&job->chunks, 1) + 1 != faults[job->fault - 1].chunk)
        return 0;
    return act(faults[job->fault - 1].action, job, failure);
}
