#include "daemon/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/kept.h"

#define SHORT_LIFE_MS 1000 /* a child that dies younger is restarted with a growing pause */
#define PAUSE_MIN_MS 100
#define SUPERVISOR "HBM_SUPERVISOR" /* whoever has it for a parent is its child */
#define PAUSE_MAX_MS 5000

struct supervisor {
    struct keeper keeper;
    char program[4096]; /* by path: after an upgrade the next child is the new program */
    char **arguments;
    sigset_t signals, before;
    int signal_fd;
    pid_t child; /* 0: none now */
    uint64_t born_ms, restart_at_ms, pause_ms;
    bool ever_ready, stopping;
    int status; /* -1: go on */
};

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void become_child(struct supervisor *supervisor, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* without a keeper it had better end in good order */
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    sigprocmask(SIG_SETMASK, &supervisor->before, NULL);
    char number[16];
    snprintf(number, sizeof(number), "%d", (int)parent);
    int error = setenv(SUPERVISOR, number, 1) ? -errno : keeper_pass_on(&supervisor->keeper);
    if (!error) {
        execv(supervisor->program, supervisor->arguments);
        error = -errno;
    }
    log_error("the daemon cannot be started: %s", strerror(-error));
    _exit(EXIT_FAILURE);
}

static void start_child(struct supervisor *supervisor)
{
    supervisor->restart_at_ms = 0;
    supervisor->born_ms = now_ms();
    supervisor->keeper.ready = false;
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become_child(supervisor, self);
    if (pid < 0) {
        log_error("cannot fork: %s; trying again", strerror(errno));
        supervisor->restart_at_ms = now_ms() + PAUSE_MAX_MS;
        return;
    }
    supervisor->child = pid;
}

/* Stopped before it could take the signal, it has done what it was told to. */
static int last_status(const struct supervisor *supervisor, int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return supervisor->stopping && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT) ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void bury(struct supervisor *supervisor, int status)
{
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    uint64_t age = now_ms() - supervisor->born_ms;

    /* What it sent before it died is still in the socket. */
    keeper_receive(&supervisor->keeper, supervisor->child);
    supervisor->ever_ready |= supervisor->keeper.ready;
    supervisor->child = 0;
    if (good || supervisor->stopping || (WIFEXITED(status) && !supervisor->ever_ready)) {
        supervisor->status = last_status(supervisor, status);
        return;
    }
    if (age >= SHORT_LIFE_MS)
        supervisor->pause_ms = 0;
    log_write(LOG_LEVEL_WARNING, MESSAGE_DAEMON_DIED, "the daemon died (%s %d) with %u fds kept; starting it again",
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), supervisor->keeper.n);
    supervisor->restart_at_ms = now_ms() + supervisor->pause_ms;
    supervisor->pause_ms = supervisor->pause_ms ? supervisor->pause_ms * 2 : PAUSE_MIN_MS;
    if (supervisor->pause_ms > PAUSE_MAX_MS)
        supervisor->pause_ms = PAUSE_MAX_MS;
}

static void take_signals(struct supervisor *supervisor)
{
    struct signalfd_siginfo info;
    int status;
    pid_t pid;

    while (read(supervisor->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        supervisor->stopping |= info.ssi_signo != SIGHUP;
        if (supervisor->child)
            kill(supervisor->child, (int)info.ssi_signo);
        else if (supervisor->stopping)
            supervisor->status = EXIT_SUCCESS;
    }
    /* As a container's first process we also get its orphans. */
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0 || (pid < 0 && errno == EINTR))
        if (pid == supervisor->child)
            bury(supervisor, status);
}

static int wait_ms(const struct supervisor *supervisor)
{
    uint64_t now = now_ms();

    if (!supervisor->restart_at_ms)
        return -1;
    return supervisor->restart_at_ms > now ? (int)(supervisor->restart_at_ms - now) : 0;
}

static void turn(struct supervisor *supervisor)
{
    struct pollfd wanted[2] = {
        {.fd = supervisor->signal_fd, .events = POLLIN},
        {.fd = supervisor->keeper.socket, .events = POLLIN},
    };

    poll(wanted, 2, wait_ms(supervisor));
    if (wanted[1].revents)
        keeper_receive(&supervisor->keeper, supervisor->child);
    supervisor->ever_ready |= supervisor->keeper.ready;
    take_signals(supervisor);
    if (supervisor->status < 0 && supervisor->restart_at_ms && supervisor->restart_at_ms <= now_ms())
        start_child(supervisor);
}

static char **without_supervise(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    int n = 0;

    for (int i = 0; copy && i < argc; i++)
        if (strncmp(argv[i], "--su", 4)) /* getopt takes abbreviations */
            copy[n++] = argv[i];
    return copy;
}

bool is_supervised(void)
{
    const char *parent = getenv(SUPERVISOR);

    return parent && atoi(parent) == (int)getppid();
}

int supervise(int argc, char **argv)
{
    _cleanup_free_ char **arguments = without_supervise(argc, argv);
    struct supervisor supervisor = {.status = -1, .arguments = arguments};
    struct rlimit limit;

    /* All that the child keeps open, we keep open too. */
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    sigemptyset(&supervisor.signals);
    sigaddset(&supervisor.signals, SIGCHLD);
    sigaddset(&supervisor.signals, SIGTERM);
    sigaddset(&supervisor.signals, SIGINT);
    sigaddset(&supervisor.signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &supervisor.signals, &supervisor.before);
    supervisor.signal_fd = signalfd(-1, &supervisor.signals, SFD_CLOEXEC | SFD_NONBLOCK);
    ssize_t length = readlink("/proc/self/exe", supervisor.program, sizeof(supervisor.program) - 1);
    int error = length <= 0 ? -ENOENT : keeper_open(&supervisor.keeper);
    if (supervisor.signal_fd < 0 || !arguments || error) {
        log_error("cannot supervise: %s", strerror(error ? -error : errno));
        return EXIT_FAILURE;
    }
    start_child(&supervisor);
    while (supervisor.status < 0)
        turn(&supervisor);
    free(supervisor.keeper.kept);
    return supervisor.status;
}
