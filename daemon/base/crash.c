#include "daemon/base/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FRAMES_MAX 64

static const char *name;

static void on_fatal(int signal, siginfo_t *info, void *context)
{
    void *frames[FRAMES_MAX];
    char line[160];

    (void)context;
    /* Of what follows only snprintf is not promised to be safe here; with nothing left to lose it is tried. */
    int size = snprintf(line, sizeof(line), "%s: signal %d at %p ends this process, which is a bug: the stack was\n", name,
                        signal, info->si_addr);
    if (write(STDERR_FILENO, line, (size_t)size) < 0) {
        /* Nobody reads it. */
    }
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
    raise(signal); /* the default again, once this returns */
}

void crash_watch(const char *program)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static char stack[65536]; /* the thread's own may have run out */
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK};
    struct sigaction before;
    void *one;

    name = program;
    backtrace(&one, 1); /* loads what it needs now */
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        if (!sigaction(fatal[i], NULL, &before) && before.sa_handler == SIG_DFL) /* a sanitizer says more */
            sigaction(fatal[i], &action, NULL);
}
