#include "daemon/worker/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/worker/device.h"
#include "proto/jobs.h"

#define FAULTS_MAX 8

enum { KILL = 1, HANG, STICKY };

static const struct {
    const char *name;
    int action; /* one of these, or a negative hbm_error */
} actions[] = {
    {"kill", KILL},
    {"hang", HANG},
    {"sticky", STICKY},
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
    unsigned nth;
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
        unsigned nth = 1;
        int n = sscanf(one, "%15[^:]:%15[^:]:%u", job, action, &nth);

        if (n < 2 || !opcode_by_name(job) || !action_by_name(action) || n_faults == FAULTS_MAX) {
            log_warning("HBM_WORKER_FAULT: \"%s\" is no JOB:ACTION[:N]", one);
            continue;
        }
        faults[n_faults].opcode = opcode_by_name(job);
        faults[n_faults].action = action_by_name(action);
        faults[n_faults++].nth = nth;
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

int fault_strike(unsigned opcode, struct failure *failure)
{
    for (unsigned i = 0; i < n_faults; i++) {
        if (faults[i].opcode != opcode || atomic_fetch_add(&faults[i].seen, 1) + 1 != faults[i].nth || used_up())
            continue;
        if (faults[i].action == KILL)
            raise(SIGKILL);
        while (faults[i].action == HANG)
            pause();
        if (faults[i].action == STICKY)
            return spoil(failure);
        return fail(failure, faults[i].action, "asked for by HBM_WORKER_FAULT");
    }
    return 0;
}
