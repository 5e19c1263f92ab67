/* Clients' files that the host worker reads and writes for them. */
#include <sys/stat.h>

#include "tests/unit/worker_fixture.h"

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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_WORKER(a_file_is_read_whatever_the_order_and_overlap_of_its_ranges),
        WITH_WORKER(a_file_is_written_range_by_range),
        WITH_WORKER(files_that_cannot_be_used_are_refused),
        WITH_WORKER(files_of_the_kernels_own_are_refused_both_ways),
        WITH_WORKER(a_clients_file_is_written_as_that_client_would),
        WITH_WORKER(a_file_that_shrinks_or_grows_while_it_is_read_is_an_error_or_the_old_bytes),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker_file", tests, NULL, NULL));
}
