/* What the host worker copies and hashes, and the checksums of it. */
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/unit/worker_fixture.h"

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
    munmap(from, size);
    for (unsigned i = 0; i < 3; i++)
        drop(&e[i]);
}

static void spans_of_any_size_are_hashed_by_one_job(void **state)
{
    enum { N = 5000 };
    static struct job_span spans[N];
    static uint64_t hashes[N];
    uint64_t at = 7, size;

    (void)state;
    for (unsigned i = 0; i < N; i++) { /* some end where a chunk of 16 MiB does, some reach over one or two */
        uint64_t bytes = i == 1000 ? 16 * MIB + spans[0].offset - at : i == 2000 ? 16 * MIB : i == 3000 ? 40 * MIB + 1 : 1 + i % 700;
        spans[i] = (struct job_span){at, bytes};
        at += bytes + (i > 2000 && i % 3 ? i % 300 : 0);
    }
    size = (at + 4095) / 4096 * 4096;
    struct ask_extent e[] = {make(JOB_EXTENT_DEVICE, size), make(JOB_EXTENT_DISK, size)};
    unsigned char *from = map(&e[0]);
    fill(from, size, 5);
    expect(ask_copy(&worker, &e[0], &e[1], (struct ask_range){0, 0, size}, 0, NULL), 0);
    for (unsigned i = 0; i < 2; i++) {
        expect(ask_hashes(&worker, &e[i], spans, N, hashes), 0);
        for (unsigned j = 0; j < N; j++)
            assert_int_equal(hashes[j], XXH3_64bits(from + spans[j].offset, spans[j].bytes));
    }
    munmap(from, size);
    drop(&e[0]), drop(&e[1]);
}

static void spans_that_are_none_are_refused(void **state)
{
    struct ask_extent e = make(JOB_EXTENT_DEVICE, 4096);
    uint64_t hashes[3];
    const struct job_span wrong[][3] = {
        {{0, 16}, {32, 0}, {64, 16}},         /* empty */
        {{0, 64}, {32, 16}, {64, 16}},        /* into each other */
        {{64, 16}, {0, 16}, {128, 16}},       /* before where it begins */
        {{0, 16}, {64, 1024}, {512, 16}},     /* beyond where it ends */
        {{0, 16}, {32, UINT64_MAX}, {64, 16}},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        expect(ask_hashes(&worker, &e, wrong[i], 3, hashes), HBM_E_BAD_REQUEST);
    expect(ask_hash(&worker, &e, 0, 4096, hashes), 0);
    drop(&e);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_WORKER(a_copy_moves_its_bytes_and_no_others),
        WITH_WORKER(a_copy_makes_its_target_where_it_is_asked_to),
        WITH_WORKER(the_checksum_is_the_same_on_every_path),
        cmocka_unit_test(without_io_uring_plain_reads_and_writes_do),
        WITH_WORKER(parts_of_a_copy_have_the_hashes_of_the_whole),
        WITH_WORKER(a_hash_is_plain_xxh3_of_any_kind_of_extent),
        WITH_WORKER(spans_of_any_size_are_hashed_by_one_job),
        WITH_WORKER(spans_that_are_none_are_refused),
        WITH_WORKER(a_cancelled_job_ends_early_and_a_queued_one_never_runs),
        WITH_WORKER(long_jobs_tell_their_progress_and_short_ones_do_not),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker_copy", tests, NULL, NULL));
}
