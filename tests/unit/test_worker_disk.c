/* The limits of the host worker's links, and what it says of its disk. A limit of one byte a second is one that nothing
 * gets past twice. */
#include "tests/unit/worker_fixture.h"

#define CHUNKS 3
#define BYTES (CHUNKS * 16 * MIB)

static struct ask_extent device, host, disk;

static void begin_with(union job_reply *reply)
{
    ask_start(&worker, program);
    expect(ask_begin(&worker, "host", state_dir, 0, reply), 0);
}

static int begin_with_extents(void **state)
{
    expect(begin(state), 0);
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, BYTES, &device), 0);
    expect(ask_create(&worker, JOB_EXTENT_HOST, BYTES, &host), 0);
    expect(ask_create(&worker, JOB_EXTENT_DISK, BYTES, &disk), 0);
    return 0;
}

static int end_with_extents(void **state)
{
    (void)state;
    ask_drop(&worker, &device), ask_drop(&worker, &host), ask_drop(&worker, &disk);
    return ask_stop(&worker);
}

static void limit(unsigned link, uint64_t bytes_a_second)
{
    struct job_limit_request request = {0};

    request.limits[link] = bytes_a_second;
    expect(ask_job(&worker, JOB_LIMIT, &request, NULL, 0, NULL, NULL), 0);
}

static uint32_t send_copy(const struct ask_extent *from, const struct ask_extent *to)
{
    struct job_copy_request r = {
        .source = from->extent, .target = to->extent, .bytes = BYTES, .flags = JOB_CHECKSUM};
    int fds[2];

    return ask_send(&worker, JOB_COPY, &r, fds, ask_fds(from, to, fds));
}

static int answer_of(uint32_t serial)
{
    uint32_t answered;
    int status = ask_receive(&worker, &answered, NULL, NULL);

    assert_int_equal(answered, serial);
    return status;
}

static const struct way {
    unsigned link;
    const struct ask_extent *from, *to;
} ways[] = {
    {JOB_LINK_DEVICE_TO_HOST, &device, &host},
    {JOB_LINK_HOST_TO_DEVICE, &host, &device},
    {JOB_LINK_DISK_WRITE, &device, &disk},
    {JOB_LINK_DISK_READ, &disk, &device},
};

static void a_job_that_its_limit_holds_back_is_cancelled_between_two_chunks(void **state)
{
    (void)state;
    for (unsigned i = 0; i < JOB_LINKS; i++) {
        limit(ways[i].link, 1);
        uint32_t serial = send_copy(ways[i].from, ways[i].to);
        ask_cancel(&worker, serial);
        expect(answer_of(serial), HBM_E_CANCELLED);
    }
}

static void the_other_links_go_on_beside_a_limited_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < JOB_LINKS; i++) {
        limit(ways[i].link, 1);
        uint32_t held = send_copy(ways[i].from, ways[i].to);
        for (unsigned k = 0; k < JOB_LINKS; k++)
            if (k != i)
                expect(answer_of(send_copy(ways[k].from, ways[k].to)), 0);
        ask_cancel(&worker, held);
        expect(answer_of(held), HBM_E_CANCELLED);
    }
}

static void who_waits_at_a_limit_goes_on_when_it_is_lifted(void **state)
{
    struct job_limit_request none = {0};

    (void)state;
    for (unsigned i = 0; i < JOB_LINKS; i++) {
        limit(ways[i].link, 1);
        uint32_t held = send_copy(ways[i].from, ways[i].to);
        uint32_t lifting = ask_send(&worker, JOB_LIMIT, &none, NULL, 0), first = 0, second = 0;
        int status = ask_receive(&worker, &first, NULL, NULL);
        expect(status, 0);
        expect(ask_receive(&worker, &second, NULL, NULL), 0);
        assert_true(first + second == held + lifting && first != second);
    }
}

static void how_far_a_held_job_is_is_told(void **state)
{
    struct packet packet;

    (void)state;
    limit(JOB_LINK_DISK_WRITE, 1);
    uint32_t held = send_copy(&device, &disk);
    assert_int_equal(packet_receive(worker.fd, &packet), 0);
    assert_int_equal(packet.header.opcode, JOB_PROGRESS);
    const struct job_progress_request *progress = (const void *)packet.body;
    assert_int_equal(progress->serial, held);
    assert_int_equal(progress->bytes, 16 * MIB);
    ask_cancel(&worker, held);
    expect(answer_of(held), HBM_E_CANCELLED);
}

static void the_limits_of_the_start_hold_from_the_first_job_on(void **state)
{
    struct job_start_request request = {.uuid = "host", .limits = {[JOB_LINK_DISK_WRITE] = 1}};

    (void)state;
    snprintf(request.state_dir, sizeof(request.state_dir), "%s", state_dir);
    ask_start(&worker, program);
    expect(ask_job(&worker, JOB_START, &request, NULL, 0, NULL, NULL), 0);
    expect(ask_create(&worker, JOB_EXTENT_DEVICE, BYTES, &device), 0);
    expect(ask_create(&worker, JOB_EXTENT_DISK, BYTES, &disk), 0);
    uint32_t held = send_copy(&device, &disk);
    ask_cancel(&worker, held);
    expect(answer_of(held), HBM_E_CANCELLED);
    ask_drop(&worker, &device), ask_drop(&worker, &disk);
    assert_int_equal(ask_stop(&worker), 0);
}

static void what_disks_are_used_by_is_said_at_the_start(void **state)
{
    union job_reply reply;

    (void)state;
    setenv("HBM_WORKER_NO_URING", "1", 1);
    begin_with(&reply);
    unsetenv("HBM_WORKER_NO_URING");
    assert_true(!reply.start.disk_ring && !reply.start.disk_errno);
    assert_int_equal(ask_stop(&worker), 0);
    begin_with(&reply);
    assert_true(reply.start.disk_ring != (reply.start.disk_errno != 0));
    assert_int_equal(ask_stop(&worker), 0);
}

static void a_spill_file_says_whether_it_goes_past_the_page_cache(void **state)
{
    struct job_create_request request = {.size = 4096, .kind = JOB_EXTENT_DISK};
    union job_reply reply = {0};
    char path[40];
    int fd = -1;

    (void)state;
    expect(begin(NULL), 0);
    expect(ask_job(&worker, JOB_CREATE, &request, NULL, 0, &reply, &fd), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    void *block = aligned_alloc(4096, 4096);
    assert_int_equal(reply.create.disk_direct, direct >= 0 && pread(direct, block, 4096, 0) >= 0);
    free(block), close(fd);
    if (direct >= 0)
        close(direct);
    assert_int_equal(ask_stop(&worker), 0);
}

int main(int argc, char **argv)
{
#define WITH_EXTENTS(test) cmocka_unit_test_setup_teardown(test, begin_with_extents, end_with_extents)
    const struct CMUnitTest tests[] = {
        WITH_EXTENTS(a_job_that_its_limit_holds_back_is_cancelled_between_two_chunks),
        WITH_EXTENTS(the_other_links_go_on_beside_a_limited_one),
        WITH_EXTENTS(who_waits_at_a_limit_goes_on_when_it_is_lifted),
        WITH_EXTENTS(how_far_a_held_job_is_is_told),
        cmocka_unit_test(the_limits_of_the_start_hold_from_the_first_job_on),
        cmocka_unit_test(what_disks_are_used_by_is_said_at_the_start),
        cmocka_unit_test(a_spill_file_says_whether_it_goes_past_the_page_cache),
    };

    worker_tests_begin(argc, argv);
    return worker_tests_end(cmocka_run_group_tests_name("worker_disk", tests, NULL, NULL));
}
