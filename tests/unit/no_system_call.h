/* That something enters no system call: it runs in a thread of its own, under seccomp. For cmocka's tests. */
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static _Atomic unsigned trapped;

static void count_trap(int signal)
{
    (void)signal;
    trapped++;
}

/* Every system call but those that end a thread or a signal handler is trapped and counted. */
static bool trap_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* `run` calls trap_calls() first, (void *)-1 if it fails, and gives what it has trapped. */
static void enters_no_system_call(void *(*run)(void *), void *argument)
{
    struct sigaction action = {.sa_handler = count_trap}, old;
    pthread_t thread;
    void *result;

    trapped = 0;
    sigaction(SIGSYS, &action, &old);
    pthread_create(&thread, NULL, run, argument);
    pthread_join(thread, &result);
    sigaction(SIGSYS, &old, NULL);
    if (result == (void *)-1)
        skip();
    assert_null(result);
}
