/* What it takes to move to host memory that has to be made and pinned first, beside cuMemHostAlloc and a copy of
 * the same bytes; and how long another process's CUDA calls take meanwhile. On a GPU alone. usage: pinning_bench
 * [MIB] */
#include <sys/socket.h>

#include "tests/bench/bare.h"

#define NAME "bench-pinning"
#define SAMPLES 5u
#define UNIT ((size_t)2 << 20)
#define QUIET_US 500000

static const struct cuda_driver *driver;

static void note(double *longest, double *since)
{
    double now = bench_now();

    *longest = now - *since > *longest ? now - *since : *longest;
    *since = now;
}

/* Small calls, over and over; to each byte that comes it answers with the longest of them since the last. */
static void neighbour(int socket)
{
    static unsigned char bytes[4096];
    const struct cuda_driver *mine = driver_open();
    CUdeviceptr memory, more;
    double longest = 0;
    char c;

    driver_must(driver_more.mem_alloc(&memory, sizeof(bytes)), "cuMemAlloc"); /* its first is slower */
    for (;;) {
        double since = bench_now();
        driver_must(driver_more.mem_alloc(&more, UNIT), "cuMemAlloc");
        note(&longest, &since);
        driver_must(driver_more.mem_free(more), "cuMemFree");
        note(&longest, &since);
        driver_must(mine->copy_to_device(memory, bytes, sizeof(bytes)), "cuMemcpyHtoD");
        note(&longest, &since);
        ssize_t n = recv(socket, &c, 1, MSG_DONTWAIT);
        if (n == 0)
            _exit(0);
        if (n > 0 && write(socket, &longest, sizeof(longest)) != sizeof(longest))
            _exit(1);
        longest = n > 0 ? 0 : longest;
    }
}

static double longest_since(int socket)
{
    double longest = 0;

    if (write(socket, "?", 1) != 1 || read(socket, &longest, sizeof(longest)) != sizeof(longest))
        fprintf(stderr, "the process beside has ended\n"), exit(1);
    return longest;
}

/* New host memory: of a size that nobody had before, so none is kept. */
static double offload_once(hbm_session *session, size_t size)
{
    bench_make(session, NAME, size);
    double start = bench_now();
    bench_must(hbm_offload(session, NAME, HBM_TIER_HOST, 0, NULL), "hbm_offload");
    double seconds = bench_now() - start;
    bench_drop(session, NAME);
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

static void measure(hbm_session *session, size_t size, int socket)
{
    double ours[SAMPLES], beside[SAMPLES], pinning[SAMPLES], quiet[SAMPLES];
    unsigned runs = bench_runs(SAMPLES);
    char what[96];
    CUdeviceptr device;
    CUstream stream;

    driver_must(driver_more.stream_create(&stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
    driver_must(driver_more.mem_alloc(&device, size), "cuMemAlloc");
    for (unsigned i = 0; i < runs; i++) {
        longest_since(socket);
        usleep(QUIET_US);
        quiet[i] = longest_since(socket);
        size_t unheard_of = size - (i + 1) * UNIT;
        ours[i] = offload_once(session, unheard_of) * (double)size / (double)unheard_of;
        pinning[i] = longest_since(socket);
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
    bench_take(&row, pinning, runs, 1, 1e3);
    row.beside = bench_quantile(quiet, runs, 1) * 1e3;
    bench_print(&row);
}

int main(int argc, char **argv)
{
    size_t size = (argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : 2048) << 20;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        perror("socketpair"), exit(1);
    if (fork() == 0) { /* before there is a session, or a context */
        close(pair[1]);
        neighbour(pair[0]);
    }
    close(pair[0]);
    hbm_session *session = bench_open(0);
    driver = driver_open();
    measure(session, size, pair[1]);
    hbm_close(session);
    return 0;
}
