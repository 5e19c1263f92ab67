/* hbm-worker, hbm-worker-cuda: one process for one device. It is started by hbmd with a socketpair, does the jobs
 * of proto/jobs.def, and holds nothing that hbmd could not hand to a fresh one. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "daemon/base/crash.h"
#include "daemon/worker/checksum.h"
#include "daemon/worker/control.h"
#include "daemon/worker/device.h"
#include "daemon/worker/fault.h"
#include "daemon/worker/rights.h"

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s --fd N | --probe\nStarted by hbmd; --probe lists the devices it could serve.\n",
            program);
    return 2;
}

/* Queued jobs hold their fds, and a queue may be long. */
static void raise_fd_limit(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    char *end = NULL;
    long fd = argc == 3 ? strtol(argv[2], &end, 10) : -1;

    if (argc == 2 && !strcmp(argv[1], "--probe")) {
        device_probe(stdout);
        return fflush(stdout) ? 1 : 0;
    }
    if (argc != 3 || strcmp(argv[1], "--fd") || !end || *end || fd < 0 || fd > INT_MAX)
        return usage(argv[0]);
    crash_watch("hbm-worker");
    rights_drop();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* what is larger than the limit of a file is refused, and other jobs go on */
    raise_fd_limit();
    fault_init();
    checksum_init();
    return control_serve((int)fd);
}
