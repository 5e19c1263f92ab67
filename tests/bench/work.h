/* What a layer's work is here: so many passes over its bytes. On the GPU they are device-to-device copies on a
 * stream, on the host device the bytes are added up; both are bound by memory, as decoding is. */
#pragma once

#include "tests/bench/driver.h"

struct work {
    const struct cuda_driver *driver; /* NULL: the host device */
    CUstream stream;
    CUdeviceptr scratch;
    size_t size;  /* of the scratch */
    uint64_t sum; /* of what the last pass has seen; the host device's */
};

static inline void work_open(struct work *work, hbm_session *session, size_t largest)
{
    *work = (struct work){.size = largest};
    if (!bench_on_gpu(session))
        return;
    work->driver = driver_open();
    driver_must(driver_more.stream_create(&work->stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
    driver_must(driver_more.mem_alloc(&work->scratch, largest ? largest : 1), "cuMemAlloc");
}

static inline void work_close(struct work *work)
{
    if (work->driver)
        driver_must(driver_more.mem_free(work->scratch), "cuMemFree");
}

/* Queued on the GPU, done when it returns on the host device. */
static inline void work_on(struct work *work, const void *bytes, size_t size, unsigned passes)
{
    for (unsigned i = 0; i < passes && size; i++) {
        if (work->driver) {
            driver_must(driver_more.within(work->scratch, (CUdeviceptr)(uintptr_t)bytes, size, work->stream),
                        "cuMemcpyDtoDAsync");
            continue;
        }
        const volatile uint64_t *words = bytes;
        uint64_t sum = 0;
        for (size_t word = 0; word < size / sizeof(*words); word++)
            sum += words[word];
        work->sum = sum;
    }
}

static inline void work_wait(const struct work *work)
{
    if (work->driver)
        driver_must(work->driver->stream_synchronize(work->stream), "cuStreamSynchronize");
}

/* How many passes take about so long. */
static inline unsigned work_passes(struct work *work, const void *bytes, size_t size, double seconds)
{
    work_on(work, bytes, size, 1); /* its first is slower */
    work_wait(work);
    double start = bench_now();
    work_on(work, bytes, size, 4);
    work_wait(work);
    double one = (bench_now() - start) / 4;
    double passes = one > 0 ? seconds / one : 1;
    return passes < 1 ? 1 : passes > 100000 ? 100000 : (unsigned)passes;
}

/* The streams to unlock behind. */
static inline unsigned work_streams(const struct work *work, void *streams[1])
{
    streams[0] = work->stream;
    return work->driver ? 1 : 0;
}
