/* libhbm when its daemon goes away and another comes: what is mapped, being built, asked back or lost meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/libhbm_test.h"

/* By --wrap: a reader gets what a dying daemon sent when that is dead. */
int __real_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet);
int __wrap_packet_receive(int socket, struct packet *packet)
{
    int error = __real_packet_receive(socket, packet);

    while (fake.dying)
        usleep(100);
    return error;
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
    assert_int_equal(hbm_model_order(model, (const char *[]){"g5", "g1"}, 2, 0),
                     0); /* nothing comes ahead of a wake */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_came_by_a_connection_that_is_gone_is_not_mapped),
        TEST(what_was_being_built_is_not_asked_for_again),
        TEST(what_was_being_built_cannot_be_filled_by_the_next_daemon),
        TEST(what_was_asked_back_by_a_daemon_that_died_stays),
        TEST(what_the_next_daemon_wants_back_is_let_go_of),
        TEST(what_is_used_next_is_asked_for_again),
        TEST(a_lease_that_was_lost_can_be_read_and_let_go_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
