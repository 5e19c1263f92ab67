/* The machine's own moves, beside ours: pinned cuMemcpyAsync on a GPU, memcpy into new memory on the host device.
 */
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "tests/bench/driver.h"

/* The driver scrubs what is freed, in the background, at 280 GB/s. Nobody offloads to restore in the same
 * millisecond: who does waits for that. */
#define SCRUBBED_US 20000
#define SCRUBBED_BYTES_PER_US 280000 /* of what was large */

struct bare {
    const struct cuda_driver *driver; /* NULL: the host device */
    CUstream streams[2];
};

struct bare_side {
    size_t size;
    void *host;
    CUdeviceptr device;
};

static inline void bare_open(struct bare *bare, hbm_session *session)
{
    *bare = (struct bare){0};
    if (!bench_on_gpu(session))
        return;
    bare->driver = driver_open();
    for (unsigned i = 0; i < 2; i++)
        driver_must(driver_more.stream_create(&bare->streams[i], 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
}

static inline const char *bare_name(const struct bare *bare)
{
    return bare->driver ? "one pinned copy" : "memcpy to a new memfd";
}

/* Random: a page of zeros is no page to some memory. */
static inline void bare_noise(void *to, size_t size)
{
    uint64_t *words = to, x = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < size / sizeof(*words); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
}

static inline void bare_make(const struct bare *bare, struct bare_side *side, size_t size)
{
    *side = (struct bare_side){.size = size};
    if (bare->driver) {
        driver_must(driver_more.host_alloc(&side->host, size, 0), "cuMemHostAlloc");
        driver_must(driver_more.mem_alloc(&side->device, size), "cuMemAlloc");
    } else {
        side->host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (side->host == MAP_FAILED)
            perror("memory to copy"), exit(1);
    }
    bare_noise(side->host, size);
    if (bare->driver) /* a copy down brings the same back */
        driver_must(bare->driver->copy_to_device(side->device, side->host, size), "cuMemcpyHtoD");
}

static inline void bare_drop(const struct bare *bare, struct bare_side *side)
{
    if (!bare->driver) {
        munmap(side->host, side->size);
        return;
    }
    driver_must(driver_more.host_free(side->host), "cuMemFreeHost");
    driver_must(driver_more.mem_free(side->device), "cuMemFree");
}

/* What moving to another tier costs at least: the target is memory that nobody has touched. */
static inline void *bare_copy_to_new(void *context)
{
    const struct bare_side *side = context;
    int fd = memfd_fixed("bench", side->size);
    void *fresh = mmap(NULL, side->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd < 0 || fresh == MAP_FAILED)
        perror("memory to copy"), exit(1);
    memcpy(fresh, side->host, side->size);
    munmap(fresh, side->size);
    close(fd);
    return NULL;
}

static inline void bare_send(const struct bare_side *side, bool down, CUstream stream)
{
    driver_must(down ? driver_more.down(side->host, side->device, side->size, stream)
                     : driver_more.up(side->device, side->host, side->size, stream),
                "cuMemcpyAsync");
}

/* Seconds. */
static inline double bare_once(const struct bare *bare, struct bare_side *side, bool down)
{
    double start = bench_now();

    if (bare->driver) {
        bare_send(side, down, bare->streams[0]);
        driver_must(bare->driver->stream_synchronize(bare->streams[0]), "cuStreamSynchronize");
    } else {
        bare_copy_to_new(side);
    }
    return bench_now() - start;
}

/* One down and one up at once: seconds until both are there. */
static inline double bare_pair(const struct bare *bare, struct bare_side *down, struct bare_side *up)
{
    double start = bench_now();

    if (bare->driver) {
        bare_send(down, true, bare->streams[0]);
        bare_send(up, false, bare->streams[1]);
        for (unsigned i = 0; i < 2; i++)
            driver_must(bare->driver->stream_synchronize(bare->streams[i]), "cuStreamSynchronize");
    } else {
        pthread_t other;
        if (pthread_create(&other, NULL, bare_copy_to_new, up))
            perror("a thread"), exit(1);
        bare_copy_to_new(down);
        pthread_join(other, NULL);
    }
    return bench_now() - start;
}

/* A buffer's bytes, through a mapping of its own: unleased when it is measured. */
static inline void bare_fill(const struct bare *bare, hbm_session *session, const char *name,
                             const struct bare_side *side)
{
    hbm_lease *lease;

    bench_must(hbm_attach(session, name, HBM_RW, 0, HBM_FOREVER, &lease), "hbm_attach");
    if (bare->driver)
        driver_must(
            bare->driver->copy_to_device((CUdeviceptr)(uintptr_t)hbm_pointer(lease), side->host, side->size),
            "cuMemcpyHtoD");
    else
        memcpy(hbm_pointer(lease), side->host, side->size);
    bench_must(hbm_detach(lease), "hbm_detach");
}

static inline void bare_verify(const struct bare *bare, hbm_session *session, const char *name,
                               const struct bare_side *side)
{
    hbm_lease *lease;
    void *back = malloc(side->size);

    if (!back)
        perror("memory to compare"), exit(1);
    bench_must(hbm_attach(session, name, HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
    if (bare->driver)
        driver_must(bare->driver->copy_from_device(back, (CUdeviceptr)(uintptr_t)hbm_pointer(lease), side->size),
                    "cuMemcpyDtoH");
    else
        memcpy(back, hbm_pointer(lease), side->size);
    if (memcmp(back, side->host, side->size))
        fprintf(stderr, "%s: what came back is not what went\n", name), exit(1);
    free(back);
    bench_must(hbm_detach(lease), "hbm_detach");
}
