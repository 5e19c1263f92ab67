/* File I/O of the worker by itself: by a ring and without, on files that end early, are full or refuse. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail

#include "daemon/worker/io.h"

#define MIB ((size_t)1 << 20)
#define PAGES (16 * MIB)

static unsigned char *pages, *expected;
static struct io io;
static int fd;
static struct io_file file;

static int begin_with(bool ring)
{
    char path[] = "/var/tmp/test-io-XXXXXX";

    fd = mkostemp(path, O_CLOEXEC);
    unlink(path);
    pages = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expected = malloc(PAGES);
    if (fd < 0 || pages == MAP_FAILED || !expected)
        return -1;
    for (size_t i = 0; i < PAGES; i++)
        expected[i] = (unsigned char)(i * 2654435761u >> 24);
    if (!ring)
        setenv("HBM_WORKER_NO_URING", "1", 1);
    io = (struct io){0};
    io_file_open(&file, fd, true);
    return 0;
}

static int with_ring(void **state)
{
    (void)state;
    return begin_with(true);
}

static int without_ring(void **state)
{
    (void)state;
    return begin_with(false);
}

static int end(void **state)
{
    (void)state;
    unsetenv("HBM_WORKER_NO_URING");
    io_close(&io);
    io_file_close(&file);
    munmap(pages, PAGES);
    free(expected);
    return close(fd);
}

static void write_all(size_t size)
{
    struct failure failure = {0};

    memcpy(pages, expected, size);
    if (io_write(&io, &file, pages, size, 0, &failure))
        _fail(__FILE__, __LINE__);
}

static void what_is_written_is_read(void **state)
{
    struct failure failure = {0};
    size_t got;

    (void)state;
    write_all(PAGES);
    for (size_t offset = 0; offset < 3 * IO_ALIGN; offset += IO_ALIGN / 2) {
        memset(pages, 0, PAGES);
        assert_int_equal(io_read(&io, &file, pages, 9 * MIB, offset, &got, &failure), 0);
        assert_int_equal(got, 9 * MIB);
        assert_memory_equal(pages, expected + offset, 9 * MIB);
    }
}

static void a_file_that_ends_is_read_to_its_end(void **state)
{
    static const size_t ends[] = {0, 1, 4095, 4096, 4 * MIB, 4 * MIB + 1, 13 * MIB + 4097};
    struct failure failure = {0};
    size_t got;

    (void)state;
    write_all(PAGES);
    for (unsigned i = sizeof(ends) / sizeof(ends[0]); i--;) {
        assert_int_equal(ftruncate(fd, (off_t)ends[i]), 0);
        memset(pages, 0xaa, PAGES);
        assert_int_equal(io_read(&io, &file, pages, PAGES, 0, &got, &failure), 0);
        assert_int_equal(got, ends[i]);
        assert_memory_equal(pages, expected, ends[i]);
    }
}

/* The kernel writes what fits, and refuses the rest when it is asked again. */
static void a_write_that_ends_early_is_an_error_and_not_taken_for_done(void **state)
{
    struct rlimit limit, unlimited;
    struct failure failure = {0};

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &unlimited);
    for (size_t at = 0; at < PAGES; at += 3 * MIB) {
        limit = (struct rlimit){at, unlimited.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        failure = (struct failure){0};
        int error = io_write(&io, &file, pages, PAGES, 0, &failure);
        setrlimit(RLIMIT_FSIZE, &unlimited);
        assert_int_equal(error, HBM_E_TOO_LARGE);
        assert_non_null(strstr(failure.detail, "write"));
    }
    write_all(PAGES);
}

static void use(const char *path, int flags)
{
    io_file_close(&file);
    file.fd = open(path, flags | O_CLOEXEC);
    assert_true(file.fd >= 0);
}

static void a_full_disk_is_an_error(void **state)
{
    struct failure failure = {0};

    (void)state;
    use("/dev/full", O_RDWR);
    assert_int_equal(io_write(&io, &file, pages, PAGES, 0, &failure), HBM_E_NO_SPACE);
    assert_non_null(strstr(failure.detail, "No space left"));
    close(file.fd);
}

static void what_may_not_be_written_or_read_is_an_error(void **state)
{
    struct failure failure = {0};
    size_t got;

    (void)state;
    use("/dev/zero", O_RDONLY);
    assert_int_equal(io_write(&io, &file, pages, PAGES, 0, &failure), HBM_E_IO);
    close(file.fd);
    failure = (struct failure){0};
    use("/", O_RDONLY | O_DIRECTORY);
    assert_int_equal(io_read(&io, &file, pages, PAGES, 0, &got, &failure), HBM_E_IO);
    assert_non_null(strstr(failure.detail, "read"));
    close(file.fd);
}

#define BOTH(test) cmocka_unit_test_setup_teardown(test, with_ring, end), cmocka_unit_test_setup_teardown(test, without_ring, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(what_is_written_is_read),
        BOTH(a_file_that_ends_is_read_to_its_end),
        BOTH(a_write_that_ends_early_is_an_error_and_not_taken_for_done),
        BOTH(a_full_disk_is_an_error),
        BOTH(what_may_not_be_written_or_read_is_an_error),
    };

    return cmocka_run_group_tests_name("io", tests, NULL, NULL);
}
