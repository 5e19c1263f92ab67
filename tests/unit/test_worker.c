/* The host worker, as hbmd sees it: the real binary (HBM_WORKER or the first argument) at the end of a socketpair.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/worker/ask.h"
#include "proto/memfd.h"

#define MIB ((uint64_t)1 << 20)

static const char *program;
static char state_dir[] = "/var/tmp/test-worker-XXXXXX";
static struct ask worker;

static int begin(void **state)
{
    (void)state;
    ask_start(&worker, program);
    return ask_begin(&worker, "host", state_dir, 0, NULL);
}

static int end(void **state)
{
    (void)state;
    return ask_stop(&worker);
}

static void expect(int status, int wanted)
{
    if (status != wanted)
        fail_msg("%s, not %s: %s", hbm_error_name(status), hbm_error_name(wanted), worker.detail);
}

static struct ask_extent make(unsigned kind, uint64_t size)
{
    struct ask_extent extent;

    expect(ask_create(&worker, kind, size, &extent), 0);
    return extent;
}

static void drop(struct ask_extent *extent)
{
    ask_drop(&worker, extent);
}

static unsigned char *map(const struct ask_extent *extent)
{
    unsigned char *bytes = mmap(NULL, extent->extent.size, PROT_READ | PROT_WRITE, MAP_SHARED, extent->fd, 0);

    assert_ptr_not_equal(bytes, MAP_FAILED);
    return bytes;
}

static void fill(unsigned char *bytes, uint64_t size, uint64_t seed)
{
    for (uint64_t i = 0; i < size; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(seed >> 56);
    }
}

static uint64_t expected_checksum(const unsigned char *bytes, uint64_t size)
{
    uint64_t hashes[128], n = 0;

    for (uint64_t at = 0; at < size; at += MIB)
        hashes[n++] = XXH3_64bits(bytes + at, size - at < MIB ? size - at : MIB);
    return XXH3_64bits(hashes, n * sizeof(*hashes));
}

static unsigned fds_of_worker(void)
{
    struct job_destroy_request nothing = {0};
    struct job_query_request query = {0};
    char path[40];
    unsigned n = 0;

    /* A reply's fd is closed after the reply; the answer to a next job of the same queue says that it is. What a
     * copy has is let go of after its answer, which QUERY waits for. */
    expect(ask_job(&worker, JOB_QUERY, &query, NULL, 0, NULL, NULL), 0);
    expect(ask_job(&worker, JOB_DESTROY, &nothing, NULL, 0, NULL, NULL), 0);
    snprintf(path, sizeof(path), "/proc/%d/fd", worker.pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void the_first_job_must_be_start_and_only_the_first(void **state)
{
    struct job_query_request query = {0};
    union job_reply reply;

    (void)state;
    ask_start(&worker, program);
    expect(ask_job(&worker, JOB_QUERY, &query, NULL, 0, &reply, NULL), HBM_E_BAD_REQUEST);
    expect(ask_begin(&worker, "GPU-00000000-0000-0000-0000-000000000000", state_dir, 0, &reply), HBM_E_NO_DEVICE);
    expect(ask_begin(&worker, "host", state_dir, 0, &reply), 0);
    assert_true(reply.start.total_bytes > MIB && reply.start.can_fd && !reply.start.can_cuda_ipc);
    assert_int_equal(reply.start.granularity, sysconf(_SC_PAGESIZE));
    expect(ask_begin(&worker, "host", state_dir, 0, &reply), HBM_E_BAD_REQUEST);
    expect(ask_job(&worker, JOB_QUERY, &query, NULL, 0, &reply, NULL), 0);
    assert_int_equal(reply.query.has_context, 0);
    assert_int_equal(ask_stop(&worker), 0);
}

static void a_new_extent_is_whole_pages_of_zeros_whose_size_is_sealed(void **state)
{
    struct ask_extent e = make(JOB_EXTENT_DEVICE, 5000);
    unsigned char *bytes = map(&e);

    (void)state;
    assert_int_equal(e.extent.size, 8192);
    assert_true(bytes[0] == 0 && bytes[8191] == 0);
    assert_int_equal(ftruncate(e.fd, 4096), -1);
    munmap(bytes, 8192);
    drop(&e);
}

static void extents_that_cannot_be_are_refused(void **state)
{
    struct ask_extent e;

    (void)state;
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, 0, &e), HBM_E_BAD_REQUEST);
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, (uint64_t)1 << 63, &e), HBM_E_NO_MEMORY);
    expect(ask_create(&worker, JOB_EXTENT_HOST, UINT64_MAX, &e), HBM_E_NO_MEMORY);
    expect(ask_create(&worker, JOB_EXTENT_DISK, UINT64_MAX, &e), HBM_E_TOO_LARGE);
    expect(ask_create(&worker, JOB_EXTENT_DISK, (uint64_t)1 << 60, &e), HBM_E_NO_SPACE);
    expect(ask_create(&worker, JOB_EXTENT_CUDA_IPC, 4096, &e), HBM_E_UNSUPPORTED);
    expect(ask_create(&worker, 4, 4096, &e), HBM_E_BAD_REQUEST);
}

static void a_copy_moves_its_bytes_and_no_others(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_DEVICE, 3 * MIB), b = make(JOB_EXTENT_HOST, 3 * MIB);
    unsigned char *from = map(&a), *to = map(&b);

    (void)state;
    fill(from, 3 * MIB, 1);
    expect(ask_copy(&worker, &a, &b, (struct ask_range){256, 512, 1000}, 0, NULL), 0);
    assert_memory_equal(to + 512, from + 256, 1000);
    assert_true(to[511] == 0 && to[1512] == 0);
    expect(ask_copy(&worker, &a, &b, (struct ask_range){3 * MIB, 0, 0}, 0, NULL), 0);
    munmap(from, 3 * MIB);
    munmap(to, 3 * MIB);
    drop(&a);
    drop(&b);
}

static void round_trip(uint64_t bytes, uint64_t offset)
{
    uint64_t size = bytes + offset + 4096, sums[3] = {0};
    struct ask_extent device = make(JOB_EXTENT_DEVICE, size), host = make(JOB_EXTENT_HOST, size),
                      disk = make(JOB_EXTENT_DISK, size), disk2 = make(JOB_EXTENT_DISK, size),
                      back = make(JOB_EXTENT_DEVICE, size);
    unsigned char *from = map(&device), *to = map(&back);

    fill(from, size, bytes);
    assert_int_equal(disk.extent.size % 4096, 0);
    expect(ask_copy(&worker, &device, &host, (struct ask_range){offset, 0, bytes}, JOB_CHECKSUM, &sums[0]), 0);
    assert_int_equal(sums[0], expected_checksum(from + offset, bytes));
    struct ask_range whole = {0, 0, disk.extent.size};
    expect(ask_copy(&worker, &device, &disk, whole, JOB_CHECKSUM, &sums[1]), 0);
    assert_int_equal(sums[1], expected_checksum(from, whole.bytes));
    expect(ask_copy(&worker, &disk, &disk2, whole, JOB_VERIFY, &sums[1]), 0);
    sums[2] = sums[0];
    expect(ask_copy(&worker, &device, &back, (struct ask_range){offset, 0, bytes}, JOB_VERIFY, &sums[2]), 0);
    expect(ask_copy(&worker, &device, &back, (struct ask_range){offset, 0, bytes}, JOB_VERIFY | JOB_TO_PEER, &sums[2]), 0);
    expect(ask_copy(&worker, &device, &back, (struct ask_range){offset, 0, bytes}, JOB_VERIFY | JOB_FROM_PEER, &sums[2]), 0);
    expect(ask_copy(&worker, &disk2, &back, (struct ask_range){offset, offset, bytes}, JOB_VERIFY, &sums[2]), 0);
    assert_true(sums[0] == sums[2]);
    assert_memory_equal(from + offset, to + offset, bytes);
    munmap(from, device.extent.size);
    munmap(to, back.extent.size);
    drop(&device), drop(&host), drop(&disk), drop(&disk2), drop(&back);
}

static void the_checksum_is_the_same_on_every_path(void **state)
{
    static const uint64_t sizes[] = {4,        4095,         4096,         2 * MIB - 1,
                                     16 * MIB, 16 * MIB + 1, 41 * MIB + 5, 80 * MIB + 1};

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned offset = 0; offset <= 256; offset += 256)
            round_trip(sizes[i], offset);
}

static void without_io_uring_plain_reads_and_writes_do(void **state)
{
    (void)state;
    setenv("HBM_WORKER_NO_URING", "1", 1);
    begin(NULL);
    unsetenv("HBM_WORKER_NO_URING");
    round_trip(21 * MIB + 3, 256);
    round_trip(8192, 0);
    assert_int_equal(end(NULL), 0);
}

static void one_flipped_bit_on_disk_is_a_checksum_error(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_DEVICE, 20 * MIB), disk = make(JOB_EXTENT_DISK, 20 * MIB);
    unsigned char *from = map(&a), byte;
    uint64_t sum = 0;

    (void)state;
    fill(from, 20 * MIB, 3);
    expect(ask_copy(&worker, &a, &disk, (struct ask_range){0, 0, 20 * MIB}, JOB_CHECKSUM, &sum), 0);
    assert_int_equal(pread(disk.fd, &byte, 1, 18 * MIB), 1);
    byte ^= 4;
    assert_int_equal(pwrite(disk.fd, &byte, 1, 18 * MIB), 1);
    expect(ask_copy(&worker, &disk, &a, (struct ask_range){0, 0, 20 * MIB}, JOB_VERIFY, &sum), HBM_E_CHECKSUM);
    assert_non_null(strstr(worker.detail, "stored were"));
    assert_int_equal(ftruncate(disk.fd, MIB), 0);
    expect(ask_copy(&worker, &disk, &a, (struct ask_range){0, 0, 20 * MIB}, JOB_VERIFY, &sum), HBM_E_IO);
    munmap(from, 20 * MIB);
    drop(&a), drop(&disk);
}

static int ranges_memfd(const struct job_range *ranges, unsigned n)
{
    int fd = memfd_sealed("ranges", ranges, n * sizeof(*ranges));

    assert_true(fd >= 0);
    return fd;
}

static int user_file(const unsigned char *bytes, size_t size)
{
    int fd = open(state_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    return fd;
}

/* ---- Encrypted spill files ---- */

static int key_memfd(unsigned seed)
{
    struct job_spill_key key = {.id = seed};

    fill(key.key, sizeof(key.key), seed);
    int fd = memfd_sealed("key", &key, sizeof(key));
    assert_true(fd >= 0);
    return fd;
}

static void begin_with_key(int key)
{
    ask_start(&worker, program);
    worker.spill_key = key;
    expect(ask_begin(&worker, "host", state_dir, 0, NULL), 0);
}

static void encrypted_spill_files_come_back_the_same_on_every_path(void **state)
{
    int key = key_memfd(1);

    (void)state;
    begin_with_key(key);
    round_trip(4, 0);
    round_trip(4095, 256);
    round_trip(16 * MIB + 1, 4095);
    round_trip(41 * MIB + 5, 256);
    assert_int_equal(end(NULL), 0);
    close(key);
}

/* 16 bytes are what the cipher works on at a time. */
static void an_encrypted_spill_file_holds_no_16_bytes_of_what_was_spilled(void **state)
{
    uint64_t size = 17 * MIB, sum = 0;
    unsigned char *raw = malloc(size);
    int key = key_memfd(2);

    (void)state;
    begin_with_key(key);
    struct ask_extent memory = make(JOB_EXTENT_HOST, size), disk = make(JOB_EXTENT_DISK, size);
    unsigned char *plain = map(&memory);
    memset(plain, 'A', size);
    expect(ask_copy(&worker, &memory, &disk, (struct ask_range){0, 0, size}, JOB_CHECKSUM, &sum), 0);
    assert_int_equal(sum, expected_checksum(plain, size));
    assert_int_equal(pread(disk.fd, raw, size, 0), size);
    for (uint64_t at = 0; at < size; at += 16)
        assert_memory_not_equal(raw + at, plain, 16);
    /* Nor does it show where the same bytes lie twice. */
    for (uint64_t at = 4096; at < size; at += 4096)
        assert_memory_not_equal(raw + at, raw, 16);
    munmap(plain, size);
    drop(&memory), drop(&disk);
    assert_int_equal(end(NULL), 0);
    free(raw), close(key);
}

static void a_spill_file_opens_with_its_own_key_and_name_alone(void **state)
{
    int key = key_memfd(3), other = key_memfd(4);
    const struct ask_range whole = {0, 0, 2 * MIB};
    uint64_t sum = 0;

    (void)state;
    begin_with_key(key);
    struct ask_extent memory = make(JOB_EXTENT_HOST, 2 * MIB), disk = make(JOB_EXTENT_DISK, 2 * MIB),
                      renamed = disk;
    expect(ask_copy(&worker, &memory, &disk, whole, JOB_CHECKSUM, &sum), 0);
    renamed.extent.token++;
    expect(ask_copy(&worker, &renamed, &memory, whole, JOB_VERIFY, &sum), HBM_E_CHECKSUM);
    renamed.extent.token--, renamed.extent.encrypted = 0;
    expect(ask_copy(&worker, &renamed, &memory, whole, JOB_VERIFY, &sum), HBM_E_CHECKSUM);
    expect(ask_copy(&worker, &disk, &memory, whole, JOB_VERIFY, &sum), 0);
    assert_int_equal(end(NULL), 0);
    begin_with_key(other);
    expect(ask_copy(&worker, &disk, &memory, whole, JOB_VERIFY, &sum), HBM_E_CHECKSUM);
    assert_int_equal(end(NULL), 0);
    begin_with_key(-1);
    expect(ask_copy(&worker, &disk, &memory, whole, JOB_VERIFY, &sum), HBM_E_LOST);
    assert_int_equal(end(NULL), 0);
    begin_with_key(key);
    expect(ask_copy(&worker, &disk, &memory, whole, JOB_VERIFY, &sum), 0);
    drop(&memory), drop(&disk);
    assert_int_equal(end(NULL), 0);
    close(key), close(other);
}

static void a_key_that_is_none_is_refused(void **state)
{
    struct job_spill_key nameless = {.key = {1}};
    int unsealed = memfd_create("key", MFD_CLOEXEC),
        wrong[] = {memfd_sealed("key", "short", 5), memfd_sealed("key", &nameless, sizeof(nameless))};

    (void)state;
    assert_int_equal(ftruncate(unsealed, sizeof(nameless)), 0);
    ask_start(&worker, program);
    worker.spill_key = unsealed;
    expect(ask_begin(&worker, "host", state_dir, 0, NULL), HBM_E_BAD_REQUEST);
    for (unsigned i = 0; i < 2; i++) {
        worker.spill_key = wrong[i];
        expect(ask_begin(&worker, "host", state_dir, 0, NULL), HBM_E_BAD_REQUEST);
        close(wrong[i]);
    }
    worker.spill_key = -1;
    expect(ask_begin(&worker, "host", state_dir, 0, NULL), 0);
    assert_int_equal(end(NULL), 0);
    close(unsealed);
}

static void disk_extents_are_written_in_whole_blocks_and_never_from_a_file(void **state)
{
    struct ask_extent memory = make(JOB_EXTENT_HOST, 8192), disk = make(JOB_EXTENT_DISK, 8192);
    struct job_range range = {0, 0, 4096};
    unsigned char page[4096] = {0};
    int file = user_file(page, sizeof(page)), memfd = ranges_memfd(&range, 1);

    (void)state;
    expect(ask_copy(&worker, &memory, &disk, (struct ask_range){0, 256, 4096}, 0, NULL), HBM_E_BAD_REQUEST);
    expect(ask_copy(&worker, &memory, &disk, (struct ask_range){0, 0, 4000}, 0, NULL), HBM_E_BAD_REQUEST);
    expect(ask_copy(&worker, &memory, &disk, (struct ask_range){256, 4096, 4096}, 0, NULL), 0);
    expect(ask_file(&worker, &disk, file, memfd, 1, false, NULL), HBM_E_BAD_REQUEST);
    memory.extent.encrypted = 1;
    expect(ask_copy(&worker, &memory, &disk, (struct ask_range){0, 0, 4096}, 0, NULL), HBM_E_BAD_REQUEST);
    close(file), close(memfd);
    drop(&memory), drop(&disk);
}

static void a_hash_is_plain_xxh3_of_any_kind_of_extent(void **state)
{
    uint64_t size = 35 * MIB, offset = 1000, bytes = 33 * MIB + 7, hash;
    struct ask_extent e[] = {make(JOB_EXTENT_DEVICE, size), make(JOB_EXTENT_HOST, size),
                             make(JOB_EXTENT_DISK, size)};
    unsigned char *from = map(&e[0]);

    (void)state;
    fill(from, size, 4);
    uint64_t wanted = XXH3_64bits(from + offset, bytes);
    for (unsigned i = 0; i < 3; i++) {
        if (i)
            expect(ask_copy(&worker, &e[0], &e[i], (struct ask_range){0, 0, size}, 0, NULL), 0);
        expect(ask_hash(&worker, &e[i], offset, bytes, &hash), 0);
        assert_int_equal(hash, wanted);
    }
    expect(ask_hash(&worker, &e[0], 0, 0, &hash), 0);
    assert_int_equal(hash, XXH3_64bits(NULL, 0));
    munmap(from, size);
    for (unsigned i = 0; i < 3; i++)
        drop(&e[i]);
}

static struct job_code code_of(unsigned codec, uint64_t n)
{
    return (struct job_code){
        .data_offset = 256,
        .dims = {n},
        .rank = 1,
        .dtype = HBM_F32,
        .encoding = {.codec = (uint8_t)codec, .stored = (uint8_t)hbm_codec_stored_dtype(codec)}};
}

static void a_buffer_is_encoded_within_its_bounds_and_decoded_again(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 4096), stored = make(JOB_EXTENT_HOST, 4096);
    struct job_encode_request encode = {
        .source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_INT8, 256)};
    struct job_decode_request decode = {.source = stored.extent, .target = raw.extent, .code = encode.code};
    int fds[] = {raw.fd, stored.fd}, back[] = {stored.fd, raw.fd};
    float *x = (float *)map(&raw);
    union job_reply reply;

    (void)state;
    for (int i = 0; i < 256; i++)
        x[i] = (float)(i - 128) / 64;
    encode.min_sqnr_db = 30;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    const struct hbm_receipt *receipt = &reply.encode.receipt;
    assert_true(receipt->bytes_before == 1024 && receipt->bytes_after == 260 && receipt->elements == 256);
    assert_true(receipt->sqnr_db > 30 && receipt->max_abs_error < 0.02);
    memset(x, 0, 1024);
    expect(ask_job(&worker, JOB_DECODE, &decode, back, 2, &reply, NULL), 0);
    assert_true(fabsf(x[0] + 2) < 0.02f && fabsf(x[192] - 1) < 0.02f);
    x[0] = 1.999f; /* what was decoded would encode without any error */
    for (int i = 1; i < 256; i++)
        x[i] = (float)(i - 128) / 77;
    encode.min_sqnr_db = 300;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), HBM_E_QUALITY);
    assert_non_null(strstr(worker.detail, "300.00 dB"));
    encode.min_sqnr_db = 0, encode.max_error = 1e-9;
    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), HBM_E_QUALITY);
    munmap(x, 4096);
    drop(&raw), drop(&stored);
}

static void codes_that_do_not_fit_are_refused(void **state)
{
    struct ask_extent raw = make(JOB_EXTENT_DEVICE, 4096), stored = make(JOB_EXTENT_DEVICE, 4096),
                      disk = make(JOB_EXTENT_DISK, 4096);
    const struct job_encode_request good = {
        .source = raw.extent, .target = stored.extent, .code = code_of(HBM_CODEC_FP16, 64)};
    struct job_encode_request r;
    int fds[] = {raw.fd, stored.fd}, to_disk[] = {raw.fd, disk.fd};

    (void)state;
    expect(ask_job(&worker, JOB_ENCODE, &good, fds, 2, NULL, NULL), 0);
    r = good, r.code.dims[0] = 2000;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.data_offset = 128;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.raw_offset = UINT64_MAX - 255;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.code.dtype = HBM_I32;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.code.encoding.codec = 200;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.code.rank = 9;
    expect(ask_job(&worker, JOB_ENCODE, &r, fds, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    r = good, r.target = disk.extent;
    expect(ask_job(&worker, JOB_ENCODE, &r, to_disk, 2, NULL, NULL), HBM_E_UNSUPPORTED);
    drop(&raw), drop(&stored), drop(&disk);
}

/* ---- Packing ---- */

/* An arena of three: floats for fp16 over more than one batch, raw bytes, rows for int8, cut as the owner would, with a
 * gap in one batch and a piece that is longer than one. */
enum { WIDE = 11 << 20, ODD = 70001, ROWS = 40, ROW = 700000, TAIL = 12345 };
#define WIDE_AT ((uint64_t)256)
#define BYTES_AT ((uint64_t)WIDE_AT + WIDE * 4)
#define ROWS_AT ((uint64_t)(BYTES_AT + ODD + 255) / 256 * 256)
#define TAIL_AT ((uint64_t)ROWS_AT + (uint64_t)ROWS * ROW * 4)
#define RAW_SIZE ((uint64_t)TAIL_AT + TAIL * 4)
#define BATCH (16 * MIB)

static struct job_piece halves(uint64_t from, uint64_t n, uint64_t at)
{
    return (struct job_piece){.raw_offset = WIDE_AT + from * 4,
                              .data_offset = at,
                              .dims = {1, 1, n},
                              .encoding = {.codec = HBM_CODEC_FP16, .stored = HBM_F16},
                              .dtype = HBM_F32};
}

static struct job_piece rows(uint64_t from, uint64_t n, uint64_t at)
{
    uint64_t data = n * ROW;

    return (struct job_piece){
        .raw_offset = ROWS_AT + from * ROW * 4,
        .data_offset = at,
        .scale_offset = (at + data + 255) / 256 * 256,
        .dims = {1, n, ROW},
        .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 1, .stored = HBM_I8},
        .dtype = HBM_F32,
        .receipt = 1};
}

struct packed {
    struct ask_extent raw, packed;
    struct job_piece pieces[6];
    int table;
};

static struct packed make_packed(unsigned kind)
{
    uint64_t halves_end = 2 * (uint64_t)WIDE, bytes_at = (halves_end + 255) / 256 * 256;
    struct packed p = {.raw = make(JOB_EXTENT_DEVICE, RAW_SIZE), .packed = make(kind, 6 * BATCH)};
    unsigned char *raw = map(&p.raw);
    float *x = (float *)(void *)(raw + WIDE_AT), *y = (float *)(void *)(raw + ROWS_AT);

    fill(raw, RAW_SIZE, 7);
    for (uint64_t i = 0; i < WIDE; i++)
        x[i] = (float)((i * 2654435761u) % 100003) / 37 - 1000;
    for (uint64_t i = 0; i < (uint64_t)ROWS * ROW + TAIL; i++)
        y[i] = (float)((i * 40503) % 9973) / 9973 * (float)(1 + i / ROW) - 1;
    munmap(raw, p.raw.extent.size);
    p.pieces[0] = halves(0, BATCH / 2, 0);
    p.pieces[1] = halves(BATCH / 2, WIDE - BATCH / 2, BATCH);
    p.pieces[2] = (struct job_piece){.raw_offset = BYTES_AT, .data_offset = bytes_at, .dims = {1, 1, ODD}};
    p.pieces[3] = rows(0, 15, 2 * BATCH);
    p.pieces[4] = rows(15, 25, 3 * BATCH); /* longer than a batch, so that it may go on into the next */
    p.pieces[5] = (struct job_piece){.raw_offset = TAIL_AT,
                                     .data_offset = 4 * BATCH + 3 * MIB,
                                     .dims = {1, 1, TAIL},
                                     .encoding = {.codec = HBM_CODEC_BF16, .stored = HBM_BF16},
                                     .dtype = HBM_F32,
                                     .receipt = 2};
    p.table = memfd_sealed("pieces", p.pieces, 6 * sizeof(p.pieces[0]));
    return p;
}

static void drop_packed(struct packed *p)
{
    close(p->table);
    drop(&p->raw);
    drop(&p->packed);
}

static int ask_pack(struct packed *p, unsigned opcode, unsigned flags, uint64_t expected, union job_reply *reply, int *fd)
{
    struct job_pack_request request = {.raw = p->raw.extent,
                                       .packed = p->packed.extent,
                                       .bytes = p->packed.extent.size,
                                       .expected = expected,
                                       .flags = flags,
                                       .n_pieces = 6,
                                       .n_receipts = 3};
    int fds[] = {p->raw.fd, p->packed.fd, p->table};
    unsigned skip = flags & JOB_MAKE_TARGET ? 1 : 0;

    return ask_job(&worker, opcode, &request, fds + skip, 3 - skip, reply, fd);
}

/* What ENCODE and DECODE make of it. */
static void recode(struct packed *p, struct job_code code, struct hbm_receipt *receipt)
{
    struct ask_extent stored = make(JOB_EXTENT_HOST, 64 * MIB);
    struct job_encode_request encode = {.source = p->raw.extent, .target = stored.extent, .code = code};
    struct job_decode_request decode = {.source = stored.extent, .target = p->raw.extent, .code = code};
    int fds[] = {p->raw.fd, stored.fd}, back[] = {stored.fd, p->raw.fd};
    union job_reply reply;

    expect(ask_job(&worker, JOB_ENCODE, &encode, fds, 2, &reply, NULL), 0);
    *receipt = reply.encode.receipt;
    expect(ask_job(&worker, JOB_DECODE, &decode, back, 2, NULL, NULL), 0);
    drop(&stored);
}

static void recode_all(struct packed *p, struct hbm_receipt receipts[3])
{
    struct job_code code = {.raw_offset = WIDE_AT,
                            .rank = 1,
                            .dims = {WIDE},
                            .dtype = HBM_F32,
                            .encoding = {.codec = HBM_CODEC_FP16, .stored = HBM_F16}};

    recode(p, code, &receipts[0]);
    code = (struct job_code){.raw_offset = ROWS_AT,
                             .scale_offset = 32 * MIB,
                             .rank = 2,
                             .dims = {ROWS, ROW},
                             .dtype = HBM_F32,
                             .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .stored = HBM_I8}};
    recode(p, code, &receipts[1]);
    code = (struct job_code){.raw_offset = TAIL_AT,
                             .rank = 1,
                             .dims = {TAIL},
                             .dtype = HBM_F32,
                             .encoding = {.codec = HBM_CODEC_BF16, .stored = HBM_BF16}};
    recode(p, code, &receipts[2]);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void check_receipts(int fd, const struct hbm_receipt wanted[3])
{
    size_t size;
    struct hbm_receipt *receipts = memfd_map_sealed(fd, 4096, &size);

    assert_non_null(receipts);
    assert_int_equal(size, 3 * sizeof(*receipts));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(receipts[i].elements, wanted[i].elements);
        assert_int_equal(receipts[i].bytes_before, wanted[i].bytes_before);
        assert_int_equal(receipts[i].bytes_after, wanted[i].bytes_after);
        assert_true(is_near(receipts[i].sqnr_db, wanted[i].sqnr_db));
        assert_true(receipts[i].max_abs_error == wanted[i].max_abs_error);
    }
    munmap(receipts, size);
    close(fd);
}

static void pack_there_and_back(unsigned kind)
{
    struct packed p = make_packed(kind);
    struct hbm_receipt receipts[3];
    union job_reply reply;
    int fd = -1, made = -1;

    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    uint64_t checksum = reply.pack.checksum;
    recode_all(&p, receipts);
    check_receipts(fd, receipts);
    unsigned char *wanted = map(&p.raw), *got = NULL;
    /* Into memory that it makes. */
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY | JOB_MAKE_TARGET, checksum, &reply, &made), 0);
    assert_int_equal(reply.unpack.checksum, checksum);
    struct ask_extent fresh = {.extent = p.raw.extent, .fd = made};
    got = map(&fresh);
    assert_memory_equal(got + WIDE_AT, wanted + WIDE_AT, (size_t)WIDE * 4 + ODD);
    assert_memory_equal(got + ROWS_AT, wanted + ROWS_AT, (size_t)(RAW_SIZE - ROWS_AT));
    munmap(got, RAW_SIZE);
    close(made);
    /* And into memory that is there. */
    memset(wanted, 0xee, 4096);
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    assert_true(wanted[0] == 0xee && wanted[WIDE_AT] != 0xee); /* between the buffers it writes nothing */
    munmap(wanted, p.raw.extent.size);
    drop_packed(&p);
}

static void an_arena_is_packed_as_its_buffers_are_encoded_and_comes_back_as_they_are_decoded(void **state)
{
    (void)state;
    pack_there_and_back(JOB_EXTENT_HOST);
    pack_there_and_back(JOB_EXTENT_DISK);
}

static void a_packed_copy_says_the_same_as_a_copy_of_it(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST), q;
    struct ask_extent disk = make(JOB_EXTENT_DISK, p.packed.extent.size);
    uint64_t checksum = 0;
    union job_reply reply;
    int fd = -1;

    (void)state;
    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    close(fd);
    expect(ask_copy(&worker, &p.packed, &disk, (struct ask_range){0, 0, p.packed.extent.size}, JOB_CHECKSUM, &checksum), 0);
    assert_int_equal(checksum, reply.pack.checksum);
    q = p;
    q.packed = disk;
    expect(ask_pack(&q, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    drop(&disk);
    drop_packed(&p);
}

static void a_flipped_bit_in_what_is_packed_is_seen_wherever_it_is(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST);
    static const uint64_t places[] = {0, BATCH + 5, 3 * BATCH - 1, 4 * BATCH, 6 * BATCH - 1};
    unsigned char *bytes = map(&p.packed);
    union job_reply reply;
    uint64_t checksum;
    int fd = -1;

    (void)state;
    expect(ask_pack(&p, JOB_PACK, JOB_CHECKSUM, 0, &reply, &fd), 0);
    close(fd);
    checksum = reply.pack.checksum;
    assert_int_equal(bytes[3 * BATCH - 1], 0); /* between pieces */
    for (unsigned i = 0; i < 5; i++) {
        bytes[places[i]] ^= 4;
        expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), HBM_E_CHECKSUM);
        bytes[places[i]] ^= 4;
    }
    expect(ask_pack(&p, JOB_UNPACK, JOB_VERIFY, checksum, &reply, NULL), 0);
    munmap(bytes, p.packed.extent.size);
    drop_packed(&p);
}

static void pieces_that_do_not_fit_are_refused(void **state)
{
    struct packed p = make_packed(JOB_EXTENT_HOST);
    unsigned fds = fds_of_worker();

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        struct job_piece bad[6];
        memcpy(bad, p.pieces, sizeof(bad));
        switch (i) {
        case 0: bad[1].data_offset = 0; break; /* before the end of the last one */
        case 1: bad[5].raw_offset = RAW_SIZE - 4; break;
        case 2: bad[5].data_offset = 6 * BATCH - 256; break;
        case 3: bad[3].scale_offset = bad[3].data_offset; break;
        case 4: bad[3].encoding.axis = 0; break;
        case 5: bad[0].encoding.codec = 200; break;
        case 6: bad[0].dims[0] = UINT64_MAX; break;
        case 7: bad[5].receipt = 3; break;
        case 8: bad[0].raw_offset++; break;
        case 9: bad[2].dims[2] = 0; break;
        }
        close(p.table);
        p.table = memfd_sealed("pieces", bad, sizeof(bad));
        expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
        expect(ask_pack(&p, JOB_UNPACK, JOB_MAKE_TARGET, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    }
    close(p.table);
    p.table = memfd_sealed("pieces", p.pieces, 5 * sizeof(p.pieces[0]));
    expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    close(p.table);
    p.table = memfd_fixed("pieces", 6 * sizeof(p.pieces[0])); /* not sealed */
    expect(ask_pack(&p, JOB_PACK, 0, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    expect(ask_pack(&p, JOB_PACK, JOB_VERIFY, 0, NULL, NULL), HBM_E_BAD_REQUEST);
    assert_int_equal(fds_of_worker(), fds);
    drop_packed(&p);
}

static void a_packing_ends_early_when_it_is_cancelled(void **state)
{
    static const unsigned kinds[] = {JOB_EXTENT_HOST, JOB_EXTENT_DISK};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct packed p = make_packed(kinds[i / 2]);
        struct job_pack_request request = {.raw = p.raw.extent,
                                           .packed = p.packed.extent,
                                           .bytes = p.packed.extent.size,
                                           .flags = JOB_CHECKSUM,
                                           .n_pieces = 6,
                                           .n_receipts = 3};
        int fds[] = {p.raw.fd, p.packed.fd, p.table}, fd = -1, status;
        unsigned before = fds_of_worker();
        uint32_t answered, serial = ask_send(&worker, i % 2 ? JOB_UNPACK : JOB_PACK, &request, fds, 3);

        ask_cancel(&worker, serial);
        status = ask_receive(&worker, &answered, NULL, &fd);
        assert_int_equal(answered, serial);
        if (status) /* else it was faster */
            expect(status, HBM_E_CANCELLED);
        if (fd >= 0)
            close(fd);
        if (i < 2) /* else staging has made rings, and keeps them */
            assert_int_equal(fds_of_worker(), before);
        drop_packed(&p);
    }
}

static void a_file_is_read_whatever_the_order_and_overlap_of_its_ranges(void **state)
{
    enum { FILE_SIZE = 40 * 1024 * 1024 + 17, SMALL = 3000, N = SMALL + 4 };
    unsigned char *bytes = malloc(FILE_SIZE);
    struct job_range *ranges = calloc(N, sizeof(*ranges));
    union job_reply reply;

    (void)state;
    fill(bytes, FILE_SIZE, 5);
    int file = user_file(bytes, FILE_SIZE);
    /* Backwards: small neighbours 4001 bytes apart; then one over several windows to the end, one twice, one empty.
     */
    for (unsigned i = 0; i < SMALL; i++)
        ranges[i] = (struct job_range){(uint64_t)i * 4096, (uint64_t)(SMALL - i) * 4001, 3999 - i % 7};
    ranges[SMALL] = (struct job_range){32 * MIB, 777, FILE_SIZE - 777};
    ranges[SMALL + 1] = (struct job_range){90 * MIB, 16 * MIB - 5, 10};
    ranges[SMALL + 2] = (struct job_range){90 * MIB + 11, 16 * MIB - 5, 10};
    int memfd = ranges_memfd(ranges, N);
    for (unsigned kind = JOB_EXTENT_DEVICE; kind <= JOB_EXTENT_HOST; kind++) {
        if (kind == JOB_EXTENT_CUDA_IPC)
            continue;
        struct ask_extent e = make(kind, 91 * MIB);
        expect(ask_file(&worker, &e, file, memfd, N, false, &reply), 0);
        unsigned char *got = map(&e);
        uint64_t total = 0;
        for (unsigned i = 0; i < N; i++) {
            assert_memory_equal(got + ranges[i].extent_offset, bytes + ranges[i].file_offset, ranges[i].bytes);
            total += ranges[i].bytes;
        }
        assert_int_equal(got[SMALL * 4096 + 5000], 0);
        assert_int_equal(reply.file.bytes, total);
        munmap(got, e.extent.size);
        drop(&e);
    }
    close(memfd), close(file), free(ranges), free(bytes);
}

static void a_file_is_written_range_by_range(void **state)
{
    struct ask_extent e = make(JOB_EXTENT_DEVICE, 40 * MIB);
    unsigned char *from = map(&e), *got = malloc(40 * MIB);
    struct job_range ranges[] = {{1000, 100, 20 * MIB}, {30 * MIB, 0, 100}, {31 * MIB, 21 * MIB, 4097}};
    int file = user_file((const unsigned char *)"x", 1), memfd = ranges_memfd(ranges, 3);

    (void)state;
    fill(from, 40 * MIB, 6);
    expect(ask_file(&worker, &e, file, memfd, 3, true, NULL), 0);
    assert_int_equal(pread(file, got, 40 * MIB, 0), 21 * MIB + 4097);
    for (unsigned i = 0; i < 3; i++)
        assert_memory_equal(got + ranges[i].file_offset, from + ranges[i].extent_offset, ranges[i].bytes);
    assert_int_equal(got[20 * MIB + 200], 0);
    munmap(from, 40 * MIB);
    close(file), close(memfd), free(got);
    drop(&e);
}

static void files_that_cannot_be_used_are_refused(void **state)
{
    struct ask_extent e = make(JOB_EXTENT_DEVICE, 8192);
    struct job_range range = {0, 0, 8192}, beyond = {4096, 0, 8192};
    int file = user_file((const unsigned char *)"short", 5), memfd = ranges_memfd(&range, 1),
        wide = ranges_memfd(&beyond, 1);
    char path[40];
    int pipe_fds[2], unsealed = memfd_create("ranges", MFD_CLOEXEC);

    (void)state;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    int read_only = open(path, O_RDONLY | O_CLOEXEC), write_only = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    expect(ask_file(&worker, &e, file, memfd, 1, false, NULL), HBM_E_IO);
    assert_non_null(strstr(worker.detail, "shorter than 8192"));
    expect(ask_file(&worker, &e, file, wide, 1, false, NULL), HBM_E_BAD_REQUEST);
    expect(ask_file(&worker, &e, file, memfd, 2, false, NULL), HBM_E_BAD_REQUEST);
    expect(ask_file(&worker, &e, file, memfd, 0, false, NULL), HBM_E_BAD_REQUEST);
    expect(ask_file(&worker, &e, file, unsealed, 1, false, NULL), HBM_E_BAD_REQUEST);
    expect(ask_file(&worker, &e, pipe_fds[0], memfd, 1, false, NULL), HBM_E_INVALID);
    expect(ask_file(&worker, &e, read_only, memfd, 1, true, NULL), HBM_E_DENIED);
    expect(ask_file(&worker, &e, write_only, memfd, 1, false, NULL), HBM_E_DENIED);
    assert_int_equal(fcntl(file, F_SETFL, O_APPEND), 0);
    expect(ask_file(&worker, &e, file, memfd, 1, true, NULL), HBM_E_INVALID);
    close(file), close(memfd), close(wide), close(unsealed), close(pipe_fds[0]), close(pipe_fds[1]);
    close(read_only), close(write_only);
    drop(&e);
}

static void files_of_the_kernels_own_are_refused_both_ways(void **state)
{
    static const char *const paths[] = {"/proc/self/comm", "/sys/kernel/profiling", "/proc/sys/vm/overcommit_ratio",
                                        "/sys/fs/cgroup/cgroup.procs"};
    struct ask_extent e = make(JOB_EXTENT_HOST, 4096);
    struct job_range range = {0, 0, 1};
    int memfd = ranges_memfd(&range, 1);
    unsigned found = 0;

    (void)state;
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        int file = open(paths[i], O_RDWR | O_CLOEXEC);
        if (file < 0)
            continue;
        found++;
        expect(ask_file(&worker, &e, file, memfd, 1, true, NULL), HBM_E_INVALID);
        expect(ask_file(&worker, &e, file, memfd, 1, false, NULL), HBM_E_INVALID);
        close(file);
    }
    assert_true(found);
    int device = open("/dev/zero", O_RDWR | O_CLOEXEC), path = open(state_dir, O_RDONLY | O_CLOEXEC);
    expect(ask_file(&worker, &e, device, memfd, 1, true, NULL), HBM_E_INVALID);
    expect(ask_file(&worker, &e, path, memfd, 1, false, NULL), HBM_E_INVALID);
    close(device), close(path), close(memfd);
    drop(&e);
}

static unsigned long long capabilities_of_worker(const char *set)
{
    char path[40], line[128];
    unsigned long long found = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", worker.pid);
    FILE *status = fopen(path, "re");
    assert_non_null(status);
    while (fgets(line, sizeof(line), status))
        if (!strncmp(line, set, strlen(set)))
            found = strtoull(line + strlen(set), NULL, 16);
    fclose(status);
    return found;
}

static void of_roots_rights_the_worker_keeps_what_copies_need(void **state)
{
    const unsigned long long kept = 1u << 2 | 1u << 7 | 1u << 14; /* DAC_READ_SEARCH, SETUID, IPC_LOCK */

    (void)state;
    assert_int_equal(capabilities_of_worker("CapPrm:") & ~kept, 0);
    assert_int_equal(capabilities_of_worker("CapEff:") & ~kept, 0);
    assert_int_equal(capabilities_of_worker("CapInh:"), 0);
}

/* The kernel asks who writes, not who opened: root's write would leave a set-user-ID bit where it is. */
static void a_clients_file_is_written_as_that_client_would(void **state)
{
    struct ask_extent e = make(JOB_EXTENT_HOST, 4096);
    struct job_range range = {0, 0, 100};
    int memfd = ranges_memfd(&range, 1), file = user_file((const unsigned char *)"program", 7);
    struct job_file_request r = {
        .extent = e.extent, .n_ranges = 1, .write = 1, .uid = geteuid() ? geteuid() : 65534};
    int fds[] = {e.fd, file, memfd};
    struct stat status;

    (void)state;
    if (r.uid != geteuid())
        assert_int_equal(fchown(file, r.uid, r.uid), 0);
    assert_int_equal(fchmod(file, 04777), 0);
    expect(ask_job(&worker, JOB_FILE, &r, fds, 3, NULL, NULL), 0);
    assert_int_equal(fstat(file, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0777);
    /* Its next job of our own is root's again: the state directory is. */
    struct ask_extent disk = make(JOB_EXTENT_DISK, 4096);
    drop(&disk);
    r.write = 0;
    expect(ask_job(&worker, JOB_FILE, &r, fds, 3, NULL, NULL), 0);
    close(memfd), close(file);
    drop(&e);
}

static void a_file_that_shrinks_or_grows_while_it_is_read_is_an_error_or_the_old_bytes(void **state)
{
    uint64_t size = 48 * MIB;
    struct ask_extent e = make(JOB_EXTENT_HOST, size);
    struct job_range range = {0, 0, size};
    struct job_file_request r = {.extent = e.extent, .n_ranges = 1, .uid = geteuid()};
    int memfd = ranges_memfd(&range, 1), file = open(state_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int fds[] = {e.fd, file, memfd};
    uint32_t serial;

    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(ftruncate(file, (off_t)size), 0);
        ask_send(&worker, JOB_FILE, &r, fds, 3);
        usleep(i * 1000);
        assert_int_equal(ftruncate(file, (off_t)(i % 2 ? 2 * size : 5 * MIB + 1)), 0);
        int status = ask_receive(&worker, &serial, NULL, NULL);
        assert_true(status == 0 || (status == HBM_E_IO && strstr(worker.detail, "shorter")));
    }
    close(memfd), close(file);
    drop(&e);
}

static void a_copy_makes_its_target_where_it_is_asked_to(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_HOST, 3 * MIB);
    struct job_copy_request r = {.source = a.extent, .target = a.extent, .bytes = 3 * MIB, .flags = JOB_MAKE_TARGET};
    unsigned char *from = map(&a);
    int fds[] = {a.fd, a.fd};

    (void)state;
    fill(from, 3 * MIB, 1);
    expect(ask_job(&worker, JOB_COPY, &r, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST); /* of host memory it makes none */
    struct ask_extent b = {.extent = {.kind = JOB_EXTENT_DEVICE, .size = 3 * MIB}, .fd = -1};
    r.target = b.extent;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r.flags |= JOB_CHECKSUM | JOB_VERIFY;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 1, NULL, &b.fd), HBM_E_CHECKSUM);
    assert_int_equal(b.fd, -1);
    r.flags = JOB_MAKE_TARGET;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 1, NULL, &b.fd), 0);
    assert_true(b.fd >= 0);
    unsigned char *to = map(&b);
    assert_memory_equal(to, from, 3 * MIB);
    munmap(from, 3 * MIB), munmap(to, 3 * MIB);
    drop(&a), drop(&b);
}

/* Part by part, one over its own way and one relayed: the hashes of both, one after the other, are those of the whole. */
static void parts_of_a_copy_have_the_hashes_of_the_whole(void **state)
{
    static const uint32_t relay[2] = {JOB_FROM_PEER, JOB_TO_PEER};
    uint64_t size = 70 * MIB + 4096, first = 37 * MIB;
    struct ask_extent sides[3] = {make(JOB_EXTENT_DEVICE, size), make(JOB_EXTENT_HOST, size), make(JOB_EXTENT_DEVICE, size)};
    unsigned char *from = map(&sides[0]), *to = map(&sides[2]);

    (void)state;
    fill(from, size, 3);
    for (unsigned way = 0; way < 2; way++) {
        uint64_t hashes[128], n = 0;
        for (unsigned part = 0; part < 2; part++) {
            struct job_copy_request r = {.source = sides[way].extent,
                                         .target = sides[way + 1].extent,
                                         .source_offset = part ? first : 0,
                                         .target_offset = part ? first : 0,
                                         .bytes = part ? size - first : first,
                                         .flags = JOB_HASHES | (part ? relay[way] : 0)};
            int fds[2], hashes_fd = -1;
            unsigned n_fds = ask_fds(&sides[way], &sides[way + 1], fds);
            union job_reply reply = {0};
            expect(ask_job(&worker, JOB_COPY, &r, fds, n_fds, &reply, &hashes_fd), 0);
            ssize_t got = pread(hashes_fd, hashes + n, sizeof(hashes) - n * sizeof(*hashes), 0);
            assert_true(got > 0);
            n += (uint64_t)got / sizeof(*hashes);
            close(hashes_fd);
        }
        assert_int_equal(n, 71);
        assert_int_equal(XXH3_64bits(hashes, n * sizeof(*hashes)), expected_checksum(from, size));
    }
    assert_memory_equal(from, to, size);
    munmap(from, sides[0].extent.size);
    munmap(to, sides[2].extent.size);
    drop(&sides[0]), drop(&sides[1]), drop(&sides[2]);
}

static void malformed_requests_are_refused_and_the_worker_goes_on(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_DEVICE, 4096), b = make(JOB_EXTENT_DEVICE, 4096);
    const struct job_copy_request good = {.source = a.extent, .target = b.extent, .bytes = 4096};
    struct job_copy_request r;
    struct packet_header header = {.opcode = 77, .serial = 9000};
    int fds[] = {a.fd, b.fd}, three[] = {a.fd, b.fd, b.fd}, pipe_fds[2], unsealed = memfd_create("x", MFD_CLOEXEC);
    uint32_t serial = 0;

    (void)state;
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    int wrong[] = {pipe_fds[0], b.fd}, loose[] = {unsealed, b.fd};
    expect(ask_job(&worker, JOB_COPY, &good, fds, 1, NULL, NULL), HBM_E_BAD_REQUEST);
    expect(ask_job(&worker, JOB_COPY, &good, three, 3, NULL, NULL), HBM_E_BAD_REQUEST);
    expect(ask_job(&worker, JOB_COPY, &good, wrong, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    expect(ask_job(&worker, JOB_COPY, &good, loose, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.source_offset = 1;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.target_offset = UINT64_MAX;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.source.kind = 9;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.source.size = 8192;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.flags = 64;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.flags = JOB_HASHES | JOB_VERIFY;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.flags = JOB_FROM_PEER | JOB_TO_PEER;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.flags = JOB_TO_PEER, r.target.kind = JOB_EXTENT_HOST;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 2, NULL, NULL), HBM_E_BAD_REQUEST);
    r = good, r.source.kind = JOB_EXTENT_CUDA_IPC;
    expect(ask_job(&worker, JOB_COPY, &r, fds, 1, NULL, NULL), HBM_E_UNSUPPORTED);
    packet_send(worker.fd, &header, "abc", 3, fds, 2);
    expect(ask_receive(&worker, &serial, NULL, NULL), HBM_E_BAD_REQUEST);
    assert_int_equal(serial, 9000);
    header.opcode = JOB_COPY;
    packet_send(worker.fd, &header, "abc", 3, NULL, 0);
    expect(ask_receive(&worker, &serial, NULL, NULL), HBM_E_BAD_REQUEST);
    assert_int_equal(write(worker.fd, "xy", 2), 2); /* no whole header: nobody to answer */
    expect(ask_job(&worker, JOB_COPY, &good, fds, 2, NULL, NULL), 0);
    close(pipe_fds[0]), close(pipe_fds[1]), close(unsealed);
    drop(&a), drop(&b);
}

static void a_cancelled_job_ends_early_and_a_queued_one_never_runs(void **state)
{
    uint64_t size = 1024 * MIB;
    struct ask_extent a = make(JOB_EXTENT_DEVICE, size), b = make(JOB_EXTENT_HOST, size);
    struct job_copy_request r = {.source = a.extent, .target = b.extent, .bytes = size, .flags = JOB_CHECKSUM};
    int fds[] = {a.fd, b.fd}, status[3];
    uint32_t first = ask_send(&worker, JOB_COPY, &r, fds, 2), second = ask_send(&worker, JOB_COPY, &r, fds, 2),
             serial = 0;

    (void)state;
    ask_cancel(&worker, second);
    ask_cancel(&worker, first);
    ask_cancel(&worker, 4000); /* nobody's: no harm */
    for (unsigned i = 0; i < 2; i++) {
        int got = ask_receive(&worker, &serial, NULL, NULL);
        assert_true(serial == first || serial == second);
        status[serial - first] = got;
    }
    expect(status[0], HBM_E_CANCELLED);
    expect(status[1], HBM_E_CANCELLED);
    drop(&a), drop(&b);
}

static void long_jobs_tell_their_progress_and_short_ones_do_not(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_DEVICE, 1536 * MIB), b = make(JOB_EXTENT_HOST, 1536 * MIB);
    struct timespec start, stop;

    (void)state;
    expect(ask_copy(&worker, &a, &b, (struct ask_range){0, 0, 4096}, 0, NULL), 0);
    assert_int_equal(worker.progress, 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    expect(ask_copy(&worker, &a, &b, (struct ask_range){0, 0, 1536 * MIB}, 0, NULL), 0);
    clock_gettime(CLOCK_MONOTONIC, &stop);
    double ms = (double)(stop.tv_sec - start.tv_sec) * 1e3 + (double)(stop.tv_nsec - start.tv_nsec) / 1e6;
    assert_true(worker.progress <= ms / 50);
    if (ms > 400)
        assert_true(worker.progress > 0);
    drop(&a), drop(&b);
}

static void a_full_disk_is_said_when_the_extent_is_made(void **state)
{
    char dir[] = "/tmp/test-worker-full-XXXXXX";
    struct ask_extent e;

    (void)state;
    if (geteuid() != 0 || !mkdtemp(dir) || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", dir, "tmpfs", 0, "size=8m") < 0)
        skip();
    ask_start(&worker, program);
    expect(ask_begin(&worker, "host", dir, 0, NULL), 0);
    expect(ask_create(&worker, JOB_EXTENT_DISK, 16 * MIB, &e), HBM_E_NO_SPACE);
    expect(ask_create(&worker, JOB_EXTENT_DISK, 4 * MIB, &e), 0);
    struct ask_extent more;
    expect(ask_create(&worker, JOB_EXTENT_DISK, 6 * MIB, &more), HBM_E_NO_SPACE);
    struct ask_extent memory = make(JOB_EXTENT_DEVICE, 16 * MIB);
    struct job_range range = {0, 0, 16 * MIB};
    int file = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), memfd = ranges_memfd(&range, 1);
    expect(ask_file(&worker, &memory, file, memfd, 1, true, NULL), HBM_E_NO_SPACE);
    close(file), close(memfd);
    drop(&e), drop(&memory);
    assert_int_equal(umount2(dir, MNT_DETACH), 0);
    rmdir(dir);
    expect(ask_create(&worker, JOB_EXTENT_DISK, 4096, &e), HBM_E_IO);
    assert_int_equal(ask_stop(&worker), 0);
}

static void without_a_state_directory_there_is_no_disk_tier(void **state)
{
    struct ask_extent e;

    (void)state;
    ask_start(&worker, program);
    expect(ask_begin(&worker, "host", "", 0, NULL), 0);
    expect(ask_create(&worker, JOB_EXTENT_DISK, 4096, &e), HBM_E_UNSUPPORTED);
    assert_int_equal(ask_stop(&worker), 0);
}

static void begin_with_fault(const char *fault)
{
    setenv("HBM_WORKER_FAULT", fault, 1);
    begin(NULL);
    unsetenv("HBM_WORKER_FAULT");
}

static void faults_strike_where_they_are_asked_for(void **state)
{
    struct ask_extent a, b;
    struct job_query_request query = {0};

    (void)state;
    begin_with_fault("create:nomem:2,copy:kill:2,hash:io");
    a = make(JOB_EXTENT_DEVICE, 4096);
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, 4096, &b), HBM_E_NO_MEMORY);
    b = make(JOB_EXTENT_DEVICE, 4096);
    uint64_t hash;
    expect(ask_hash(&worker, &a, 0, 4096, &hash), HBM_E_IO);
    expect(ask_copy(&worker, &a, &b, (struct ask_range){0, 0, 4096}, 0, NULL), 0);
    assert_int_equal(ask_copy(&worker, &a, &b, (struct ask_range){0, 0, 4096}, 0, NULL), ASK_GONE);
    drop(&a), drop(&b);
    int status = ask_stop(&worker);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    begin_with_fault("copy:hang");
    a = make(JOB_EXTENT_DEVICE, 4096);
    struct job_copy_request r = {.source = a.extent, .target = a.extent, .bytes = 64, .target_offset = 64};
    int fds[] = {a.fd, a.fd};
    ask_send(&worker, JOB_COPY, &r, fds, 2);
    expect(ask_job(&worker, JOB_QUERY, &query, NULL, 0, NULL, NULL), 0);
    drop(&a);
    assert_int_equal(ask_stop(&worker), 0);
}

static void a_fault_that_is_asked_for_once_strikes_one_worker_only(void **state)
{
    char path[60];
    struct ask_extent e;

    (void)state;
    snprintf(path, sizeof(path), "%s/once", state_dir);
    setenv("HBM_WORKER_FAULT_ONCE", path, 1);
    begin_with_fault("create:io");
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, 4096, &e), HBM_E_IO);
    assert_int_equal(end(NULL), 0);
    begin_with_fault("create:io");
    e = make(JOB_EXTENT_DEVICE, 4096);
    drop(&e);
    assert_int_equal(end(NULL), 0);
    unsetenv("HBM_WORKER_FAULT_ONCE");
    unlink(path);
}

static void a_thousand_jobs_leave_the_fds_as_they_were(void **state)
{
    struct ask_extent a = make(JOB_EXTENT_DEVICE, 8192), disk = make(JOB_EXTENT_DISK, 8192), e;
    uint64_t hash = 0;

    (void)state;
    unsigned before = fds_of_worker();
    for (unsigned i = 0; i < 250; i++) {
        expect(ask_copy(&worker, &a, &disk, (struct ask_range){0, 0, 8192}, JOB_CHECKSUM, &hash), 0);
        expect(ask_copy(&worker, &disk, &a, (struct ask_range){0, 4097, 8192}, 0, NULL), HBM_E_BAD_REQUEST);
        expect(ask_hash(&worker, &disk, 0, 8192, &hash), 0);
        expect(ask_create(&worker, i % 2 ? JOB_EXTENT_HOST : JOB_EXTENT_DISK, 4096, &e), 0);
        drop(&e);
    }
    assert_int_equal(fds_of_worker(), before);
    drop(&a), drop(&disk);
}

static void the_worker_dies_with_its_owner(void **state)
{
    int pipe_fds[2];
    struct ask child;

    (void)state;
    assert_int_equal(pipe2(pipe_fds, 0), 0);
    pid_t owner = fork();
    if (owner == 0) {
        /* The pipe's writing end stays open in the worker: end of file there means that it is gone. */
        ask_start(&child, program);
        int again = dup(child.fd);
        (void)again;
        if (ask_begin(&child, "host", state_dir, 0, NULL) == 0)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    close(pipe_fds[1]);
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
    int status;
    assert_int_equal(waitpid(owner, &status, 0), owner);
    assert_true(WIFSIGNALED(status));
}

int main(int argc, char **argv)
{
#define WITH_WORKER(test) cmocka_unit_test_setup_teardown(test, begin, end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_job_must_be_start_and_only_the_first),
        WITH_WORKER(a_new_extent_is_whole_pages_of_zeros_whose_size_is_sealed),
        WITH_WORKER(extents_that_cannot_be_are_refused),
        WITH_WORKER(a_copy_moves_its_bytes_and_no_others),
        WITH_WORKER(a_copy_makes_its_target_where_it_is_asked_to),
        WITH_WORKER(the_checksum_is_the_same_on_every_path),
        cmocka_unit_test(without_io_uring_plain_reads_and_writes_do),
        WITH_WORKER(one_flipped_bit_on_disk_is_a_checksum_error),
        cmocka_unit_test(encrypted_spill_files_come_back_the_same_on_every_path),
        cmocka_unit_test(an_encrypted_spill_file_holds_no_16_bytes_of_what_was_spilled),
        cmocka_unit_test(a_spill_file_opens_with_its_own_key_and_name_alone),
        cmocka_unit_test(a_key_that_is_none_is_refused),
        WITH_WORKER(disk_extents_are_written_in_whole_blocks_and_never_from_a_file),
        WITH_WORKER(a_hash_is_plain_xxh3_of_any_kind_of_extent),
        WITH_WORKER(a_buffer_is_encoded_within_its_bounds_and_decoded_again),
        WITH_WORKER(codes_that_do_not_fit_are_refused),
        WITH_WORKER(an_arena_is_packed_as_its_buffers_are_encoded_and_comes_back_as_they_are_decoded),
        WITH_WORKER(a_packed_copy_says_the_same_as_a_copy_of_it),
        WITH_WORKER(a_flipped_bit_in_what_is_packed_is_seen_wherever_it_is),
        WITH_WORKER(pieces_that_do_not_fit_are_refused),
        WITH_WORKER(a_packing_ends_early_when_it_is_cancelled),
        WITH_WORKER(a_file_is_read_whatever_the_order_and_overlap_of_its_ranges),
        WITH_WORKER(a_file_is_written_range_by_range),
        WITH_WORKER(files_that_cannot_be_used_are_refused),
        WITH_WORKER(files_of_the_kernels_own_are_refused_both_ways),
        WITH_WORKER(of_roots_rights_the_worker_keeps_what_copies_need),
        WITH_WORKER(a_clients_file_is_written_as_that_client_would),
        WITH_WORKER(a_file_that_shrinks_or_grows_while_it_is_read_is_an_error_or_the_old_bytes),
        WITH_WORKER(parts_of_a_copy_have_the_hashes_of_the_whole),
        WITH_WORKER(malformed_requests_are_refused_and_the_worker_goes_on),
        WITH_WORKER(a_cancelled_job_ends_early_and_a_queued_one_never_runs),
        WITH_WORKER(long_jobs_tell_their_progress_and_short_ones_do_not),
        cmocka_unit_test(a_full_disk_is_said_when_the_extent_is_made),
        cmocka_unit_test(without_a_state_directory_there_is_no_disk_tier),
        cmocka_unit_test(faults_strike_where_they_are_asked_for),
        cmocka_unit_test(a_fault_that_is_asked_for_once_strikes_one_worker_only),
        WITH_WORKER(a_thousand_jobs_leave_the_fds_as_they_were),
        cmocka_unit_test(the_worker_dies_with_its_owner),
    };

    program = argc > 1 ? argv[1] : getenv("HBM_WORKER");
    if (!program) {
        fprintf(stderr, "name the worker: HBM_WORKER or an argument\n");
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(state_dir))
        return 1;
    int failed = cmocka_run_group_tests_name("worker", tests, NULL, NULL);
    rmdir(state_dir);
    return failed;
}
