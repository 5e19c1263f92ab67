/* A process that is there for its pidfd alone: the core looks at what it is given as one. */
#pragma once

#include <sys/types.h>

struct life {
    pid_t process; /* 0: none */
    int pidfd;
    void *stack;
};

void life_begin(struct life *life);
/* The pidfd says so; the process is not reaped, so that its number is nobody else's. */
void life_end(const struct life *life);
/* Reaps it, ended or not. One that never began is fine. */
void life_forget(struct life *life);
