/* libhbm when its daemon goes away and another comes: tests/unit/fake_daemon.h plays both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include "tests/unit/fake_daemon.h"

static _Atomic bool slow_end; /* a reader hears late that the daemon is gone */
static _Atomic unsigned wakeups;

int __real_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int n, int timeout)
{
    wakeups++;
    return __real_epoll_wait(epoll, events, n, timeout);
}

/* By --wrap: a reader gets what a dying daemon sent when that is dead. */
int __real_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet)
{
    int error = __real_packet_receive(socket, packet);

    while (fake.dying)
        usleep(100);
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

/* Nobody can connect while it is away. */
static void daemon_moves(bool away)
{
    char here[96], there[96];

    snprintf(here, sizeof(here), "%s/hbmd.sock", fake.dir);
    snprintf(there, sizeof(there), "%s/away.sock", fake.dir);
    MUST(rename(away ? here : there, away ? there : here) == 0);
}

/* By --wrap: who stands in the door waits so. */
static _Atomic bool back_when_waited_for;

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (atomic_exchange(&back_when_waited_for, false))
        daemon_moves(false);
    return __real_pthread_cond_timedwait(cond, mutex, until);
}

static void daemon_dies(void)
{
    int socket = fake.socket;

    if (socket >= 0)
        shutdown(socket, SHUT_RDWR);
}

static hbm_session *open_patient(unsigned flags, uint32_t reconnect_ms)
{
    hbm_session *session;

    MUST(hbm_open(&(struct hbm_options){.runtime_dir = fake.dir, .flags = flags, .reconnect_ms = reconnect_ms},
                  &session) == 0);
    return session;
}

static int ask_device(hbm_session *session)
{
    struct hbm_device_info info;

    return hbm_device_get(session, 0, &info);
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

/* ---- Memory ---- */

static void check_home(hbm_lease *lease, unsigned arena)
{
    char bytes[16];

    snprintf(hbm_pointer(lease), sizeof(bytes), "home of %u", arena);
    assert_int_equal(pread(fake.fds[arena], bytes, sizeof(bytes), 256), sizeof(bytes));
    assert_string_equal(bytes, hbm_pointer(lease));
}

/* The next daemon may read the words, and move what is away, before a reply of the last one is acted upon. */
static void what_came_by_a_connection_that_is_gone_is_not_mapped(void **state)
{
    (void)state;
    for (unsigned turn = 1; turn <= 50; turn++) {
        hbm_session *session = open_with(0);
        hbm_lease *lease, *other;

        atomic_store(&fake.words[SLOT(4)], LOCKWORD_AWAY);
        fake.cut_after = WIRE_ATTACH;
        lease = attach(session, "b4");
        EVENTUALLY(fake.resumes == 2 * turn - 1);
        check_home(lease, 4);
        assert_int_equal(hbm_attach(session, "b5", HBM_RW, HBM_UNLOCKED, 0, &other), 0);
        hbm_unlock(lease, NULL, 0);
        ask_back(4);
        EVENTUALLY(word_of(4) & LOCKWORD_AWAY);
        fake.cut_after = WIRE_LOCK;
        assert_int_equal(hbm_lock(lease, 5000), 0);
        EVENTUALLY(fake.resumes == 2 * turn);
        check_home(lease, 4);
        assert_int_equal(word_of(4) & (LOCKWORD_COUNT | LOCKWORD_LANDING), 1);
        hbm_close(session);
    }
}

static void what_was_being_built_is_not_asked_for_again(void **state)
{
    struct hbm_publish_buffer row = {.name = "t0", .rank = 1, .dims = {4096}};
    struct hbm_publish spec = {.name = "m", .buffers = &row, .n_buffers = 1};
    hbm_session *session = open_with(0);
    hbm_model *model;
    int must_build;

    (void)state;
    fake.refuse_lock = HBM_E_INVALID; /* the next daemon knows nothing of its arenas */
    for (unsigned i = 0; i < ARENAS; i++)
        atomic_store(&fake.words[SLOT(i)], LOCKWORD_AWAY);
    fake.cut_after = WIRE_PUBLISH;
    daemon_moves(true);
    back_when_waited_for = true; /* with the LOCK of what was granted, and lies elsewhere by now */
    assert_int_equal(hbm_publish_begin(session, &spec, 5000, &model, &must_build), HBM_E_RETRY);
    assert_int_equal(fake.locks, 1);
    assert_int_equal(hbm_publish_begin(session, &spec, 5000, &model, &must_build), 0);
    assert_int_equal(hbm_model_unlock(model, "g4", NULL, 0), 0);
    ask_back(4);
    EVENTUALLY(word_of(4) & LOCKWORD_AWAY);
    unsigned resumes = fake.resumes;
    daemon_dies();
    EVENTUALLY(fake.resumes == resumes + 1);
    assert_int_equal(hbm_model_lock(model, "g4", 5000), HBM_E_BUILDER_DIED);
    assert_int_equal(hbm_publish_abort(model), 0);
    hbm_close(session);
}

static void what_was_being_built_cannot_be_filled_by_the_next_daemon(void **state)
{
    struct hbm_publish_buffer row = {.name = "t0", .rank = 1, .dims = {4096}};
    struct hbm_publish spec = {.name = "m", .buffers = &row, .n_buffers = 1};
    struct hbm_range range = {.bytes = 1}, another = {.bytes = 1};
    hbm_session *session = open_with(0);
    struct hbm_info info;
    hbm_model *model;
    int must_build;

    (void)state;
    fake.knows_no_buffer = true;
    assert_int_equal(hbm_publish_begin(session, &spec, 5000, &model, &must_build), 0);
    hbm_model_buffer(model, 0, &info);
    range.buffer = info.id;
    assert_int_equal(hbm_fill(session, 0, &range, 1, NULL), HBM_E_NOT_FOUND);
    daemon_dies();
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(hbm_fill(session, 0, &range, 1, NULL), HBM_E_BUILDER_DIED);
    assert_non_null(strstr(hbm_last_error_detail(), "the daemon restarted meanwhile"));
    assert_int_equal(hbm_fill(session, 0, &another, 1, NULL), HBM_E_NOT_FOUND);
    assert_int_equal(hbm_publish_abort(model), 0);
    hbm_close(session);
}

static void what_was_asked_back_by_a_daemon_that_died_stays(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4");

    (void)state;
    daemon_moves(true);
    lockword_request(&fake.words[SLOT(4)]);
    daemon_dies();
    usleep(20000);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    usleep(20000);
    assert_true(is_mapped(hbm_pointer(lease)));
    lockword_withdraw(&fake.words[SLOT(4)]); /* the next one does so at its start */
    assert_int_equal(hbm_lock(lease, 0), 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    daemon_moves(false);
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(fake.released, 0);
    hbm_close(session);
}

static void what_the_next_daemon_wants_back_is_let_go_of(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4"), *away;

    (void)state;
    fake.away[5] = true;
    assert_int_equal(hbm_attach(session, "b5", HBM_RW, HBM_UNLOCKED, 0, &away), 0);
    hbm_unlock(lease, NULL, 0);
    daemon_moves(true);
    daemon_dies();
    usleep(20000);
    lockword_request(&fake.words[SLOT(4)]); /* and could tell nobody */
    daemon_moves(false);
    EVENTUALLY(fake.released == 2); /* what was away is said again */
    assert_true(word_of(4) & LOCKWORD_AWAY);
    assert_int_equal(hbm_lock(lease, 1000), 0);
    check_home(lease, 4);
    hbm_close(session);
}

static void what_is_used_next_is_asked_for_again(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model;

    (void)state;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RO, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    assert_int_equal(hbm_model_order(model, NULL, 0, 1), 0);
    ask_back(3);
    EVENTUALLY(fake.away[3]);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(hbm_model_lock(model, "g2", 1000), 0);
        assert_int_equal(hbm_model_lock(model, "g2", 1000), 0);
        assert_int_equal(ask_device(session), 0);
        assert_int_equal(fake.aheads, i + 1);
        daemon_moves(true);
        daemon_dies(); /* and with it what it was about to bring */
        usleep(20000);
        assert_int_equal(hbm_model_lock(model, "g2", 1000), 0); /* there is nobody to be asked */
        daemon_moves(false);
        EVENTUALLY(fake.resumes == i + 1);
        assert_int_equal(ask_device(session), 0);
        memset(fake.order, 0, sizeof(fake.order));
    }
    assert_int_equal(hbm_model_order(model, (const char *[]){"g5", "g1"}, 2, 0), 0); /* nothing comes ahead of a wake */
    assert_int_equal(ask_device(session), 0);
    assert_string_equal(fake.order, "51");
    memset(fake.order, 0, sizeof(fake.order));
    daemon_moves(true);
    daemon_dies();
    daemon_moves(false);
    EVENTUALLY(fake.resumes == 4);
    assert_int_equal(ask_device(session), 0); /* now it is back for the library as well */
    assert_int_equal(hbm_model_lock(model, "g2", 1000), 0);
    assert_int_equal(ask_device(session), 0);
    assert_string_equal(fake.order, "51");
    hbm_close(session);
}

static void a_lease_that_was_lost_can_be_read_and_let_go_of(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lost = attach(session, "b1"), *kept = attach(session, "b2");
    hbm_lease *both[] = {kept, lost};

    (void)state;
    strcpy(hbm_pointer(lost), "readable");
    fake.lose = 1;
    daemon_dies();
    EVENTUALLY(fake.resumes == 1);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(hbm_lock(lost, 0), HBM_E_LOST);
    assert_int_equal(hbm_lock_many(both, 2, 0), HBM_E_LOST);
    assert_int_equal(hbm_lock(kept, 0), 0);
    assert_string_equal(hbm_pointer(lost), "readable");
    daemon_dies();
    EVENTUALLY(fake.resumes == 2);
    assert_int_equal(ask_device(session), 0);
    assert_int_equal(fake.listed, 1); /* once is enough, but its slot is still in use */
    assert_int_equal(fake.listed_slots[0], 1 << SLOT(1) | 1 << SLOT(2));
    assert_int_equal(hbm_unlock(lost, NULL, 0), 0);
    assert_int_equal(hbm_detach(lost), 0);
    assert_int_equal(fake.detached, 0);
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
        TEST(what_came_by_a_connection_that_is_gone_is_not_mapped),
        TEST(what_was_being_built_is_not_asked_for_again),
        TEST(what_was_being_built_cannot_be_filled_by_the_next_daemon),
        TEST(what_was_asked_back_by_a_daemon_that_died_stays),
        TEST(what_the_next_daemon_wants_back_is_let_go_of),
        TEST(what_is_used_next_is_asked_for_again),
        TEST(a_lease_that_was_lost_can_be_read_and_let_go_of),
        TEST(many_threads_notice_nothing),
        TEST(many_threads_without_one_of_the_librarys_notice_nothing),
        TEST(without_a_thread_the_next_call_reconnects),
        TEST(many_cuts_leave_the_descriptors_as_they_were),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
