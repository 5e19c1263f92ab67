/* What tests of libhbm have in common: a session with the fake daemon, and what can be seen of it from outside. */
#pragma once

#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/fake_daemon.h"

static inline hbm_session *open_with(unsigned flags)
{
    hbm_session *session;

    MUST(hbm_open(&(struct hbm_options){.runtime_dir = fake.dir, .flags = flags}, &session) == 0);
    return session;
}

static inline hbm_lease *attach(hbm_session *session, const char *name)
{
    hbm_lease *lease = NULL;

    MUST(hbm_attach(session, name, HBM_RW, 0, 1000, &lease) == 0);
    return lease;
}

static inline int ask_device(hbm_session *session)
{
    struct hbm_device_info info;

    return hbm_device_get(session, 0, &info);
}

#define EVENTUALLY(condition)                                                                                      \
    do {                                                                                                           \
        for (int tries_ = 0; tries_ < 4000 && !(condition); tries_++)                                              \
            usleep(1000);                                                                                          \
        MUST(condition);                                                                                           \
    } while (0)

static inline bool is_mapped(const void *address)
{
    return msync((void *)((uintptr_t)address & ~(uintptr_t)4095), 4096, MS_ASYNC) == 0;
}

static inline uint64_t word_of(unsigned arena)
{
    return fake.words[SLOT(arena)];
}

static inline unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}
