/* Offload to host memory and restore of one buffer, asked for and waited for by a client, beside a copy of the same bytes:
 * one pinned cuMemcpyAsync on a GPU, memcpy into new memory on the host device. usage: offload_bench [MIB...] */
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"

#include "tests/bench/driver.h"

/* The driver scrubs what is freed, in the background, at 280 GB/s. Nobody offloads to restore in the same millisecond:
 * who does waits for that. */
#define SCRUBBED_US 20000

static const struct cuda_driver *driver; /* NULL: the host device */
static CUstream stream;

struct beside {
    size_t size;
    void *host;
    CUdeviceptr device;
};

/* Random: a page of zeros is no page to some memory. */
static void noise(void *to, size_t size)
{
    uint64_t *words = to, x = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < size / sizeof(*words); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
}

static void *pages(size_t size)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (bytes == MAP_FAILED)
        perror("memory to copy"), exit(1);
    noise(bytes, size);
    return bytes;
}

static void beside_make(struct beside *beside, size_t size)
{
    *beside = (struct beside){.size = size};
    if (!driver) {
        beside->host = pages(size);
        return;
    }
    driver_must(driver_more.host_alloc(&beside->host, size, 0), "cuMemHostAlloc");
    driver_must(driver_more.mem_alloc(&beside->device, size), "cuMemAlloc");
    noise(beside->host, size);
}

static void beside_drop(struct beside *beside)
{
    if (!driver) {
        munmap(beside->host, beside->size);
        return;
    }
    driver_must(driver_more.host_free(beside->host), "cuMemFreeHost");
    driver_must(driver_more.mem_free(beside->device), "cuMemFree");
}

/* What moving to another tier costs at least: the target is memory that nobody has touched. */
static double copy_to_new(const struct beside *beside)
{
    double start = bench_now();
    int fd = memfd_fixed("bench", beside->size);
    void *fresh = mmap(NULL, beside->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd < 0 || fresh == MAP_FAILED)
        perror("memory to copy"), exit(1);
    memcpy(fresh, beside->host, beside->size);
    munmap(fresh, beside->size);
    double seconds = bench_now() - start;
    close(fd);
    return seconds;
}

static double beside_once(const struct beside *beside, bool down)
{
    if (!driver)
        return copy_to_new(beside);
    double start = bench_now();
    driver_must(down ? driver_more.down(beside->host, beside->device, beside->size, stream)
                     : driver_more.up(beside->device, beside->host, beside->size, stream),
                "cuMemcpyAsync");
    driver_must(driver->stream_synchronize(stream), "cuStreamSynchronize");
    return bench_now() - start;
}

/* Filled through a mapping of its own, and unleased when it is measured. */
static void fill(hbm_session *session, size_t size, const void *bytes)
{
    hbm_lease *lease;

    bench_must(hbm_attach(session, "bench-offload", HBM_RW, 0, HBM_FOREVER, &lease), "hbm_attach");
    if (driver)
        driver_must(driver->copy_to_device((CUdeviceptr)(uintptr_t)hbm_pointer(lease), bytes, size), "cuMemcpyHtoD");
    else
        memcpy(hbm_pointer(lease), bytes, size);
    bench_must(hbm_detach(lease), "hbm_detach");
}

static void verify(hbm_session *session, size_t size, const void *bytes)
{
    hbm_lease *lease;
    void *back = pages(size);

    bench_must(hbm_attach(session, "bench-offload", HBM_RO, 0, HBM_FOREVER, &lease), "hbm_attach");
    if (driver)
        driver_must(driver->copy_from_device(back, (CUdeviceptr)(uintptr_t)hbm_pointer(lease), size), "cuMemcpyDtoH");
    else
        memcpy(back, hbm_pointer(lease), size);
    if (memcmp(back, bytes, size))
        fprintf(stderr, "what came back is not what went\n"), exit(1);
    munmap(back, size);
    bench_must(hbm_detach(lease), "hbm_detach");
}

static void row(const char *verb, size_t size, double *seconds, double *copy, bool has_aim)
{
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = driver ? "one pinned copy" : "memcpy to a new memfd",
                            .aim = has_aim && driver && size >= (size_t)256 << 20 ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 0.85,
                            .samples = BENCH_RUNS};

    snprintf(what, sizeof(what), "%s of %zu MiB", verb, size >> 20);
    row.ours = (double)size / 1e9 / bench_quantile(seconds, BENCH_RUNS, 0.5);
    row.low = (double)size / 1e9 / bench_quantile(seconds, BENCH_RUNS, 0.95);
    row.high = (double)size / 1e9 / bench_quantile(seconds, BENCH_RUNS, 0.05);
    row.beside = (double)size / 1e9 / bench_quantile(copy, BENCH_RUNS, 0.5);
    bench_print(&row);
}

static double offload_once(hbm_session *session)
{
    double start = bench_now();

    bench_must(hbm_offload(session, "bench-offload", HBM_TIER_HOST, 0, NULL), "hbm_offload");
    return bench_now() - start;
}

static double restore_once(hbm_session *session)
{
    double start = bench_now();

    bench_must(hbm_restore(session, "bench-offload", NULL), "hbm_restore");
    return bench_now() - start;
}

static void measure(hbm_session *session, size_t size)
{
    double offload[BENCH_RUNS], restore[BENCH_RUNS], at_once[BENCH_RUNS], down[BENCH_RUNS], up[BENCH_RUNS];
    struct beside beside;

    beside_make(&beside, size);
    bench_make(session, "bench-offload", size);
    fill(session, size, beside.host);
    for (int i = -(int)BENCH_WARM; i < (int)BENCH_RUNS; i++) {
        double away = offload_once(session);
        usleep(SCRUBBED_US);
        double back = restore_once(session);
        offload_once(session);
        double back_at_once = restore_once(session);
        double bare_up = beside_once(&beside, false), bare_down = beside_once(&beside, true);
        if (i >= 0)
            offload[i] = away, restore[i] = back, at_once[i] = back_at_once, down[i] = bare_down, up[i] = bare_up;
    }
    verify(session, size, beside.host);
    row("offload", size, offload, down, true);
    row("restore", size, restore, up, true);
    row("restore in the same millisecond", size, at_once, up, false);
    bench_drop(session, "bench-offload");
    beside_drop(&beside);
}

/* The same buffer of floats, restored as it is and as its codec has it, in turn. Zeros: no codec looks at what they are. */
static void measure_parked(hbm_session *session, size_t size, unsigned codec)
{
    struct hbm_spec spec = {.dtype = HBM_F32,
                            .rank = 2,
                            .dims = {size >> 14, 4096},
                            .name = "bench-offload",
                            .flags = HBM_KEEP,
                            .device = HBM_DEVICE_ANY};
    struct hbm_compress park = {.sel = spec.name, .codec = codec, .granularity = codec == HBM_CODEC_INT8, .park = 1};
    double plain[BENCH_RUNS], parked[BENCH_RUNS];
    hbm_lease *lease = NULL;
    char what[96];
    struct bench_row row = {.what = what,
                            .unit = "GB/s",
                            .beside_what = "a restore of the plain floats",
                            .aim = driver && size >= (size_t)256 << 20 ? BENCH_RATIO_AT_LEAST : BENCH_NO_AIM,
                            .bound = 1.7,
                            .samples = BENCH_RUNS};

    bench_must(hbm_alloc(session, &spec, &lease), "hbm_alloc");
    bench_must(hbm_detach(lease), "hbm_detach");
    for (int i = -(int)BENCH_WARM; i < (int)BENCH_RUNS; i++) {
        offload_once(session);
        usleep(SCRUBBED_US);
        double as_it_is = restore_once(session);
        bench_must(hbm_compress(session, &park, NULL, NULL), "hbm_compress");
        offload_once(session);
        usleep(SCRUBBED_US);
        double decoded = restore_once(session);
        bench_must(hbm_decompress(session, spec.name, NULL), "hbm_decompress");
        if (i >= 0)
            plain[i] = as_it_is, parked[i] = decoded;
    }
    snprintf(what, sizeof(what), "restore of %zu MiB of floats parked as %s", size >> 20, hbm_codec_name(codec));
    row.ours = (double)size / 1e9 / bench_quantile(parked, BENCH_RUNS, 0.5);
    row.low = (double)size / 1e9 / bench_quantile(parked, BENCH_RUNS, 0.95);
    row.high = (double)size / 1e9 / bench_quantile(parked, BENCH_RUNS, 0.05);
    row.beside = (double)size / 1e9 / bench_quantile(plain, BENCH_RUNS, 0.5);
    bench_print(&row);
    bench_drop(session, spec.name);
}

int main(int argc, char **argv)
{
    hbm_session *session = bench_open(0);

    if (bench_on_gpu(session)) {
        driver = driver_open();
        driver_must(driver_more.stream_create(&stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
    }
    for (int i = 1; i < argc; i++)
        measure(session, (size_t)strtoull(argv[i], NULL, 10) << 20);
    if (argc == 1)
        measure(session, (size_t)256 << 20), measure(session, (size_t)1 << 30);
    size_t last = argc > 1 ? (size_t)strtoull(argv[argc - 1], NULL, 10) << 20 : (size_t)1 << 30;
    measure_parked(session, last, HBM_CODEC_FP16), measure_parked(session, last, HBM_CODEC_INT8);
    hbm_close(session);
    return 0;
}
