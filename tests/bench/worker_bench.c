/* Times the worker's copies and file reads: `worker_bench OUT.json [path to a worker] [directory on a disk]`.
 * Every figure is wall time at the asker: packet, import, mapping, copy, checksum, unmapping. Beside them, in the
 * same run: bare pinned copies (built with -DHBM_BENCH_CUDA and linked with cudart) and bare O_DIRECT reads. Exit
 * 77 where the worker finds no device. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>

#ifdef HBM_BENCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "daemon/worker/ask.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)
#define ROUNDS 20
#define FILE_ROUNDS 5
#define FILE_BYTES (2048 * MIB)
#define BLOCK (16 * MIB)

static const char *program, *directory;
static char uuid[HBM_UUID_MAX], name[96];
static struct ask worker;
static FILE *json;
static bool first_row = true;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Median, slowest and fastest of n times for so many bytes. */
static void report(const char *what, uint64_t bytes, double *seconds, unsigned n)
{
    qsort(seconds, n, sizeof(*seconds), by_value);
    double gb = (double)bytes / 1e9, median = gb / seconds[n / 2];

    printf("%-28s %6llu MiB  %7.2f GB/s  (%.2f .. %.2f)\n", what, (unsigned long long)(bytes / MIB), median,
           gb / seconds[n - 1], gb / seconds[0]);
    fflush(stdout);
    fprintf(json, "%s\n  {\"what\": \"%s\", \"bytes\": %llu, \"gb_s\": %.3f, \"slowest\": %.3f, \"fastest\": %.3f}",
            first_row ? "" : ",", what, (unsigned long long)bytes, median, gb / seconds[n - 1], gb / seconds[0]);
    first_row = false;
}

static void die(const char *what)
{
    fprintf(stderr, "worker_bench: %s: %s\n", what, worker.detail);
    exit(1);
}

static bool probe(void)
{
    char command[512], line[256];

    snprintf(command, sizeof(command), "%s --probe", program);
    FILE *out = popen(command, "r");
    bool found = out && fgets(line, sizeof(line), out) && sscanf(line, "%47[^\t]\t%95[^\t]", uuid, name) == 2;
    if (out)
        pclose(out);
    return found;
}

static struct ask_extent make(unsigned kind, uint64_t size)
{
    struct ask_extent e;

    if (ask_create(&worker, kind, size, &e))
        die("create");
    return e;
}

static uint32_t send_copy(const struct ask_extent *from, const struct ask_extent *to, unsigned flags)
{
    struct job_copy_request r = {
        .source = from->extent, .target = to->extent, .bytes = from->extent.size, .flags = flags};
    int fds[2];

    return ask_send(&worker, JOB_COPY, &r, fds, ask_fds(from, to, fds));
}

static void finish(unsigned n)
{
    uint32_t serial;

    while (n--)
        if (ask_receive(&worker, &serial, NULL, NULL))
            die("copy");
}

/* Device and host extents are random: they are filled from /dev/urandom through a file job. */
static void poison(const struct ask_extent *e)
{
    struct job_range range = {.bytes = e->extent.size};
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
        random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    unsigned char *block = malloc(BLOCK);

    if (file < 0 || random < 0 || read(random, block, BLOCK) <= 0)
        die("a file of random bytes");
    for (uint64_t at = 0; at < e->extent.size; at += BLOCK) {
        block[at / BLOCK % BLOCK]++; /* no two blocks alike */
        if (pwrite(file, block, BLOCK, (off_t)at) != (ssize_t)BLOCK)
            die("writing random bytes");
    }
    int memfd = memfd_sealed("ranges", &range, sizeof(range));
    if (ask_file(&worker, e, file, memfd, 1, false, NULL))
        die("filling an extent");
    close(memfd), close(file), close(random), free(block);
}

static void bench_copies(uint64_t size, unsigned flags, const char *suffix)
{
    struct ask_extent d1 = make(JOB_EXTENT_DEVICE, size), d2 = make(JOB_EXTENT_DEVICE, size),
                      h1 = make(JOB_EXTENT_HOST, size), h2 = make(JOB_EXTENT_HOST, size);
    double down[ROUNDS], up[ROUNDS], both[ROUNDS];
    char what[64];

    poison(&d1);
    poison(&h2);
    for (int i = -2; i < ROUNDS; i++) { /* two rounds to warm up */
        double t0 = now();
        send_copy(&d1, &h1, flags);
        finish(1);
        double t1 = now();
        send_copy(&h2, &d2, flags);
        finish(1);
        double t2 = now();
        send_copy(&d1, &h1, flags);
        send_copy(&h2, &d2, flags);
        finish(2);
        double t3 = now();
        if (i >= 0)
            down[i] = t1 - t0, up[i] = t2 - t1, both[i] = t3 - t2;
    }
    snprintf(what, sizeof(what), "device to host%s", suffix);
    report(what, size, down, ROUNDS);
    snprintf(what, sizeof(what), "host to device%s", suffix);
    report(what, size, up, ROUNDS);
    snprintf(what, sizeof(what), "both at once%s", suffix);
    report(what, 2 * size, both, ROUNDS);
    ask_drop(&worker, &d1), ask_drop(&worker, &d2), ask_drop(&worker, &h1), ask_drop(&worker, &h2);
}

#ifdef HBM_BENCH_CUDA
static void bench_bare(uint64_t size)
{
    void *host[2] = {NULL, NULL}, *device[2] = {NULL, NULL};
    double down[ROUNDS], up[ROUNDS], both[ROUNDS];
    cudaStream_t s[2];

    for (unsigned i = 0; i < 2; i++)
        if (cudaHostAlloc(&host[i], size, cudaHostAllocDefault) || cudaMalloc(&device[i], size) ||
            cudaStreamCreate(&s[i]))
            die("cuda memory");
    memset(host[1], 0xa5, size);
    for (int i = -2; i < ROUNDS; i++) {
        double t0 = now();
        cudaMemcpyAsync(host[0], device[0], size, cudaMemcpyDeviceToHost, s[0]);
        cudaStreamSynchronize(s[0]);
        double t1 = now();
        cudaMemcpyAsync(device[1], host[1], size, cudaMemcpyHostToDevice, s[1]);
        cudaStreamSynchronize(s[1]);
        double t2 = now();
        cudaMemcpyAsync(host[0], device[0], size, cudaMemcpyDeviceToHost, s[0]);
        cudaMemcpyAsync(device[1], host[1], size, cudaMemcpyHostToDevice, s[1]);
        cudaStreamSynchronize(s[0]);
        cudaStreamSynchronize(s[1]);
        double t3 = now();
        if (i >= 0)
            down[i] = t1 - t0, up[i] = t2 - t1, both[i] = t3 - t2;
    }
    report("bare pinned copy down", size, down, ROUNDS);
    report("bare pinned copy up", size, up, ROUNDS);
    report("bare pinned copies, both", 2 * size, both, ROUNDS);
    for (unsigned i = 0; i < 2; i++)
        cudaFreeHost(host[i]), cudaFree(device[i]), cudaStreamDestroy(s[i]);
}
#endif

static double read_bare(int file)
{
    char path[40];
    void *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct < 0 || block == MAP_FAILED)
        return 0;
    double start = now();
    for (uint64_t at = 0; at < FILE_BYTES; at += BLOCK)
        if (pread(direct, block, BLOCK, (off_t)at) != (ssize_t)BLOCK)
            die("reading bare");
    double seconds = now() - start;
    munmap(block, BLOCK);
    close(direct);
    return seconds;
}

static void bench_disk(void)
{
    struct job_range range = {.bytes = FILE_BYTES};
    struct ask_extent e = make(JOB_EXTENT_DEVICE, FILE_BYTES), disk = make(JOB_EXTENT_DISK, FILE_BYTES);
    double bare[FILE_ROUNDS], file_job[FILE_ROUNDS], to_disk[FILE_ROUNDS], from_disk[FILE_ROUNDS];
    int memfd = memfd_sealed("ranges", &range, sizeof(range));

    poison(&e);
    for (int i = -1; i < FILE_ROUNDS; i++) {
        double t0 = now();
        send_copy(&e, &disk, JOB_CHECKSUM);
        finish(1);
        double t1 = now(), direct = read_bare(disk.fd), t2 = now();
        if (ask_file(&worker, &e, disk.fd, memfd, 1, false, NULL))
            die("file");
        double t3 = now();
        send_copy(&disk, &e, JOB_CHECKSUM);
        finish(1);
        double t4 = now();
        if (i >= 0)
            to_disk[i] = t1 - t0, bare[i] = direct, file_job[i] = t3 - t2, from_disk[i] = t4 - t3;
    }
    report("O_DIRECT reads, bare", FILE_BYTES, bare, FILE_ROUNDS);
    report("file to device", FILE_BYTES, file_job, FILE_ROUNDS);
    report("disk to device, checksum", FILE_BYTES, from_disk, FILE_ROUNDS);
    report("device to disk, checksum", FILE_BYTES, to_disk, FILE_ROUNDS);
    close(memfd);
    ask_drop(&worker, &e), ask_drop(&worker, &disk);
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {256 * MIB, 1024 * MIB, 4096 * MIB};

    if (argc < 2) {
        fprintf(stderr, "usage: worker_bench OUT.json [worker] [directory]\n");
        return 2;
    }
    program = argc > 2 ? argv[2] : "build/hbm-worker-cuda";
    directory = argc > 3 ? argv[3] : "/var/tmp";
    if (!probe()) {
        printf("no device that %s can use\n", program);
        return 77;
    }
    json = fopen(argv[1], "we");
    if (!json)
        die(argv[1]);
    ask_start(&worker, program);
    if (ask_begin(&worker, uuid, directory, 60000, NULL))
        die("start");
    printf("%s, %s\n", name, uuid);
    fprintf(json, "{\"device\": \"%s\", \"rounds\": %d, \"rows\": [", name, ROUNDS);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
#ifdef HBM_BENCH_CUDA
        if (strcmp(uuid, "host"))
            bench_bare(sizes[i]);
#endif
        bench_copies(sizes[i], 0, "");
        bench_copies(sizes[i], JOB_CHECKSUM, ", checksum");
    }
    bench_disk();
    fprintf(json, "\n]}\n");
    fclose(json);
    return ask_stop(&worker) ? 1 : 0;
}
