/* Another process, with a context and little to do: how long its CUDA calls take meanwhile. */
#pragma once

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/bench/driver.h"

static struct neighbour {
    _Atomic uint64_t rounds, longest_ns;
} * neighbour;
static pid_t neighbour_pid;

static inline void neighbour_note(double *since)
{
    double now = bench_now();
    uint64_t ns = (uint64_t)((now - *since) * 1e9);

    if (ns > atomic_load(&neighbour->longest_ns))
        atomic_store(&neighbour->longest_ns, ns);
    *since = now;
}

static inline void neighbour_works(void)
{
    char bytes[4096] = {0};
    CUdeviceptr block, page;
    CUstream stream;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    driver_open();
    driver_must(driver_more.stream_create(&stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
    driver_must(driver_more.mem_alloc(&page, sizeof(bytes)), "cuMemAlloc"); /* its first is slower */
    for (;;) {
        double since = bench_now();
        driver_must(driver_more.mem_alloc(&block, (size_t)2 << 20), "cuMemAlloc");
        neighbour_note(&since);
        driver_must(driver_more.up(page, bytes, sizeof(bytes), stream), "cuMemcpyHtoDAsync");
        driver_must(cuda_driver()->stream_synchronize(stream), "cuStreamSynchronize");
        neighbour_note(&since);
        driver_must(driver_more.mem_free(block), "cuMemFree");
        neighbour_note(&since);
        atomic_fetch_add(&neighbour->rounds, 1);
    }
}

/* The longest of its calls since the last time, in ms; of those that are under way, too. */
static inline double neighbour_longest_ms(void)
{
    uint64_t from = atomic_load(&neighbour->rounds);

    while (atomic_load(&neighbour->rounds) < from + 2) {
        if (kill(neighbour_pid, 0) < 0)
            fprintf(stderr, "the process beside has ended\n"), exit(1);
        usleep(100);
    }
    return (double)atomic_exchange(&neighbour->longest_ns, 0) / 1e6;
}

/* Before CUDA is used here, or a session opened. */
static inline void neighbour_start(void)
{
    signal(SIGCHLD, SIG_IGN); /* so that one that has ended is not there */
    neighbour = mmap(NULL, sizeof(*neighbour), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    neighbour_pid = neighbour == MAP_FAILED ? -1 : fork();
    if (neighbour_pid < 0)
        perror("a neighbour"), exit(1);
    if (!neighbour_pid)
        neighbour_works();
    neighbour_longest_ms();
}
