/* The host worker as a process, as hbmd sees it: its start, its extents, what it refuses, and its end. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/unit/worker_fixture.h"

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

static void what_is_made_ahead_has_its_pages_and_they_are_zeros(void **state)
{
    struct ask_extent e;
    struct stat status;

    (void)state;
    expect(ask_create_with(&worker, JOB_EXTENT_HOST, 100 * MIB + 5, JOB_AHEAD, &e), 0);
    assert_int_equal(fstat(e.fd, &status), 0);
    assert_int_equal(status.st_blocks, e.extent.size / 512);
    unsigned char *bytes = map(&e);
    for (uint64_t at = 0; at < e.extent.size; at += 4096)
        assert_int_equal(bytes[at], 0);
    munmap(bytes, e.extent.size);
    drop(&e);
}

static void nothing_is_made_ahead_where_memory_is_short_or_of_another_kind(void **state)
{
    struct ask_extent e;
    uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) * 4096 / 2;

    (void)state;
    expect(ask_create_with(&worker, JOB_EXTENT_HOST, half, JOB_AHEAD, &e), HBM_E_NO_MEMORY);
    expect(ask_create_with(&worker, JOB_EXTENT_DEVICE, 4096, JOB_AHEAD, &e), HBM_E_BAD_REQUEST);
    expect(ask_create_with(&worker, JOB_EXTENT_DISK, 4096, JOB_AHEAD, &e), HBM_E_BAD_REQUEST);
    expect(ask_create_with(&worker, JOB_EXTENT_DISK, 4096, JOB_IN_PIECES, &e), HBM_E_BAD_REQUEST);
    expect(ask_create_with(&worker, JOB_EXTENT_HOST, 4096, JOB_AHEAD | 1, &e), HBM_E_BAD_REQUEST);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_job_must_be_start_and_only_the_first),
        WITH_WORKER(a_new_extent_is_whole_pages_of_zeros_whose_size_is_sealed),
        WITH_WORKER(extents_that_cannot_be_are_refused),
        WITH_WORKER(what_is_made_ahead_has_its_pages_and_they_are_zeros),
        WITH_WORKER(nothing_is_made_ahead_where_memory_is_short_or_of_another_kind),
        WITH_WORKER(of_roots_rights_the_worker_keeps_what_copies_need),
        WITH_WORKER(malformed_requests_are_refused_and_the_worker_goes_on),
        cmocka_unit_test(faults_strike_where_they_are_asked_for),
        cmocka_unit_test(a_fault_that_is_asked_for_once_strikes_one_worker_only),
        WITH_WORKER(a_thousand_jobs_leave_the_fds_as_they_were),
        cmocka_unit_test(the_worker_dies_with_its_owner),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker", tests, NULL, NULL));
}
