/* The CUDA worker on a real GPU: `worker_gpu [path to hbm-worker-cuda] [directory on a disk]`. Uses no CUDA itself:
 * bytes go in and out through files. Exit 77 where there is no GPU. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/worker/ask.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)
#define IDLE_MS 300

static const char *program, *directory;
static char uuid[HBM_UUID_MAX];
static unsigned long long total;
static struct ask worker;
static unsigned passed, failed;

static bool ok(bool good, const char *what)
{
    printf("%s - %s%s%s\n", good ? "ok" : "FAIL", what,
           good || !worker.detail[0] ? "" : ": last refusal: ", good ? "" : worker.detail);
    fflush(stdout);
    good ? passed++ : failed++;
    return good;
}

/* The expected status, else the one that came is printed. */
static bool is(int status, int wanted)
{
    if (status != wanted)
        printf("# %s, not %s: %s\n", status == ASK_GONE ? "worker gone" : hbm_error_name(status),
               hbm_error_name(wanted), worker.detail);
    return status == wanted;
}

static bool probe(void)
{
    char command[512], line[256];

    snprintf(command, sizeof(command), "%s --probe", program);
    FILE *out = popen(command, "r");
    bool found =
        out && fgets(line, sizeof(line), out) && sscanf(line, "%47[^\t]\t%*[^\t]\t%llu", uuid, &total) == 2;
    if (out && pclose(out) != 0)
        found = false;
    return found;
}

static int begin(void)
{
    ask_start(&worker, program);
    return ask_begin(&worker, uuid, directory, IDLE_MS, NULL);
}

static void nap(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static struct job_query_reply query(void)
{
    struct job_query_request request = {0};
    union job_reply reply = {0};

    is(ask_job(&worker, JOB_QUERY, &request, NULL, 0, &reply, NULL), 0);
    return reply.query;
}

static unsigned char *random_bytes(uint64_t size, uint64_t seed)
{
    unsigned char *bytes = malloc(size + 8);

    for (uint64_t i = 0; i < size; i += 8) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t word = seed ^ seed >> 29;
        memcpy(bytes + i, &word, 8);
    }
    return bytes;
}

/* Writes or reads an extent by way of a file of this test's own. */
static bool by_file(const struct ask_extent *e, uint64_t offset, void *bytes, uint64_t size, bool out)
{
    struct job_range range = {.extent_offset = offset, .bytes = size};
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), ranges = memfd_sealed("ranges", &range, sizeof(range));
    bool good = file >= 0 && ranges >= 0 && (out || pwrite(file, bytes, size, 0) == (ssize_t)size) &&
                is(ask_file(&worker, e, file, ranges, 1, out, NULL), 0) &&
                (!out || pread(file, bytes, size, 0) == (ssize_t)size);

    close(file), close(ranges);
    return good;
}

static bool put(const struct ask_extent *e, uint64_t offset, const void *bytes, uint64_t size)
{
    return by_file(e, offset, (void *)(uintptr_t)bytes, size, false);
}

static bool get(const struct ask_extent *e, uint64_t offset, void *bytes, uint64_t size)
{
    return by_file(e, offset, bytes, size, true);
}

static void starting_creates_no_context(void)
{
    union job_reply reply = {0};

    ask_start(&worker, program);
    bool good = is(ask_begin(&worker, "GPU-00000000-0000-0000-0000-000000000000", directory, IDLE_MS, &reply),
                   HBM_E_NO_DEVICE);
    ask_stop(&worker);
    ask_start(&worker, program);
    good = is(ask_begin(&worker, uuid, directory, IDLE_MS, &reply), 0) && good;
    printf("# %s, %.1f GiB, %.1f free, granularity %llu, rdma %u, /dev/nvidia%u\n", reply.start.name,
           (double)reply.start.total_bytes / 1073741824, (double)reply.start.free_bytes / 1073741824,
           (unsigned long long)reply.start.granularity, reply.start.rdma, reply.start.ordinal);
    ok(good && reply.start.total_bytes == total && reply.start.can_fd && reply.start.can_cuda_ipc,
       "START tells what the device is, and refuses a UUID that is not here");
    ok(query().has_context == 0, "START creates no context");
    struct ask_extent e = {.fd = -1};
    good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4, &e), 0);
    ok(good && query().has_context == 0, "creating and exporting device memory needs no context");
    ask_drop(&worker, &e);
}

/* Pinned ahead, it is what any other host extent is: a copy comes back from it. */
static void host_memory_is_made_ahead_without_a_context(void)
{
    uint64_t size = 64 * MIB, sum = 0;
    struct ask_extent ahead = {.fd = -1}, device = {.fd = -1};
    unsigned char *bytes = random_bytes(size, 78), *back = calloc(1, size);
    struct ask_range all = {0, 0, size};

    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    bool good = is(ask_create_with(&worker, JOB_EXTENT_HOST, size, JOB_AHEAD, &ahead), 0);
    ok(good && ahead.extent.size == size && query().has_context == 0, "host memory made ahead needs no context");
    ok(good && get(&ahead, 0, back, size) && !back[0] && !memcmp(back, back + 1, size - 1), "and holds zeros");
    good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &device), 0) && put(&device, 0, bytes, size) &&
           is(ask_copy(&worker, &device, &ahead, all, JOB_CHECKSUM, &sum), 0) && get(&ahead, 0, back, size);
    ok(good && !memcmp(bytes, back, size), "what is offloaded into it is there");
    ok(is(ask_create_with(&worker, JOB_EXTENT_HOST, UINT64_C(1) << 50, JOB_AHEAD, &(struct ask_extent){.fd = -1}),
          HBM_E_NO_MEMORY),
       "more than a quarter of what the machine has is refused");
    ask_drop(&worker, &device);
    ask_drop(&worker, &ahead);
    free(bytes), free(back);
}

/* As worker/checksum.h has it. */
static uint64_t checksum(const unsigned char *bytes, uint64_t size)
{
    uint64_t *hashes = calloc(size / MIB + 1, sizeof(*hashes)), n = 0;

    for (uint64_t at = 0; at < size; at += MIB)
        hashes[n++] = XXH3_64bits(bytes + at, size - at < MIB ? size - at : MIB);
    uint64_t sum = XXH3_64bits(hashes, n * sizeof(*hashes));
    free(hashes);
    return sum;
}

static void size_makes_no_difference(unsigned kind, const char *name)
{
    static const uint64_t sizes[] = {4, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 12792628, 69 * MIB + 12};
    char what[160];

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t size = sizes[i], sum = 0, again, hash = 0;
        struct ask_extent a = {.fd = -1}, host = {.fd = -1}, disk = {.fd = -1}, back = {.fd = -1};
        unsigned char *bytes = random_bytes(size, size), *zeros = calloc(1, size);
        bool good = is(ask_create(&worker, kind, size, &a), 0) &&
                    is(ask_create(&worker, JOB_EXTENT_HOST, size, &host), 0) &&
                    is(ask_create(&worker, JOB_EXTENT_DISK, size, &disk), 0) &&
                    is(ask_create(&worker, kind, size, &back), 0);

        good = good && is(ask_hash(&worker, &a, 0, size, &hash), 0) && hash == XXH3_64bits(zeros, size);
        good = good && is(ask_hash(&worker, &host, 0, size, &hash), 0) && hash == XXH3_64bits(zeros, size);
        snprintf(what, sizeof(what), "%s memory of %llu bytes is zero when new", name, (unsigned long long)size);
        ok(good, what);
        good = good && put(&a, 0, bytes, size);
        good = good && is(ask_copy(&worker, &a, &host, (struct ask_range){0, 0, size}, JOB_CHECKSUM, &sum), 0);
        ok(good && sum == checksum(bytes, size), "the device's checksum is that of plain C");
        /* A disk takes whole blocks. */
        uint64_t whole = (size + 4095) / 4096 * 4096;
        good = good && is(ask_copy(&worker, &host, &disk, (struct ask_range){0, 0, whole}, JOB_CHECKSUM, &again), 0);
        good = good && is(ask_copy(&worker, &disk, &back, (struct ask_range){0, 0, whole}, JOB_VERIFY, &again), 0);
        again = sum;
        good = good && is(ask_copy(&worker, &back, &a, (struct ask_range){0, 0, size}, JOB_VERIFY, &again), 0);
        good = good && is(ask_copy(&worker, &host, &a, (struct ask_range){0, 0, size}, JOB_VERIFY, &again), 0);
        good = good && is(ask_hash(&worker, &back, 0, size, &hash), 0) && hash == XXH3_64bits(bytes, size);
        good = good && get(&a, 0, zeros, size) && !memcmp(zeros, bytes, size);
        snprintf(what, sizeof(what), "%s -> host -> disk -> %s -> %s of %llu bytes: same bytes, same checksum",
                 name, name, name, (unsigned long long)size);
        ok(good, what);
        again = sum ^ 1;
        ok(is(ask_copy(&worker, &host, &a, (struct ask_range){0, 0, size}, JOB_VERIFY, &again), HBM_E_CHECKSUM),
           "a wrong checksum is an error");
        ask_drop(&worker, &a), ask_drop(&worker, &host), ask_drop(&worker, &disk), ask_drop(&worker, &back);
        free(bytes), free(zeros);
    }
}

static void memory_outlives_the_worker(void)
{
    unsigned char *bytes = random_bytes(5 * MIB, 9);
    struct ask_extent e = {.fd = -1}, host = {.fd = -1};
    uint64_t hash = 0;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 5 * MIB, &e), 0) &&
                is(ask_create(&worker, JOB_EXTENT_HOST, 5 * MIB, &host), 0) && put(&e, 0, bytes, 5 * MIB) &&
                is(ask_copy(&worker, &e, &host, (struct ask_range){0, 0, 5 * MIB}, 0, NULL), 0);

    kill(worker.pid, SIGKILL);
    ask_stop(&worker);
    begin();
    good = good && is(ask_hash(&worker, &e, 0, 5 * MIB, &hash), 0) && hash == XXH3_64bits(bytes, 5 * MIB);
    good = good && is(ask_hash(&worker, &host, 0, 5 * MIB, &hash), 0) && hash == XXH3_64bits(bytes, 5 * MIB);
    ok(good, "device and host memory survive SIGKILL of the worker");
    ask_drop(&worker, &e), ask_drop(&worker, &host);
    free(bytes);
}

static void cuda_ipc_blocks_live_until_destroyed(void)
{
    struct job_create_request request = {.size = 5, .kind = JOB_EXTENT_CUDA_IPC};
    union job_reply reply = {0};
    static const uint8_t none[64];
    uint64_t hash;
    bool good = is(ask_job(&worker, JOB_CREATE, &request, NULL, 0, &reply, NULL), 0);
    struct ask_extent e = {
        .extent = {.kind = JOB_EXTENT_CUDA_IPC, .size = reply.create.size, .token = reply.create.token}, .fd = -1};

    ok(good && reply.create.size == 2 * MIB && memcmp(reply.create.ipc_handle, none, 64),
       "a cuda-ipc block has whole 2 MiB of its own and a handle");
    nap(4 * IDLE_MS);
    ok(query().has_context == 1, "a living cuda-ipc block keeps the context");
    e.extent.size = 4 * MIB;
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), HBM_E_BAD_REQUEST), "a block of the wrong size is refused");
    e.extent.size = 2 * MIB;
    ask_drop(&worker, &e);
    ask_drop(&worker, &e);
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), HBM_E_LOST),
       "a destroyed block is lost, destroying it twice is fine");
}

static void the_context_goes_when_idle_and_comes_back(void)
{
    struct ask_extent e = {.fd = -1};
    uint64_t hash, again = 1;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 40 * MIB, &e), 0) &&
                is(ask_hash(&worker, &e, 0, 40 * MIB, &hash), 0) && query().has_context == 1;

    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    ok(good && query().has_context == 0, "the context is dropped when the worker is idle");
    good = is(ask_hash(&worker, &e, 0, 40 * MIB, &again), 0);
    ok(good && again == hash && query().has_context == 1, "the next job makes a new one and finds its memory");
    ask_drop(&worker, &e);
}

static void codecs_agree_with_plain_arithmetic(unsigned stored_kind, const char *name)
{
    enum { N = 1 << 18 };
    struct ask_extent raw = {.fd = -1}, stored = {.fd = -1};
    float *x = malloc(N * sizeof(*x)), amax = 0, scale = 0;
    int8_t *q = malloc(N);
    struct job_code code = {.data_offset = 0,
                            .scale_offset = N,
                            .dims = {512, 512},
                            .rank = 2,
                            .dtype = HBM_F32,
                            .encoding = {.codec = HBM_CODEC_INT8, .stored = HBM_I8}};
    char what[120];

    for (int i = 0; i < N; i++) {
        x[i] = (float)sin(i * 0.37) * (float)(i % 1000);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, N * 4, &raw), 0) &&
                is(ask_create(&worker, stored_kind, N + 256, &stored), 0) && put(&raw, 0, x, N * 4);
    struct job_encode_request encode = {
        .source = raw.extent, .target = stored.extent, .code = code, .min_sqnr_db = 20};
    struct job_decode_request decode = {.source = stored.extent, .target = raw.extent, .code = code};
    union job_reply reply = {0};
    int fds[] = {raw.fd, stored.fd}, back[] = {stored.fd, raw.fd};

    good = good && is(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0) && get(&stored, 0, q, N) &&
           get(&stored, N, &scale, 4) && scale == amax / 127;
    for (int i = 0; good && i < N; i++)
        good = q[i] == (int8_t)nearbyintf(x[i] / scale);
    good = good && reply.encode.receipt.bytes_before == N * 4 && reply.encode.receipt.bytes_after == N + 4 &&
           reply.encode.receipt.elements == N && reply.encode.receipt.seconds > 0 &&
           reply.encode.receipt.sqnr_db > 20;
    snprintf(what, sizeof(what), "int8 from device to %s memory is what plain C makes of it", name);
    ok(good, what);
    good = good && is(ask_job(&worker, JOB_DECODE, &decode, back, 2, &reply, NULL), 0) && get(&raw, 0, x, N * 4);
    for (int i = 0; good && i < N; i++)
        good = x[i] == (float)q[i] * scale;
    snprintf(what, sizeof(what), "and from %s memory it decodes to exactly scale * q", name);
    ok(good, what);
    encode.max_error = 1e-12;
    encode.min_sqnr_db = 400;
    x[0] = 0.123f, x[1] = 999.7f;
    ok(put(&raw, 0, x, 8) && is(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, NULL, NULL), HBM_E_QUALITY),
       "a bound that is missed is a QUALITY error");
    ask_drop(&worker, &raw), ask_drop(&worker, &stored);
    free(x), free(q);
}

/* Three pieces of 256 MiB at most. Every channel's scale is 1: what is encoded and decoded is the same to the bit. */
static void a_large_buffer_is_coded_in_pieces(void)
{
    enum { ROW = 1024, ROWS = 150001 };
    uint64_t n = (uint64_t)ROWS * ROW, scales = (n + 255) / 256 * 256;
    struct ask_extent raw = {.fd = -1}, stored = {.fd = -1};
    float *x = malloc(n * sizeof(*x)), *back = calloc(n, sizeof(*back));
    struct job_code code = {.scale_offset = scales,
                            .dims = {ROWS, ROW},
                            .rank = 2,
                            .dtype = HBM_F32,
                            .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .stored = HBM_I8}};
    union job_reply reply = {0};

    for (uint64_t i = 0; x && i < n; i++)
        x[i] = (float)((int)((i % ROW + i / ROW) * 37 % 255) - 127);
    bool good = x && back && is(ask_create(&worker, JOB_EXTENT_DEVICE, n * 4, &raw), 0) &&
                is(ask_create(&worker, JOB_EXTENT_DEVICE, scales + ROWS * 4, &stored), 0) && put(&raw, 0, x, n * 4);
    struct job_encode_request encode = {.source = raw.extent, .target = stored.extent, .code = code};
    struct job_decode_request decode = {.source = stored.extent, .target = raw.extent, .code = code};
    int fds[] = {raw.fd, stored.fd}, there[] = {stored.fd, raw.fd};

    good = good && is(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    const struct hbm_receipt *receipt = &reply.encode.receipt;
    ok(good && receipt->elements == n && receipt->max_abs_error == 0 && receipt->clipped_fraction == 0 && receipt->seconds > 0 &&
           receipt->bytes_after == n + (uint64_t)ROWS * 4,
       "a buffer of more than one piece is encoded with one receipt");
    good = good && put(&raw, 0, back, n * 4) && is(ask_job(&worker, JOB_DECODE, &decode, there, 2, &reply, NULL), 0) &&
           get(&raw, 0, back, n * 4);
    ok(good && !memcmp(back, x, n * 4), "and every piece of it is decoded to where it was");
    ask_drop(&worker, &raw), ask_drop(&worker, &stored);
    free(x), free(back);
}

static void files_go_straight_to_device_memory(void)
{
    enum { SMALL = 2000 };
    uint64_t size = 60 * MIB + 123;
    unsigned char *bytes = random_bytes(size, 21), *got = calloc(1, 128 * MIB);
    struct job_range ranges[SMALL + 1];
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
        out = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    struct ask_extent e = {.fd = -1};
    bool good = file >= 0 && out >= 0 && write(file, bytes, size) == (ssize_t)size;

    for (uint64_t i = 0; i < SMALL; i++)
        ranges[i] = (struct job_range){i * 9000, (SMALL - i) * 8193, 8191};
    ranges[SMALL] = (struct job_range){64 * MIB + 5, 3, size - 3};
    int memfd = memfd_sealed("ranges", ranges, sizeof(ranges));
    good = good && is(ask_create(&worker, JOB_EXTENT_DEVICE, 128 * MIB, &e), 0) &&
           is(ask_file(&worker, &e, file, memfd, SMALL + 1, false, NULL), 0) && get(&e, 0, got, 128 * MIB);
    for (unsigned i = 0; good && i <= SMALL; i++)
        good = !memcmp(got + ranges[i].extent_offset, bytes + ranges[i].file_offset, ranges[i].bytes);
    ok(good, "ranges of a file, small and large, arrive in device memory");
    struct job_range all = {64 * MIB + 5, 11, size - 3};
    int one = memfd_sealed("ranges", &all, sizeof(all));
    good = good && is(ask_file(&worker, &e, out, one, 1, true, NULL), 0) &&
           pread(out, got, size - 3, 11) == (ssize_t)(size - 3) && !memcmp(got, bytes + 3, size - 3);
    ok(good, "and are written back to a file");
    close(file), close(out), close(memfd), close(one);
    ask_drop(&worker, &e);
    free(bytes), free(got);
}

/* A worker of its own, which may use GPUDirect Storage: whichever way it chooses, the bytes are the same. */
static void the_disk_goes_by_what_was_measured_to_be_faster(void)
{
    struct job_start_request start = {.idle_ms = IDLE_MS, .gpudirect = 1};
    struct job_query_reply said[2];
    uint64_t size = 400 * MIB, sum = 0;
    unsigned char *bytes = random_bytes(size, 31), *got = calloc(1, size);
    struct ask_extent a = {.fd = -1}, disk = {.fd = -1}, back = {.fd = -1};
    struct ask usual = worker;

    snprintf(start.uuid, sizeof(start.uuid), "%s", uuid);
    snprintf(start.state_dir, sizeof(start.state_dir), "%s", directory);
    ask_start(&worker, program);
    bool good = is(ask_job(&worker, JOB_START, &start, NULL, 0, NULL, NULL), 0) &&
                is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &a), 0) &&
                is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &back), 0) &&
                is(ask_create(&worker, JOB_EXTENT_DISK, size, &disk), 0) && put(&a, 0, bytes, size);
    for (unsigned i = 0; i < 2; i++) {
        good = good && is(ask_copy(&worker, &a, &disk, (struct ask_range){0, 0, size}, JOB_CHECKSUM, &sum), 0) &&
               sum == checksum(bytes, size) &&
               is(ask_copy(&worker, &disk, &back, (struct ask_range){0, 0, size}, JOB_VERIFY, &sum), 0);
        said[i] = query();
        nap(2 * IDLE_MS); /* the context goes, and what the library has in it */
    }
    good = good && get(&back, 0, got, size) && !memcmp(got, bytes, size);
    ok(good, "device -> disk -> device of 400 MiB, twice, where GPUDirect Storage may be used: same bytes, same checksum");
    static const char *const states[] = {"off", "absent", "there", "failed"}, *const ways[] = {"read", "write"};
    printf("# GPUDirect Storage: %s\n", states[said[0].gpudirect % 4]);
    for (unsigned i = 0; i < 2; i++)
        if (said[0].straight_rates[i])
            printf("# disk %s: %.2f GB/s by GPUDirect Storage, %.2f GB/s staged\n", ways[i],
                   (double)said[0].straight_rates[i] / 1e9, (double)said[0].staged_rates[i] / 1e9);
    bool there = said[0].gpudirect == JOB_GPUDIRECT_THERE;
    ok(said[0].gpudirect != JOB_GPUDIRECT_OFF && (there || access("/proc/driver/nvidia-fs/version", R_OK) < 0 ||
                                                  said[0].gpudirect == JOB_GPUDIRECT_FAILED),
       "it is used where its driver is, and not where that is not");
    ok((there || !said[0].straight_rates[0]) && said[0].gpudirect == said[1].gpudirect &&
           !memcmp(said[0].straight_rates, said[1].straight_rates, sizeof(said[0].straight_rates)),
       "both ways are measured once, if at all");
    ask_drop(&worker, &a), ask_drop(&worker, &disk), ask_drop(&worker, &back);
    ok(ask_stop(&worker) == 0, "that worker ends with 0, too");
    worker = usual;
    free(bytes), free(got);
}

static void what_is_no_memory_is_refused(void)
{
    struct ask_extent e = {.fd = -1}, wrong = {.fd = -1}, huge = {.fd = -1};
    uint64_t hash;
    int pipe_fds[2];
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &e), 0) && pipe(pipe_fds) == 0;

    wrong = e;
    wrong.fd = pipe_fds[0];
    int status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(good && status < 0, "a pipe for an extent is refused");
    wrong = e;
    wrong.extent.size = 8 * MIB;
    status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(status < 0, "an extent of another size is refused");
    wrong = e;
    wrong.extent.kind = JOB_EXTENT_HOST;
    status = ask_hash(&worker, &wrong, 0, 4, &hash);
    ok(status < 0, "device memory called host memory is refused");
    ok(is(ask_create(&worker, JOB_EXTENT_DEVICE, total * 2, &huge), HBM_E_NO_MEMORY) &&
           is(ask_create(&worker, JOB_EXTENT_HOST, (uint64_t)1 << 50, &huge), HBM_E_NO_MEMORY) &&
           is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, UINT64_MAX, &huge), HBM_E_NO_MEMORY),
       "more memory than there is, is refused");
    ok(is(ask_hash(&worker, &e, 0, 4, &hash), 0), "and none of that spoils the next job");
    close(pipe_fds[0]), close(pipe_fds[1]);
    ask_drop(&worker, &e);
}

static void a_large_copy_can_be_cancelled(void)
{
    uint64_t size = 4096 * MIB;
    struct ask_extent a = {.fd = -1}, b = {.fd = -1};
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &a), 0) &&
                is(ask_create(&worker, JOB_EXTENT_HOST, size, &b), 0);
    struct job_copy_request r = {.source = a.extent, .target = b.extent, .bytes = size, .flags = JOB_CHECKSUM};
    int fds[] = {a.fd, b.fd};
    uint32_t serial = 0, sent = good ? ask_send(&worker, JOB_COPY, &r, fds, 2) : 0;

    nap(20);
    ask_cancel(&worker, sent);
    ok(good && is(ask_receive(&worker, &serial, NULL, NULL), HBM_E_CANCELLED) && serial == sent,
       "a large copy can be cancelled");
    ask_drop(&worker, &a), ask_drop(&worker, &b);
}

/* Bytes that the worker's CPU side has mapped from the driver. */
static uint64_t mapped_by_worker(void)
{
    unsigned long long from, to;
    char path[40], line[512];
    uint64_t bytes = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", worker.pid);
    FILE *maps = fopen(path, "re");
    while (maps && fgets(line, sizeof(line), maps))
        if (strstr(line, "/dev/nvidia") && sscanf(line, "%llx-%llx", &from, &to) == 2)
            bytes += to - from;
    if (maps)
        fclose(maps);
    return bytes;
}

static void forget(uint64_t token)
{
    struct job_destroy_request request = {.token = token, .kind = JOB_EXTENT_HOST};

    is(ask_job(&worker, JOB_DESTROY, &request, NULL, 0, NULL, NULL), 0);
}

static void host_extents_with_a_token_stay_mapped(void)
{
    enum { N = 4 };
    uint64_t size = 64 * MIB, sum = 0, again;
    struct ask_extent device = {.fd = -1}, host[N];
    unsigned char *bytes = random_bytes(size, 77);
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &device), 0) && put(&device, 0, bytes, size);
    struct ask_range all = {0, 0, size};

    for (unsigned i = 0; i < N; i++) {
        good = is(ask_create(&worker, JOB_EXTENT_HOST, size, &host[i]), 0) && good;
        host[i].extent.token = 1 + i; /* the same numbers as cuda-ipc blocks have */
    }
    uint64_t before = mapped_by_worker();
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < N; i++) {
            good = good && is(ask_copy(&worker, &device, &host[i], all, JOB_CHECKSUM, &sum), 0);
            again = sum;
            good = good && is(ask_copy(&worker, &host[i], &device, all, JOB_VERIFY, &again), 0);
        }
    uint64_t kept = mapped_by_worker();
    printf("# mapped before %llu MiB, kept %llu MiB\n", (unsigned long long)(before / MIB),
           (unsigned long long)(kept / MIB));
    ok(good && kept >= before + N * size, "host extents with a token stay mapped");
    struct ask_extent wrong = host[0];
    wrong.extent.size = 32 * MIB;
    ok(is(ask_copy(&worker, &device, &wrong, (struct ask_range){0, 0, MIB}, 0, NULL), HBM_E_BAD_REQUEST),
       "at one size only");
    /* Forgotten while a job uses it: the job's bytes arrive all the same. */
    struct job_copy_request r = {
        .source = device.extent, .target = host[1].extent, .bytes = size, .flags = JOB_CHECKSUM};
    int fds[] = {device.fd, host[1].fd};
    union job_reply reply = {0};
    uint32_t serial = 0, copy = ask_send(&worker, JOB_COPY, &r, fds, 2);
    struct job_destroy_request destroy = {.token = host[1].extent.token, .kind = JOB_EXTENT_HOST};
    ask_send(&worker, JOB_DESTROY, &destroy, NULL, 0);
    for (unsigned i = 0; i < 2; i++) {
        union job_reply one = {0};
        good = is(ask_receive(&worker, &serial, &one, NULL), 0) && good;
        if (serial == copy)
            reply = one;
    }
    ok(good && reply.copy.checksum == sum, "one that is forgotten serves the job that uses it");
    for (unsigned i = 0; i < N; i++)
        forget(host[i].extent.token);
    forget(12345);
    ok(mapped_by_worker() < before + size, "forgotten, they are mapped no longer");
    good = good && is(ask_copy(&worker, &device, &host[2], all, JOB_CHECKSUM, &again), 0) && again == sum;
    ok(good && mapped_by_worker() >= before + size, "used again, one is mapped again");
    for (unsigned i = 0; i < 50 && query().has_context; i++)
        nap(100);
    ok(mapped_by_worker() < before + size, "the context takes them along");
    good = good && is(ask_copy(&worker, &host[2], &device, all, JOB_VERIFY, &sum), 0);
    ok(good, "and the next context maps them again");
    for (unsigned i = 0; i < N; i++)
        ask_drop(&worker, &host[i]);
    ask_drop(&worker, &device);
    free(bytes);
}

static unsigned fds_of_worker(void)
{
    struct job_destroy_request nothing = {0};
    char path[40];
    unsigned n = 0;

    /* A reply's fd is closed after the reply; the answer to a next job of the same queue says that it is. */
    is(ask_job(&worker, JOB_DESTROY, &nothing, NULL, 0, NULL, NULL), 0);
    snprintf(path, sizeof(path), "/proc/%d/fd", worker.pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static void a_thousand_jobs_leave_memory_and_fds_as_they_were(void)
{
    struct ask_extent a = {.fd = -1}, b = {.fd = -1}, c = {.fd = -1};
    uint64_t sum;
    bool good =
        is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &b), 0) && is(ask_hash(&worker, &b, 0, 9, &sum), 0);
    unsigned before = fds_of_worker();
    uint64_t free_before = query().free_bytes;

    for (unsigned i = 0; good && i < 200; i++) {
        good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4 * MIB, &a), 0) &&
               is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, 4 * MIB, &c), 0) &&
               is(ask_copy(&worker, &b, &a, (struct ask_range){0, 0, 4 * MIB}, 0, NULL), 0) &&
               is(ask_copy(&worker, &a, &c, (struct ask_range){0, 0, 4 * MIB}, JOB_CHECKSUM, &sum), 0);
        ask_drop(&worker, &a), ask_drop(&worker, &c);
    }
    uint64_t free_after = query().free_bytes;
    ok(good && fds_of_worker() == before, "a thousand jobs leave the worker's fds as they were");
    ok(good && free_after + 8 * MIB >= free_before, "and the device's free memory");
    ask_drop(&worker, &b);
}

static void clients_lists_who_has_a_context(void)
{
    struct job_clients_request request = {.n = 2, .pids = {(uint32_t)worker.pid, 1}};
    union job_reply reply = {0};
    struct ask_extent e = {.fd = -1};
    uint64_t hash;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, 4, &e), 0) && is(ask_hash(&worker, &e, 0, 4, &hash), 0) &&
                is(ask_job(&worker, JOB_CLIENTS, &request, NULL, 0, &reply, NULL), 0);

    if (good && reply.clients.n == 0)
        printf("# NVML does not list this process: another PID namespace?\n");
    ok(good && reply.clients.n <= 1 && (reply.clients.n == 0 || reply.clients.pids[0] == (uint32_t)worker.pid),
       "CLIENTS lists of the pids asked those with a context");
    ask_drop(&worker, &e);
}

/* What the books are made of; how the driver counts an exported extent is printed, not assumed. */
static void the_driver_names_the_worker_and_counts_what_it_made(void)
{
    struct ask_extent e = {.fd = -1}, block = {.fd = -1};
    uint64_t hash, before = query().used_bytes, context = 0, both = 0;
    const uint64_t size = 512 * MIB;
    bool good = is(ask_create(&worker, JOB_EXTENT_DEVICE, size, &e), 0);
    uint64_t with = query().used_bytes;

    printf("# used before %llu, with an extent of %llu: %llu\n", (unsigned long long)before,
           (unsigned long long)size, (unsigned long long)with);
    ok(good && with >= before + size && with < before + size + 64 * MIB,
       "an extent shows in what the driver counts as used");
    good = is(ask_create(&worker, JOB_EXTENT_CUDA_IPC, size, &block), 0) &&
           is(ask_hash(&worker, &e, 0, 4, &hash), 0);
    struct job_query_reply said = query();
    for (uint32_t i = 0; i < said.n && i < 32; i++) {
        printf("# the driver counts %llu bytes of pid %u%s\n", (unsigned long long)said.holders[i].bytes,
               said.holders[i].pid, said.holders[i].pid == (uint32_t)worker.pid ? ", the worker" : "");
        if (said.holders[i].pid == (uint32_t)worker.pid)
            both = said.holders[i].bytes;
    }
    ask_drop(&worker, &block);
    said = query();
    for (uint32_t i = 0; i < said.n && i < 32; i++)
        if (said.holders[i].pid == (uint32_t)worker.pid)
            context = said.holders[i].bytes;
    printf("# the worker with %llu MiB exported, %llu MiB in a block: %llu; without the block: %llu\n",
           (unsigned long long)(size / MIB), (unsigned long long)(size / MIB), (unsigned long long)both,
           (unsigned long long)context);
    ok(good && said.tells_holders && said.n >= 1, "the driver tells who uses the device");
    ok(!both || both >= context + size, "and counts a cuda-ipc block as the worker's");
    ask_drop(&worker, &e);
    ok(query().used_bytes < with - size / 2, "until it is dropped");
}

int main(int argc, char **argv)
{
    program = argc > 1 ? argv[1] : getenv("HBM_WORKER_CUDA") ? getenv("HBM_WORKER_CUDA") : "build/hbm-worker-cuda";
    directory = argc > 2 ? argv[2] : "/var/tmp";
    signal(SIGPIPE, SIG_IGN);
    if (!probe()) {
        printf("# no GPU that %s can use\n", program);
        return 77;
    }
    starting_creates_no_context();
    host_memory_is_made_ahead_without_a_context();
    size_makes_no_difference(JOB_EXTENT_DEVICE, "device");
    size_makes_no_difference(JOB_EXTENT_CUDA_IPC, "cuda-ipc");
    cuda_ipc_blocks_live_until_destroyed();
    memory_outlives_the_worker();
    the_context_goes_when_idle_and_comes_back();
    codecs_agree_with_plain_arithmetic(JOB_EXTENT_DEVICE, "device");
    codecs_agree_with_plain_arithmetic(JOB_EXTENT_HOST, "host");
    a_large_buffer_is_coded_in_pieces();
    files_go_straight_to_device_memory();
    the_disk_goes_by_what_was_measured_to_be_faster();
    what_is_no_memory_is_refused();
    a_large_copy_can_be_cancelled();
    host_extents_with_a_token_stay_mapped();
    a_thousand_jobs_leave_memory_and_fds_as_they_were();
    clients_lists_who_has_a_context();
    the_driver_names_the_worker_and_counts_what_it_made();
    ok(ask_stop(&worker) == 0, "the worker ends with 0 at end of file");
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
