#include "tests/unit/worker_fixture.h"

#include <dirent.h>
#include <signal.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

const char *program;
char state_dir[] = "/var/tmp/test-worker-XXXXXX";
struct ask worker;

int begin(void **state)
{
    (void)state;
    ask_start(&worker, program);
    return ask_begin(&worker, "host", state_dir, 0, NULL);
}

int end(void **state)
{
    (void)state;
    return ask_stop(&worker);
}

void expect(int status, int wanted)
{
    if (status != wanted)
        fail_msg("%s, not %s: %s", hbm_error_name(status), hbm_error_name(wanted), worker.detail);
}

struct ask_extent make(unsigned kind, uint64_t size)
{
    struct ask_extent extent;

    expect(ask_create(&worker, kind, size, &extent), 0);
    return extent;
}

void drop(struct ask_extent *extent)
{
    ask_drop(&worker, extent);
}

unsigned char *map(const struct ask_extent *extent)
{
    unsigned char *bytes = mmap(NULL, extent->extent.size, PROT_READ | PROT_WRITE, MAP_SHARED, extent->fd, 0);

    assert_ptr_not_equal(bytes, MAP_FAILED);
    return bytes;
}

void fill(unsigned char *bytes, uint64_t size, uint64_t seed)
{
    for (uint64_t i = 0; i < size; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(seed >> 56);
    }
}

uint64_t expected_checksum(const unsigned char *bytes, uint64_t size)
{
    uint64_t hashes[128], n = 0;

    for (uint64_t at = 0; at < size; at += MIB)
        hashes[n++] = XXH3_64bits(bytes + at, size - at < MIB ? size - at : MIB);
    return XXH3_64bits(hashes, n * sizeof(*hashes));
}

unsigned fds_of_worker(void)
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

void round_trip(uint64_t bytes, uint64_t offset)
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

int ranges_memfd(const struct job_range *ranges, unsigned n)
{
    int fd = memfd_sealed("ranges", ranges, n * sizeof(*ranges));

    assert_true(fd >= 0);
    return fd;
}

int user_file(const unsigned char *bytes, size_t size)
{
    int fd = open(state_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    return fd;
}

void worker_tests_begin(int argc, char **argv)
{
    program = argc > 1 ? argv[1] : getenv("HBM_WORKER");
    if (!program) {
        fprintf(stderr, "name the worker: HBM_WORKER or an argument\n");
        exit(77);
    }
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(state_dir))
        exit(1);
}

int worker_tests_end(int failed)
{
    rmdir(state_dir);
    return failed;
}
