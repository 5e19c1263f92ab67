#include "tests/fuzz/life.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz/world.h"

#define STACK_BYTES (1 << 14)

static int pauses(void *unused)
{
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (pause() < 0)
        ;
    return 0;
}

/* Shares our memory: a fork of a sanitized process takes long. */
void life_begin(struct life *life)
{
    life->stack = aligned_alloc(16, STACK_BYTES);
    CHECK(life->stack);
    life->process = clone(pauses, (char *)life->stack + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
    life->pidfd = (int)syscall(SYS_pidfd_open, life->process, 0);
    CHECK(life->process > 0 && life->pidfd >= 0);
}

static void end(const struct life *life, int options)
{
    siginfo_t info;
    int error;

    kill(life->process, SIGKILL);
    do /* libFuzzer's alarm for slow inputs interrupts it */
        error = waitid(P_PID, (id_t)life->process, &info, WEXITED | options);
    while (error && errno == EINTR);
    CHECK(!error);
}

void life_end(const struct life *life)
{
    end(life, WNOWAIT);
}

void life_forget(struct life *life)
{
    if (!life->process)
        return;
    end(life, 0);
    close(life->pidfd);
    free(life->stack);
    *life = (struct life){.pidfd = -1};
}
