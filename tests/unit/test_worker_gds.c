/* The host worker with a cuFile library that is not one (fake_cufile.c): what goes by it, what does not, and what
 * becomes of a copy when it fails. How fast it is decides which way is kept, so either may be. */
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include "tests/unit/worker_fixture.h"

#define MEASURED (18 * 16 * MIB) /* the least that is measured */
#define SIZE (MEASURED + 16 * MIB)
#define WHOLE ((struct ask_range){0, 0, SIZE})

static char library[PATH_MAX];
static struct ask_extent device, disk, back;

static void begin_wanted(unsigned wanted)
{
    struct job_start_request request = {.uuid = "host", .gpudirect = wanted, .spill_key = worker.spill_key >= 0};

    snprintf(request.state_dir, sizeof(request.state_dir), "%s", state_dir);
    expect(ask_job(&worker, JOB_START, &request, &worker.spill_key, request.spill_key, NULL, NULL), 0);
    device = make(JOB_EXTENT_DEVICE, SIZE), disk = make(JOB_EXTENT_DISK, SIZE),
    back = make(JOB_EXTENT_DEVICE, SIZE);
    unsigned char *bytes = map(&device);
    for (uint64_t i = 0; i < SIZE; i += 4096)
        fill(bytes + i, 16, i);
    munmap(bytes, SIZE);
}

/* wrong: what the library does (fake_cufile.c). NULL: there is none. */
static void begin_with(const char *wrong, unsigned wanted)
{
    if (wrong) {
        setenv("HBM_WORKER_CUFILE", library, 1);
        setenv("HBM_FAKE_CUFILE", wrong, 1);
    }
    ask_start(&worker, program);
    unsetenv("HBM_WORKER_CUFILE");
    unsetenv("HBM_FAKE_CUFILE");
    begin_wanted(wanted);
}

static void finish(void)
{
    drop(&device), drop(&disk), drop(&back);
    assert_int_equal(end(NULL), 0);
}

static bool is_direct(int file)
{
    char path[40];
    void *block = aligned_alloc(4096, 4096);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    bool direct = fd >= 0 && pread(fd, block, 4096, 0) >= 0;
    free(block);
    if (fd >= 0)
        close(fd);
    return direct;
}

static struct job_query_reply query(void)
{
    struct job_query_request request = {0};
    union job_reply reply = {0};

    expect(ask_job(&worker, JOB_QUERY, &request, NULL, 0, &reply, NULL), 0);
    return reply.query;
}

static uint64_t down(void)
{
    uint64_t sum = 0;

    expect(ask_copy(&worker, &device, &disk, WHOLE, JOB_CHECKSUM, &sum), 0);
    return sum;
}

/* As a copy to memory has it: always the same. */
static uint64_t device_sum(void)
{
    static uint64_t sum;

    if (!sum)
        expect(ask_copy(&worker, &device, &back, WHOLE, JOB_CHECKSUM, &sum), 0);
    return sum;
}

static void there_and_back(void)
{
    uint64_t sum = down();

    expect(ask_copy(&worker, &disk, &back, WHOLE, JOB_VERIFY, &sum), 0);
    unsigned char *from = map(&device), *to = map(&back);
    assert_memory_equal(from, to, SIZE);
    memset(to, 0, SIZE);
    munmap(from, SIZE), munmap(to, SIZE);
}

static void nothing_was_measured(void)
{
    struct job_query_reply reply = query();

    for (unsigned i = 0; i < 2; i++)
        assert_true(!reply.staged_rates[i] && !reply.straight_rates[i]);
}

static void the_first_large_copy_each_way_measures_both_and_those_after_it_keep_the_choice(void **state)
{
    (void)state;
    begin_with("", 1);
    if (!is_direct(disk.fd))
        skip();
    unsigned fds = fds_of_worker();
    assert_int_equal(down(), device_sum());
    struct job_query_reply first = query();
    assert_int_equal(first.gpudirect, JOB_GPUDIRECT_THERE);
    assert_true(first.staged_rates[1] && first.straight_rates[1] && !first.staged_rates[0]);
    there_and_back();
    struct job_query_reply both = query();
    assert_true(both.staged_rates[0] && both.straight_rates[0]);
    there_and_back();
    struct job_query_reply last = query();
    assert_int_equal(last.gpudirect, JOB_GPUDIRECT_THERE);
    assert_int_equal(last.straight_rates[1], first.straight_rates[1]);
    assert_memory_equal(last.straight_rates, both.straight_rates, sizeof(last.straight_rates));
    assert_int_equal(fds_of_worker(), fds);
    finish();
}

static void what_is_not_whole_blocks_is_staged_within_the_same_copy(void **state)
{
    struct ask_range odd = {4096, 256, MEASURED + 5};

    (void)state;
    begin_with("", 1);
    down();
    unsigned char *from = map(&device), *to = map(&back);
    for (unsigned i = 0; i < 2; i++, odd.target_offset = 8192) {
        expect(ask_copy(&worker, &disk, &back, odd, JOB_CHECKSUM, NULL), 0);
        assert_memory_equal(from + odd.source_offset, to + odd.target_offset, odd.bytes);
    }
    assert_true(to[odd.target_offset + odd.bytes] == 0);
    munmap(from, SIZE), munmap(to, SIZE);
    finish();
}

static void a_wrong_byte_is_a_checksum_error(void **state)
{
    (void)state;
    begin_with("byte", 1);
    if (!is_direct(disk.fd))
        skip();
    uint64_t sum = down();
    expect(ask_copy(&worker, &disk, &back, WHOLE, JOB_VERIFY, &sum), HBM_E_CHECKSUM);
    finish();
}

static void where_it_fails_the_copy_is_staged_and_it_is_not_used_again(void **state)
{
    static const char *const wrongs[] = {"driver", "file", "memory", "read", "write"};

    (void)state;
    for (unsigned i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        begin_with(wrongs[i], 1);
        if (i < 3) /* before there is anything to come back */
            assert_int_equal(down(), device_sum());
        else
            there_and_back();
        if (is_direct(disk.fd))
            assert_int_equal(query().gpudirect, JOB_GPUDIRECT_FAILED);
        finish();
    }
}

static void a_small_copy_or_a_limited_one_measures_nothing(void **state)
{
    struct job_limit_request limits = {0};

    (void)state;
    begin_with("", 1);
    expect(ask_copy(&worker, &device, &disk, (struct ask_range){0, 0, MEASURED - 16 * MIB}, 0, NULL), 0);
    nothing_was_measured();
    limits.limits[JOB_LINK_DISK_WRITE] = limits.limits[JOB_LINK_DISK_READ] = UINT64_C(1) << 50;
    expect(ask_job(&worker, JOB_LIMIT, &limits, NULL, 0, NULL, NULL), 0);
    there_and_back();
    nothing_was_measured();
    finish();
}

static void what_is_encrypted_never_goes_by_it(void **state)
{
    struct job_spill_key key = {.id = 1, .key = {1}};
    int fd = memfd_sealed("key", &key, sizeof(key));

    (void)state;
    setenv("HBM_WORKER_CUFILE", library, 1);
    ask_start(&worker, program);
    unsetenv("HBM_WORKER_CUFILE");
    worker.spill_key = fd;
    begin_wanted(1);
    there_and_back();
    nothing_was_measured();
    assert_int_equal(query().gpudirect, JOB_GPUDIRECT_THERE);
    finish();
    close(fd);
}

static void where_it_is_off_or_absent_all_is_as_ever(void **state)
{
    (void)state;
    begin_with("", 0);
    down();
    nothing_was_measured();
    assert_int_equal(query().gpudirect, JOB_GPUDIRECT_OFF);
    finish();
    begin_with(NULL, 1);
    down();
    nothing_was_measured();
    assert_int_equal(query().gpudirect, JOB_GPUDIRECT_ABSENT);
    finish();
}

/* A disk takes minutes for what memory takes seconds for: newer kernels let tmpfs take O_DIRECT. */
static void use_tmpfs(void)
{
    struct statvfs room;
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 && is_direct(fd) && !fstatvfs(fd, &room) && room.f_bavail > 2 * SIZE / room.f_frsize)
        memcpy(state_dir, "/dev/shm", strlen("/dev/shm"));
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_large_copy_each_way_measures_both_and_those_after_it_keep_the_choice),
        cmocka_unit_test(what_is_not_whole_blocks_is_staged_within_the_same_copy),
        cmocka_unit_test(a_wrong_byte_is_a_checksum_error),
        cmocka_unit_test(where_it_fails_the_copy_is_staged_and_it_is_not_used_again),
        cmocka_unit_test(a_small_copy_or_a_limited_one_measures_nothing),
        cmocka_unit_test(what_is_encrypted_never_goes_by_it),
        cmocka_unit_test(where_it_is_off_or_absent_all_is_as_ever),
    };
    char self[PATH_MAX - 32] = "";

    use_tmpfs();
    worker_tests_begin(argc, argv);
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        return 1;
    snprintf(library, sizeof(library), "%s/fake_cufile.so", dirname(self));
    return worker_tests_end(cmocka_run_group_tests_name("worker_gds", tests, NULL, NULL));
}
