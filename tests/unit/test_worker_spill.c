/* The host worker's disk tier: spill files, encrypted or not, and a disk that is full or not there. */
#include <sched.h>
#include <sys/mount.h>

#include "tests/unit/worker_fixture.h"

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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_WORKER(one_flipped_bit_on_disk_is_a_checksum_error),
        cmocka_unit_test(encrypted_spill_files_come_back_the_same_on_every_path),
        cmocka_unit_test(an_encrypted_spill_file_holds_no_16_bytes_of_what_was_spilled),
        cmocka_unit_test(a_spill_file_opens_with_its_own_key_and_name_alone),
        cmocka_unit_test(a_key_that_is_none_is_refused),
        WITH_WORKER(disk_extents_are_written_in_whole_blocks_and_never_from_a_file),
        cmocka_unit_test(a_full_disk_is_said_when_the_extent_is_made),
        cmocka_unit_test(without_a_state_directory_there_is_no_disk_tier),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker_spill", tests, NULL, NULL));
}
