/* The CUDA worker on a real GPU: what it copies, encodes, reads and writes (worker_test.h). */
#include <math.h>

#include "tests/gpu/worker_test.h"

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

int main(int argc, char **argv)
{
    worker_tests_begin(argc, argv);
    ok(begin() == 0, "the worker starts");
    size_makes_no_difference(JOB_EXTENT_DEVICE, "device");
    size_makes_no_difference(JOB_EXTENT_CUDA_IPC, "cuda-ipc");
    codecs_agree_with_plain_arithmetic(JOB_EXTENT_DEVICE, "device");
    codecs_agree_with_plain_arithmetic(JOB_EXTENT_HOST, "host");
    a_large_buffer_is_coded_in_pieces();
    files_go_straight_to_device_memory();
    the_disk_goes_by_what_was_measured_to_be_faster();
    a_large_copy_can_be_cancelled();
    return worker_tests_end();
}
