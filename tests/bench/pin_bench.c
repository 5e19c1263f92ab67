/* Pinned host memory. GPU only. usage: pin_bench [GIB] | pin_bench offload [MIB]
 *
 * pin_bench           in GB/s: host-NUMA extents as the worker makes them, in pieces of several sizes and by
 * several threads, beside cuMemHostAlloc (which is cudaHostAlloc) of as much; and through the daemon the first
 * offload, whose memory was made ahead, beside a later one pin_bench offload   what it takes to move to host memory
 * that has to be made and pinned first, beside cuMemHostAlloc and a copy of the same bytes
 *
 * With both, how long another process's CUDA calls take meanwhile. */
#include <pthread.h>

#include "tests/bench/bare.h"
#include "tests/bench/neighbour.h"

#define MIB ((size_t)1 << 20)
#define RUNS 6u
#define PIECES_MAX 1024u
#define THREADS_MAX 4u
#define HOST_NUMA_ID 134 /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */
#define READY_US 1500000 /* the daemon waits a moment before it pins, and pauses in between */
#define PINNING "bench-pinning"
#define PINNING_RUNS 5u
#define PINNING_UNIT (2 * MIB)
#define QUIET_US 500000

static const struct cuda_driver *driver;
static int node;

/* ---- What pins ---- */

struct way {
    const char *name;
    size_t piece;
    unsigned threads; /* 0: cuMemHostAlloc */
};

struct pinning {
    const struct way *way;
    unsigned n;
    _Atomic unsigned next;
    CUmemGenericAllocationHandle handles[PIECES_MAX];
};

static void *pin_pieces(void *argument)
{
    struct pinning *pinning = argument;
    CUmemAllocationProp prop = {
        1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_HOST_NUMA, node}, NULL, {0}};
    unsigned i;

    while ((i = atomic_fetch_add(&pinning->next, 1)) < pinning->n)
        driver_must(driver_more.create(&pinning->handles[i], pinning->way->piece, &prop, 0), "cuMemCreate");
    return NULL;
}

static double pin_extents(const struct way *way, size_t bytes)
{
    static struct pinning pinning;
    pthread_t threads[THREADS_MAX];
    double start = bench_now();

    pinning.way = way;
    pinning.n = (unsigned)(bytes / way->piece);
    atomic_store(&pinning.next, 0);
    for (unsigned i = 0; i < way->threads; i++)
        if (pthread_create(&threads[i], NULL, pin_pieces, &pinning))
            perror("a thread"), exit(1);
    for (unsigned i = 0; i < way->threads; i++)
        pthread_join(threads[i], NULL);
    double seconds = bench_now() - start;
    for (unsigned i = 0; i < pinning.n; i++)
        driver_must(driver->release(pinning.handles[i]), "cuMemRelease");
    return seconds;
}

static double pin_by_host_alloc(const struct way *way, size_t bytes)
{
    void *pieces[PIECES_MAX];
    unsigned n = (unsigned)(bytes / way->piece);
    double start = bench_now();

    for (unsigned i = 0; i < n; i++)
        driver_must(driver_more.host_alloc(&pieces[i], way->piece, 0), "cuMemHostAlloc");
    double seconds = bench_now() - start;
    for (unsigned i = 0; i < n; i++)
        driver_must(driver_more.host_free(pieces[i]), "cuMemFreeHost");
    return seconds;
}

/* GB/s, and the neighbour's longest call of all runs in ms: of giving back, too. */
static double measure(const struct way *way, size_t bytes, double *samples, double *longest_ms)
{
    neighbour_longest_ms();
    for (unsigned i = 0; i < RUNS + 1; i++) {
        double seconds = way->threads ? pin_extents(way, bytes) : pin_by_host_alloc(way, bytes);
        samples[i ? i - 1 : 0] = (double)bytes / 1e9 / seconds; /* the first is a warm-up */
    }
    *longest_ms = neighbour_longest_ms();
    return bench_quantile(samples, RUNS, 0.5);
}

static void compare(size_t bytes)
{
    static const struct way ways[] = {
        {"pieces of 16 MiB", 16 * MIB, 1},
        {"pieces of 64 MiB", 64 * MIB, 1},
        {"pieces of 64 MiB, 2 threads", 64 * MIB, 2},
        {"pieces of 64 MiB, 4 threads", 64 * MIB, 4},
        {"pieces of 256 MiB", 256 * MIB, 1},
        {"one piece of 1 GiB", 1024 * MIB, 1},
    };
    static const struct way beside = {"cuMemHostAlloc of 1 GiB", 1024 * MIB, 0};
    double samples[RUNS], beside_ms, ms;
    char what[96];

    neighbour_longest_ms();
    sleep(1);
    double quiet_ms = neighbour_longest_ms();
    double rate = measure(&beside, bytes, samples, &beside_ms);
    for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        struct bench_row row = {
            what, "GB/s", .beside_what = beside.name, .beside = rate, .aim = BENCH_RATIO_AT_LEAST, .bound = 2};
        snprintf(what, sizeof(what), "pinning: %s", ways[i].name);
        measure(&ways[i], bytes, samples, &ms);
        bench_take(&row, samples, RUNS, 0.5, 1);
        bench_print(&row);
        snprintf(what, sizeof(what), "pinning: %s: a neighbour's longest call", ways[i].name);
        bench_print(
            &(struct bench_row){what, "ms", ms, ms, ms, beside.name, beside_ms, BENCH_OURS_AT_MOST, 50, RUNS});
    }
    bench_print(&(struct bench_row){"a neighbour's longest call, nothing is pinned", "ms", quiet_ms, quiet_ms,
                                    quiet_ms, .samples = 1});
}

/* ---- Through the daemon ---- */

static double moved(hbm_session *session, const char *name, bool away)
{
    double start = bench_now();

    if (away)
        bench_must(hbm_offload(session, name, HBM_TIER_HOST, HBM_FORCE, NULL), "hbm_offload");
    else
        bench_must(hbm_restore(session, name, NULL), "hbm_restore");
    return bench_now() - start;
}

static void offload_first(void)
{
    hbm_session *session = bench_open(0);
    double first[RUNS], later[RUNS];
    struct bench_row row = {"first offload of 18 to 28 MiB, its memory made ahead", "GB/s",
                            .beside_what = "a later one"};

    for (unsigned i = 0; i < RUNS; i++) {
        /* Up to what is made ahead at one go. A size of its own: what the last one left does not fit. */
        size_t bytes = (18 + (size_t)i * 2) * MIB;
        char name[32];

        snprintf(name, sizeof(name), "bench-pin-%u", i);
        bench_make(session, name, bytes);
        usleep(READY_US);
        first[i] = (double)bytes / 1e9 / moved(session, name, true);
        moved(session, name, false);
        later[i] = (double)bytes / 1e9 / moved(session, name, true);
        bench_drop(session, name);
    }
    row.beside = bench_quantile(later, RUNS, 0.5);
    bench_take(&row, first, RUNS, 0.5, 1);
    bench_print(&row);
    hbm_close(session);
}

/* New host memory: of a size that nobody had before, so none is kept. */
static double offload_once(hbm_session *session, size_t size)
{
    bench_make(session, PINNING, size);
    double start = bench_now();
    bench_must(hbm_offload(session, PINNING, HBM_TIER_HOST, 0, NULL), "hbm_offload");
    double seconds = bench_now() - start;
    bench_drop(session, PINNING);
    return seconds;
}

static double bare_alloc(CUdeviceptr device, size_t size, CUstream stream)
{
    double start = bench_now();
    void *host;

    driver_must(driver_more.host_alloc(&host, size, 0), "cuMemHostAlloc");
    driver_must(driver_more.down(host, device, size, stream), "cuMemcpyDtoHAsync");
    driver_must(driver->stream_synchronize(stream), "cuStreamSynchronize");
    double seconds = bench_now() - start;
    driver_must(driver_more.host_free(host), "cuMemFreeHost");
    return seconds;
}

static void offload_that_pins(size_t size)
{
    double ours[PINNING_RUNS], beside[PINNING_RUNS], pinning[PINNING_RUNS], quiet[PINNING_RUNS];
    unsigned runs = bench_runs(PINNING_RUNS);
    hbm_session *session = bench_open(0);
    char what[96];
    CUdeviceptr device;
    CUstream stream;

    driver_must(driver_more.stream_create(&stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
    driver_must(driver_more.mem_alloc(&device, size), "cuMemAlloc");
    for (unsigned i = 0; i < runs; i++) {
        neighbour_longest_ms();
        usleep(QUIET_US);
        quiet[i] = neighbour_longest_ms();
        size_t unheard_of = size - (i + 1) * PINNING_UNIT;
        ours[i] = offload_once(session, unheard_of) * (double)size / (double)unheard_of;
        pinning[i] = neighbour_longest_ms();
        beside[i] = bare_alloc(device, size, stream);
    }
    driver_must(driver_more.mem_free(device), "cuMemFree");
    snprintf(what, sizeof(what), "offload of %zu MiB to host memory that is made for it", size >> 20);
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = "cudaHostAlloc and a copy",
                            .aim = BENCH_RATIO_AT_LEAST,
                            .bound = 2};
    bench_take_rate(&row, ours, runs, size);
    row.beside = (double)size / 1e9 / bench_quantile(beside, runs, 0.5);
    bench_print(&row);
    row = (struct bench_row){.what = "another process's longest CUDA call meanwhile",
                             .unit = "ms",
                             .beside_what = "with nothing going on",
                             .aim = BENCH_OURS_AT_MOST,
                             .bound = 50};
    bench_take(&row, pinning, runs, 1, 1);
    row.beside = bench_quantile(quiet, runs, 1);
    bench_print(&row);
    hbm_close(session);
}

int main(int argc, char **argv)
{
    bool offload = argc > 1 && !strcmp(argv[1], "offload");
    unsigned long wanted = argc > 1 + offload ? strtoul(argv[1 + offload], NULL, 10) : 0;

    neighbour_start();
    driver = driver_open();
    if (offload) {
        offload_that_pins((wanted ? wanted : 2048) * MIB);
        return 0;
    }
    if (driver_more.attribute(&node, HOST_NUMA_ID, 0) || node < 0)
        node = 0;
    compare((wanted ? wanted : 1) * 1024 * MIB);
    kill(neighbour_pid, SIGKILL);
    offload_first();
    return 0;
}
