/* libhbm when its daemon goes away and another comes: its session and the calls that are under way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include "tests/unit/libhbm_test.h"

static _Atomic bool slow_end; /* a reader hears late that the daemon is gone */
static _Atomic unsigned wakeups;

int __real_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout)
{
    wakeups++;
    return __real_epoll_wait(epoll, events, n, timeout);
}

int __real_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet)
{
    int error = __real_packet_receive(socket, packet);

    if (error && slow_end)
        usleep(20000);
    return error;
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static hbm_session *open_patient(unsigned flags, uint32_t reconnect_ms)
{
    hbm_session *session;

    MUST(hbm_open(&(struct hbm_options){.runtime_dir = fake.dir, .flags = flags, .reconnect_ms = reconnect_ms},
                  &session) == 0);
    return session;
}

static void a_session_goes_on_with_what_it_has(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");
    hbm_model *model;
    char *pointer = hbm_pointer(lease);

    (void)state;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RW, 0, 1000, &model), 0);
    strcpy(pointer, "kept");
    for (unsigned i = 1; i <= 3; i++) {
        daemon_dies();
        EVENTUALLY(fake.resumes == i);
        assert_int_equal(ask_device(session), 0);
        assert_int_equal(fake.listed, 2);
        assert_int_equal(fake.listed_ids[0] >> 32, 2);
        assert_int_equal(fake.listed_ids[1] >> 32, 99);
        assert_int_equal(fake.listed_slots[0], 0xff << 3);
        assert_ptr_equal(hbm_pointer(lease), pointer);
        assert_string_equal(pointer, "kept");
        assert_int_equal(word_of(1) & LOCKWORD_COUNT, 2);
    }
    assert_int_equal(hbm_detach(lease), 0);
    assert_int_equal(fake.detached, 1);
    hbm_close(session);
    assert_int_equal(fake.byes, 1);
}

static void the_thread_is_woken_once_by_an_end_that_a_caller_reads(void **state)
{
    hbm_session *session = open_with(0);

    (void)state;
    unsigned before = wakeups;
    slow_end = true;
    fake.cut_at = WIRE_DEVICE;
    assert_int_equal(ask_device(session), 0);
    slow_end = false;
    assert_int_equal(fake.resumes, 1);
    assert_true(wakeups - before < 100);
    hbm_close(session);
}

static void resident_locks_go_on_while_it_is_away(void **state)
{
    hbm_session *session = open_patient(0, 100);
    hbm_lease *lease = attach(session, "b1");

    (void)state;
    daemon_moves(true);
    daemon_dies();
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(hbm_lock(lease, 0), 0);
        assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    }
    assert_int_equal(hbm_safepoint(session, NULL, 0, 0), 0);
    uint64_t start = now_ms();
    assert_int_equal(ask_device(session), HBM_E_DISCONNECTED);
    assert_true(now_ms() - start >= 90 && now_ms() - start < 2000);
    assert_non_null(strstr(hbm_last_error_detail(), "did not come back within 100 ms"));
    assert_int_equal(hbm_dispatch(session), 0);
    daemon_moves(false);
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(hbm_detach(lease), 0);
    hbm_close(session);
}

static void a_lease_detached_meanwhile_is_not_presented(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *one = attach(session, "b1"), *two = attach(session, "b2");

    (void)state;
    daemon_moves(true);
    daemon_dies();
    usleep(20000);
    assert_int_equal(hbm_detach(one), 0);
    daemon_moves(false);
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(fake.listed, 1);
    assert_int_equal(fake.listed_slots[0], 1 << SLOT(2));
    assert_int_equal(fake.detached, 0);
    assert_int_equal(hbm_detach(two), 0);
    assert_int_equal(fake.detached, 1);
    hbm_close(session);
}

static void without_reconnecting_a_cut_is_the_end(void **state)
{
    hbm_session *session = open_with(HBM_NO_RECONNECT);
    hbm_lease *lease = attach(session, "b1");

    (void)state;
    daemon_dies();
    assert_int_equal(ask_device(session), HBM_E_DISCONNECTED);
    assert_int_equal(hbm_dispatch(session), HBM_E_DISCONNECTED);
    memset(hbm_pointer(lease), 1, 4096);
    assert_int_equal(hbm_detach(lease), HBM_E_DISCONNECTED);
    hbm_close(session);
    assert_int_equal(fake.connects, 1);
}

static void a_daemon_that_does_not_know_it_ends_it(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");

    (void)state;
    fake.refuse_resume = HBM_E_NOT_FOUND;
    daemon_dies();
    assert_int_equal(ask_device(session), HBM_E_DISCONNECTED);
    assert_non_null(strstr(hbm_last_error_detail(), "does not know this session"));
    usleep(50000);
    assert_int_equal(fake.connects, 2);
    memset(hbm_pointer(lease), 1, 4096);
    hbm_close(session);
}

static void a_daemon_that_stops_in_good_order_is_waited_for(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags <= HBM_NO_THREAD; flags++) {
        hbm_session *session = open_with(flags);
        fake.stopping = true;
        assert_int_equal(hbm_detach(attach(session, "b1")), 0);
        hbm_close(session);
    }
    assert_int_equal(fake.resumes, 2);
}

static void the_next_daemon_may_have_other_devices(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");
    struct hbm_device_info info;

    (void)state;
    fake.n_devices = 2;
    daemon_dies();
    EVENTUALLY(hbm_device_count(session) == 2);
    assert_int_equal(hbm_device_get(session, 1, &info), 0);
    assert_string_equal(info.uuid, "host1");
    fake.n_devices = 1;
    daemon_dies();
    EVENTUALLY(hbm_device_count(session) == 1);
    assert_int_equal(hbm_device_get(session, 1, &info), HBM_E_NO_DEVICE);
    assert_int_equal(hbm_detach(lease), 0);
    hbm_close(session);
}

static void it_knocks_ever_more_slowly(void **state)
{
    hbm_session *session = open_with(0);

    (void)state;
    fake.hang_up = true;
    daemon_dies();
    usleep(400000); /* at 0, 10, 30, 70, 150 and 310 ms */
    assert_in_range(fake.connects, 4, 8);
    fake.hang_up = false;
    assert_int_equal(ask_device(session), 0);
    fake.refuse_resume = HBM_E_LIMIT; /* which passes */
    daemon_dies();
    usleep(50000);
    fake.refuse_resume = 0;
    assert_int_equal(ask_device(session), 0);
    hbm_close(session);
}

/* ---- Calls under way ---- */

static void what_may_be_asked_again_is(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease, *unlocked;
    hbm_model *model;

    (void)state;
    fake.cut_at = WIRE_DEVICE;
    assert_int_equal(ask_device(session), 0);
    fake.cut_at = WIRE_ATTACH;
    lease = attach(session, "b1");
    fake.away[2] = true;
    assert_int_equal(hbm_attach(session, "b2", HBM_RW, HBM_UNLOCKED, 0, &unlocked), 0);
    fake.cut_at = WIRE_LOCK;
    assert_int_equal(hbm_lock(unlocked, 5000), 0);
    memset(hbm_pointer(unlocked), 3, 4096);
    fake.cut_at = WIRE_ATTACH_MODEL;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RW, 0, 1000, &model), 0);
    assert_int_equal(fake.resumes, 4);
    fake.cut_at = WIRE_DETACH;
    assert_int_equal(hbm_detach(lease), 0);
    fake.cut_at = WIRE_DETACH;
    assert_int_equal(hbm_model_detach(model), 0);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(fake.listed, 1);
    fake.cut_at = WIRE_BYE;
    hbm_close(session);
    assert_int_equal(fake.byes, 1);
}

static void what_may_not_be_asked_twice_says_so(void **state)
{
    struct hbm_publish_buffer row = {.name = "t0", .rank = 1, .dims = {4096}};
    struct hbm_publish spec = {.name = "m", .buffers = &row, .n_buffers = 1};
    hbm_session *session = open_with(0);
    hbm_lease *lease;
    hbm_model *model;
    int must_build;

    (void)state;
    fake.cut_at = WIRE_ALLOC;
    assert_int_equal(hbm_alloc(session, &(struct hbm_spec){.size = 4096, .flags = HBM_KEEP}, &lease), HBM_E_RETRY);
    assert_non_null(strstr(hbm_last_error_detail(), "the daemon restarted before it answered"));
    fake.cut_at = WIRE_FREE;
    assert_int_equal(hbm_free(session, 5), HBM_E_RETRY);
    fake.cut_at = WIRE_OFFLOAD;
    assert_int_equal(hbm_offload(session, "b1", HBM_TIER_HOST, 0, NULL), HBM_E_RETRY);
    fake.cut_at = WIRE_RESTORE;
    assert_int_equal(hbm_restore(session, "b1", NULL), HBM_E_RETRY);
    fake.cut_at = WIRE_TRANSFER;
    assert_int_equal(hbm_fill(session, 0, &(struct hbm_range){.bytes = 1}, 1, NULL), HBM_E_RETRY);
    fake.cut_at = WIRE_PUBLISH;
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), HBM_E_RETRY);
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), 0);
    fake.cut_at = WIRE_COMMIT;
    assert_int_equal(hbm_publish_commit(model), HBM_E_RETRY);
    hbm_close(session);
}

static void what_was_under_way_in_the_daemon_ends_with_it(void **state)
{
    struct hbm_publish_buffer row = {.name = "t0", .rank = 1, .dims = {4096}};
    struct hbm_publish spec = {.name = "m", .buffers = &row, .n_buffers = 1};
    hbm_session *session = open_with(0);
    struct hbm_op_status status;
    hbm_model *model, *another;
    hbm_op *op;
    int must_build;

    (void)state;
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, 0, &op), 0);
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &model, &must_build), 0);
    assert_int_equal(hbm_publish_begin(session, &spec, 0, &another, &must_build), 0);
    daemon_dies();
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(ask_device(session), 0); /* what is asked in coming back has been */
    unsigned requests = fake.requests;
    assert_int_equal(hbm_op_wait(op, 5, &status), HBM_E_RETRY);
    assert_true(status.done);
    assert_int_equal(status.error, HBM_E_RETRY);
    assert_int_equal(hbm_op_cancel(op), HBM_E_RETRY);
    assert_int_equal(hbm_publish_commit(model), HBM_E_BUILDER_DIED);
    assert_int_equal(hbm_publish_abort(another), 0);
    assert_int_equal(fake.requests, requests); /* ids of that time are no question for the next daemon */
    hbm_op_free(op);
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, 0, &op), 0);
    fake.cut_at = WIRE_OP_WAIT;
    assert_int_equal(hbm_op_wait(op, 5, NULL), HBM_E_RETRY);
    hbm_op_free(op);
    fake.cut_at = WIRE_OP_WAIT;
    assert_int_equal(hbm_offload(session, "b0", HBM_TIER_HOST, 0, NULL), HBM_E_RETRY);
    hbm_close(session);
}

/* ---- Threads ---- */

static _Atomic bool done;

static void *call_without_a_pause(void *session)
{
    unsigned arena = fake.connects % 2;
    char name[] = {'b', (char)('0' + arena), 0};

    while (!done) {
        hbm_lease *lease;
        MUST(ask_device(session) == 0);
        MUST(hbm_attach(session, name, HBM_RW, 0, 5000, &lease) == 0);
        memset(hbm_pointer(lease), 5, 4096);
        MUST(hbm_unlock(lease, NULL, 0) == 0);
        MUST(hbm_lock(lease, 5000) == 0);
        memset(hbm_pointer(lease), 6, 4096);
        MUST(hbm_detach(lease) == 0);
    }
    return NULL;
}

static void kill_while_threads_call(unsigned flags)
{
    hbm_session *session = open_with(flags);
    pthread_t threads[6];

    done = false;
    for (unsigned i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, call_without_a_pause, session);
    /* On a busy machine it dies before anybody was back: it then lives longer, until some were. */
    for (unsigned i = 0; i < 100 || (fake.resumes <= 10 && i < 1000); i++) {
        usleep(i < 100 ? 3000 : 30000);
        daemon_dies();
    }
    done = true;
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    assert_true(fake.resumes > 10);
    hbm_close(session);
}

static void many_threads_notice_nothing(void **state)
{
    (void)state;
    kill_while_threads_call(0);
}

static void many_threads_without_one_of_the_librarys_notice_nothing(void **state)
{
    (void)state;
    kill_while_threads_call(HBM_NO_THREAD);
}

static void without_a_thread_the_next_call_reconnects(void **state)
{
    hbm_session *session = open_patient(HBM_NO_THREAD, 300);
    struct pollfd event = {.fd = hbm_event_fd(session), .events = POLLIN};

    (void)state;
    daemon_dies();
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(fake.resumes, 1);
    /* Or the caller's loop does. */
    daemon_moves(true);
    daemon_dies();
    uint64_t start = now_ms();
    while (fake.resumes == 1 && now_ms() < start + 5000) {
        if (poll(&event, 1, 5000) == 1)
            assert_int_equal(hbm_dispatch(session), 0);
        if (now_ms() > start + 50 && access(fake.dir, F_OK) == 0 && fake.connects == 2)
            daemon_moves(false), fake.connects++;
    }
    assert_int_equal(fake.resumes, 2);
    assert_int_equal(ask_device(session), 0);
    daemon_moves(true);
    daemon_dies();
    start = now_ms();
    assert_int_equal(ask_device(session), HBM_E_DISCONNECTED);
    assert_true(now_ms() - start >= 290);
    daemon_moves(false);
    assert_int_equal(ask_device(session), 0);
    hbm_close(session);
    assert_int_equal(fake.byes, 1);
}

static void many_cuts_leave_the_descriptors_as_they_were(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b1");
    unsigned before = count_fds();

    (void)state;
    for (unsigned i = 1; i <= 200; i++) {
        fake.lose = 0;
        daemon_dies();
        EVENTUALLY(fake.resumes == i);
        assert_int_equal(ask_device(session), 0);
    }
    assert_int_equal(count_fds(), before);
    assert_int_equal(hbm_detach(lease), 0);
    hbm_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_session_goes_on_with_what_it_has),
        TEST(the_thread_is_woken_once_by_an_end_that_a_caller_reads),
        TEST(resident_locks_go_on_while_it_is_away),
        TEST(a_lease_detached_meanwhile_is_not_presented),
        TEST(without_reconnecting_a_cut_is_the_end),
        TEST(a_daemon_that_does_not_know_it_ends_it),
        TEST(a_daemon_that_stops_in_good_order_is_waited_for),
        TEST(the_next_daemon_may_have_other_devices),
        TEST(it_knocks_ever_more_slowly),
        TEST(what_may_be_asked_again_is),
        TEST(what_may_not_be_asked_twice_says_so),
        TEST(what_was_under_way_in_the_daemon_ends_with_it),
        TEST(many_threads_notice_nothing),
        TEST(many_threads_without_one_of_the_librarys_notice_nothing),
        TEST(without_a_thread_the_next_call_reconnects),
        TEST(many_cuts_leave_the_descriptors_as_they_were),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
