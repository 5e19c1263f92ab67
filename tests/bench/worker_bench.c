/* Times the worker's copies and file reads: `worker_bench OUT.json [path to a worker] [directory on a disk]
 * [MiB...]`; with sizes given, just the copies of these. Every figure is wall time at the asker: packet, import and
 * mapping of the device's side, copy, checksum, unmapping. The host's side stays mapped, as the owner lets it;
 * "first" is the copy that maps it. Beside them, in the same run: bare pinned copies (built with -DHBM_BENCH_CUDA
 * and linked with cudart), bare O_DIRECT reads, and the cipher of the spill files alone. Exit 77 where the worker
 * finds no device. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>

#ifdef HBM_BENCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "daemon/worker/ask.h"
#include "daemon/worker/cipher.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)
#define ROUNDS 20
#define LARGE_ROUNDS 6 /* of 4 GiB and more */
#define FILE_ROUNDS 4
#define FILE_BYTES (1024 * MIB)
#define BLOCK (16 * MIB)
#define NOISE (64 * MIB)
#define CIPHER_THREADS 4 /* lanes that a job runs, with the staging pool as hbmd.conf has it */
#define CIPHER_BYTES (512 * MIB)

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

/* Median, slowest and fastest of n times for so many bytes; bare 0: nothing to compare it with. Returns the median.
 */
static double report(const char *what, uint64_t bytes, double *seconds, unsigned n, double bare)
{
    qsort(seconds, n, sizeof(*seconds), by_value);
    double gb = (double)bytes / 1e9, median = gb / seconds[n / 2];

    printf("%-28s %6llu MiB  %7.2f GB/s  (%.2f .. %.2f)", what, (unsigned long long)(bytes / MIB), median,
           gb / seconds[n - 1], gb / seconds[0]);
    if (bare > 0)
        printf("  %5.1f %% of bare", 100 * median / bare);
    printf("\n");
    fflush(stdout);
    fprintf(json, "%s\n  {\"what\": \"%s\", \"bytes\": %llu, \"gb_s\": %.3f, \"slowest\": %.3f, \"fastest\": %.3f, \"rounds\": %u",
            first_row ? "" : ",", what, (unsigned long long)bytes, median, gb / seconds[n - 1], gb / seconds[0], n);
    if (bare > 0)
        fprintf(json, ", \"of_bare\": %.4f", median / bare);
    fprintf(json, "}");
    first_row = false;
    return median;
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
    static uint64_t last_token;
    struct ask_extent e;

    if (ask_create(&worker, kind, size, &e))
        die("create");
    if (kind == JOB_EXTENT_HOST)
        e.extent.token = ++last_token;
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

static int rounds_of(uint64_t size)
{
    return size < 4096 * MIB ? ROUNDS : LARGE_ROUNDS;
}

/* Fills an extent with the same random bytes over and over, through a file job. */
static void poison(const struct ask_extent *e)
{
    unsigned n = (unsigned)((e->extent.size + NOISE - 1) / NOISE);
    struct job_range *ranges = calloc(n, sizeof(*ranges));
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
        random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    unsigned char *block = malloc(BLOCK);

    if (file < 0 || random < 0 || !ranges || !block)
        die("a file of random bytes");
    for (uint64_t at = 0; at < NOISE; at += BLOCK)
        if (read(random, block, BLOCK) <= 0 || pwrite(file, block, BLOCK, (off_t)at) != (ssize_t)BLOCK)
            die("writing random bytes");
    for (unsigned i = 0; i < n; i++) {
        uint64_t left = e->extent.size - i * NOISE;
        ranges[i] = (struct job_range){.extent_offset = i * NOISE, .bytes = left < NOISE ? left : NOISE};
    }
    int memfd = memfd_sealed("ranges", ranges, n * sizeof(*ranges));
    if (ask_file(&worker, e, file, memfd, n, false, NULL))
        die("filling an extent");
    close(memfd), close(file), close(random), free(block), free(ranges);
}

/* GB/s; 0 where they are not measured. */
struct bare {
    double down, up, both;
};

struct sides {
    struct ask_extent d1, d2, h1, h2;
};

static void bench_copies(const struct sides *s, unsigned flags, const char *suffix, const struct bare *bare)
{
    uint64_t size = s->d1.extent.size;
    double down[ROUNDS], up[ROUNDS], both[ROUNDS];
    const int rounds = rounds_of(size);
    char what[64];

    for (int i = -2; i < rounds; i++) { /* two rounds to warm up */
        double t0 = now();
        send_copy(&s->d1, &s->h1, flags);
        finish(1);
        double t1 = now();
        send_copy(&s->h2, &s->d2, flags);
        finish(1);
        double t2 = now();
        send_copy(&s->d1, &s->h1, flags);
        send_copy(&s->h2, &s->d2, flags);
        finish(2);
        double t3 = now();
        if (i >= 0)
            down[i] = t1 - t0, up[i] = t2 - t1, both[i] = t3 - t2;
    }
    snprintf(what, sizeof(what), "device to host%s", suffix);
    report(what, size, down, (unsigned)rounds, bare->down);
    snprintf(what, sizeof(what), "host to device%s", suffix);
    report(what, size, up, (unsigned)rounds, bare->up);
    snprintf(what, sizeof(what), "both at once%s", suffix);
    report(what, 2 * size, both, (unsigned)rounds, bare->both);
}

static void bench_size(uint64_t size, const struct bare *bare)
{
    struct sides s = {make(JOB_EXTENT_DEVICE, size), make(JOB_EXTENT_DEVICE, size), make(JOB_EXTENT_HOST, size),
                      make(JOB_EXTENT_HOST, size)};

    poison(&s.d1);
    poison(&s.h2);
    double start = now();
    send_copy(&s.d1, &s.h1, JOB_CHECKSUM);
    finish(1);
    double first = now() - start;
    report("device to host, first", size, &first, 1, bare->down);
    bench_copies(&s, 0, "", bare);
    bench_copies(&s, JOB_CHECKSUM, ", checksum", bare);
    ask_drop(&worker, &s.d1), ask_drop(&worker, &s.d2), ask_drop(&worker, &s.h1), ask_drop(&worker, &s.h2);
}

#ifdef HBM_BENCH_CUDA
static struct bare bench_bare(uint64_t size)
{
    void *host[2] = {NULL, NULL}, *device[2] = {NULL, NULL};
    double down[ROUNDS], up[ROUNDS], both[ROUNDS];
    const int rounds = rounds_of(size);
    cudaStream_t s[2];

    for (unsigned i = 0; i < 2; i++)
        if (cudaHostAlloc(&host[i], size, cudaHostAllocDefault) || cudaMalloc(&device[i], size) ||
            cudaStreamCreate(&s[i]))
            die("cuda memory");
    memset(host[1], 0xa5, size);
    for (int i = -2; i < rounds; i++) {
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
    struct bare bare = {report("bare pinned copy down", size, down, (unsigned)rounds, 0),
                        report("bare pinned copy up", size, up, (unsigned)rounds, 0),
                        report("bare pinned copies, both", 2 * size, both, (unsigned)rounds, 0)};
    for (unsigned i = 0; i < 2; i++)
        cudaFreeHost(host[i]), cudaFree(device[i]), cudaStreamDestroy(s[i]);
    return bare;
}
#else
static struct bare bench_bare(uint64_t size)
{
    (void)size;
    return (struct bare){0};
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

static void *cipher_blocks(void *ignored)
{
    struct cipher cipher = {0};
    struct failure failure = {0};
    unsigned char *block = aligned_alloc(4096, BLOCK);

    if (!block)
        die("a block");
    memset(block, 0x5a, BLOCK);
    for (uint64_t at = 0; at < CIPHER_BYTES; at += BLOCK)
        if (cipher_encrypt(&cipher, 1, at, block, BLOCK, &failure))
            die(failure.detail);
    cipher_close(&cipher);
    free(block);
    return ignored;
}

static void bench_cipher(unsigned n)
{
    pthread_t threads[CIPHER_THREADS];
    double seconds[FILE_ROUNDS];
    char what[40];

    for (unsigned i = 0; i < FILE_ROUNDS; i++) {
        double start = now();
        for (unsigned k = 0; k < n; k++)
            if (pthread_create(&threads[k], NULL, cipher_blocks, NULL))
                die("a thread");
        for (unsigned k = 0; k < n; k++)
            pthread_join(threads[k], NULL);
        seconds[i] = now() - start;
    }
    snprintf(what, sizeof(what), "cipher, %u thread%s", n, n == 1 ? "" : "s");
    report(what, n * CIPHER_BYTES, seconds, FILE_ROUNDS, 0);
}

static void bench_disk(bool encrypted)
{
    struct job_range range = {.bytes = FILE_BYTES};
    struct ask_extent e = make(JOB_EXTENT_DEVICE, FILE_BYTES), disk = make(JOB_EXTENT_DISK, FILE_BYTES);
    const char *suffix = encrypted ? ", encrypted" : "";
    char to[40], from[40];
    double bare[FILE_ROUNDS], file_job[FILE_ROUNDS], to_disk[FILE_ROUNDS], from_disk[FILE_ROUNDS];
    int memfd = memfd_sealed("ranges", &range, sizeof(range));

    disk.extent.encrypted = encrypted;
    poison(&e);
    for (int i = -1; i < FILE_ROUNDS; i++) {
        double t0 = now();
        send_copy(&e, &disk, JOB_CHECKSUM);
        finish(1);
        double t1 = now(), direct = encrypted ? 0 : read_bare(disk.fd), t2 = now();
        if (!encrypted && ask_file(&worker, &e, disk.fd, memfd, 1, false, NULL))
            die("file");
        double t3 = now();
        send_copy(&disk, &e, JOB_CHECKSUM);
        finish(1);
        double t4 = now();
        if (i >= 0)
            to_disk[i] = t1 - t0, bare[i] = direct, file_job[i] = t3 - t2, from_disk[i] = t4 - t3;
    }
    double direct_gb_s = 0;
    if (!encrypted) {
        direct_gb_s = report("O_DIRECT reads, bare", FILE_BYTES, bare, FILE_ROUNDS, 0);
        report("file to device", FILE_BYTES, file_job, FILE_ROUNDS, direct_gb_s);
    }
    snprintf(from, sizeof(from), "disk to device, checksum%s", suffix);
    snprintf(to, sizeof(to), "device to disk, checksum%s", suffix);
    report(from, FILE_BYTES, from_disk, FILE_ROUNDS, direct_gb_s);
    report(to, FILE_BYTES, to_disk, FILE_ROUNDS, 0);
    close(memfd);
    ask_drop(&worker, &e), ask_drop(&worker, &disk);
}

int main(int argc, char **argv)
{
    static const char *const sizes[] = {"256", "1024", "4096"};
    const char *const *size = argc > 4 ? (const char *const *)argv + 4 : sizes;
    unsigned n = argc > 4 ? (unsigned)argc - 4 : 3;

    if (argc < 2) {
        fprintf(stderr, "usage: worker_bench OUT.json [worker] [directory] [MiB...]\n");
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
    const struct job_spill_key key = {.id = 1, .key = "of a bench"};
    struct failure failure = {0};
    ask_start(&worker, program);
    worker.spill_key = memfd_sealed("key", &key, sizeof(key));
    if (cipher_set_key(worker.spill_key, &failure))
        die(failure.detail);
    if (ask_begin(&worker, uuid, directory, 60000, NULL))
        die("start");
    printf("%s, %s\n", name, uuid);
    fprintf(json, "{\"device\": \"%s\", \"rounds\": %d, \"rows\": [", name, ROUNDS);
    for (unsigned i = 0; i < n; i++) {
        uint64_t bytes = strtoull(size[i], NULL, 10) * MIB;
        struct bare bare = {0};

        if (strcmp(uuid, "host"))
            bare = bench_bare(bytes);
        bench_size(bytes, &bare);
    }
    if (argc < 5) {
        bench_cipher(1);
        bench_cipher(CIPHER_THREADS);
        bench_disk(false);
        bench_disk(true);
    }
    fprintf(json, "\n]}\n");
    fclose(json);
    return ask_stop(&worker) ? 1 : 0;
}
