/* libhbm: memory that is locked, let go of when it is asked back, and locked again under the same address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/libhbm_test.h"
#include "tests/unit/no_system_call.h"

static void attaching_twice_gives_one_pointer_unmapped_with_the_last_lease(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *first = attach(session, "b3"), *second = attach(session, "b3");
    void *pointer = hbm_pointer(first);

    (void)state;
    assert_ptr_equal(pointer, hbm_pointer(second));
    assert_int_equal(word_of(3) & LOCKWORD_COUNT, 2);
    assert_int_equal(hbm_detach(first), 0);
    assert_true(is_mapped(pointer));
    assert_int_equal(word_of(3) & LOCKWORD_COUNT, 1);
    assert_int_equal(hbm_detach(second), 0);
    assert_false(is_mapped(pointer));
    assert_int_equal(fake.detached, 2);
    hbm_close(session);
}

static void an_unlocked_arena_asked_back_is_let_go_by_the_thread(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4");
    char *pointer = hbm_pointer(lease);
    struct hbm_info info;

    (void)state;
    strcpy(pointer, "kept");
    hbm_unlock(lease, NULL, 0);
    ask_back(4);
    EVENTUALLY(fake.released == 1);
    hbm_lease_info(lease, &info);
    assert_null(info.pointer);
    assert_ptr_equal(hbm_pointer(lease), pointer);
    assert_int_equal(hbm_lock(lease, 1000), 0);
    assert_ptr_equal(hbm_pointer(lease), pointer);
    assert_string_equal(pointer, "kept");
    assert_int_equal(word_of(4) & LOCKWORD_COUNT, 1);
    hbm_close(session);
}

static void a_locked_arena_asked_back_is_let_go_by_the_last_unlock(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = attach(session, "b4");

    (void)state;
    ask_back(4);
    usleep(50000);
    assert_int_equal(hbm_lock(lease, 0), 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    assert_int_equal(fake.released, 0);
    assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    EVENTUALLY(fake.released == 1);
    assert_true(word_of(4) & LOCKWORD_AWAY);
    hbm_close(session);
}

static void a_lock_on_an_arena_asked_back_lets_go_first(void **state)
{
    hbm_session *session = open_with(HBM_NO_THREAD);
    hbm_lease *lease = attach(session, "b4");

    (void)state;
    hbm_unlock(lease, NULL, 0);
    lockword_request(&fake.words[SLOT(4)]);
    assert_int_equal(hbm_lock(lease, 1000), 0);
    assert_int_equal(fake.released, 1);
    assert_int_equal(fake.locks, 1);
    hbm_close(session);
}

static void a_safe_point_gives_back_and_retakes_what_is_locked(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *one = attach(session, "b1"), *again = attach(session, "b1"), *two = attach(session, "b2");
    char *pointer = hbm_pointer(one);

    (void)state;
    strcpy(pointer, "kept");
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
    assert_int_equal(fake.released, 0);
    ask_back(1);
    ask_back(2);
    assert_int_equal(hbm_unlock(two, NULL, 0), 0);
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
    assert_int_equal(fake.released, 2);
    assert_int_equal(fake.locks, 1);
    assert_int_equal(word_of(1) & LOCKWORD_COUNT, 2);
    assert_true(word_of(2) & LOCKWORD_AWAY);
    assert_string_equal(pointer, "kept");
    assert_int_equal(hbm_unlock(again, NULL, 0), 0);

    fake.refuse_lock = HBM_E_NO_MEMORY;
    ask_back(1);
    assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), HBM_E_NO_MEMORY);
    assert_int_equal(hbm_unlock(one, NULL, 0), HBM_E_INVALID);
    fake.refuse_lock = 0;
    assert_int_equal(hbm_lock(one, 1000), 0);
    assert_string_equal(pointer, "kept");
    hbm_close(session);
}

/* Same address, same locks, and where it lies is told; a safe point of nobody who is asked changes nothing. */
static void what_is_mapped_says_whether_it_is_host_memory(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease = NULL;
    struct hbm_info info;

    (void)state;
    assert_int_equal(hbm_attach(session, "b1", HBM_RW, HBM_IN_PLACE, 1000, &lease), 0);
    assert_int_equal(fake.attach_flags, WIRE_IN_PLACE);
    char *pointer = hbm_pointer(lease);
    strcpy(pointer, "kept");
    for (unsigned i = 0; i < 6; i++) {
        enum hbm_tier tier = i % 2 ? HBM_TIER_DEVICE : HBM_TIER_HOST;
        lockword_place(&fake.words[SLOT(1)], tier == HBM_TIER_HOST);
        ask_back(1);
        assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
        assert_int_equal(hbm_safepoint(session, NULL, 0, 1000), 0);
        hbm_lease_info(lease, &info);
        assert_int_equal(info.tier, tier);
        assert_ptr_equal(info.pointer, pointer);
        assert_string_equal(pointer, "kept");
        assert_int_equal(fake.released, i + 1);
        assert_int_equal(word_of(1) & LOCKWORD_COUNT, 1);
        assert_int_equal(hbm_lock(lease, 0), 0); /* resident, wherever it is */
        assert_int_equal(hbm_unlock(lease, NULL, 0), 0);
    }
    assert_int_equal(fake.locks, 6);
    hbm_close(session);
}

static void locking_many_is_all_or_nothing(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *leases[] = {attach(session, "b5"), attach(session, "b6"), attach(session, "b7"), NULL};

    (void)state;
    leases[3] = leases[1];
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(hbm_unlock(leases[i], NULL, 0), 0);
    ask_back(6);
    ask_back(7);
    EVENTUALLY(fake.released == 2);
    fake.refuse_lock = HBM_E_NO_MEMORY;
    assert_int_equal(hbm_lock_many(leases, 4, 10), HBM_E_NO_MEMORY);
    assert_non_null(strstr(hbm_last_error_detail(), "the device is full of locked memory"));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(word_of(5 + i) & LOCKWORD_COUNT, 0);
        assert_int_equal(hbm_unlock(leases[i], NULL, 0), HBM_E_INVALID);
    }
    fake.refuse_lock = 0;
    assert_int_equal(hbm_lock_many(leases, 4, 1000), 0);
    assert_int_equal(fake.locks, 2);
    assert_int_equal(word_of(5) & LOCKWORD_COUNT, 1);
    assert_int_equal(word_of(6) & LOCKWORD_COUNT, 2);
    hbm_close(session);
}

static void unlocking_what_is_not_locked_is_refused(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *one = attach(session, "b1"), *other = attach(session, "b1");

    (void)state;
    assert_int_equal(hbm_unlock(one, NULL, 0), 0);
    assert_int_equal(hbm_unlock(one, NULL, 0), HBM_E_INVALID);
    assert_int_equal(word_of(1) & LOCKWORD_COUNT, 1);
    assert_int_equal(hbm_unlock(other, NULL, 2), HBM_E_INVALID);
    hbm_close(session);
}

static void an_unlocked_attach_maps_at_the_first_lock(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *lease;

    (void)state;
    fake.away[5] = true;
    assert_int_equal(hbm_attach(session, "b5", HBM_RW, HBM_UNLOCKED, 0, &lease), 0);
    assert_true(word_of(5) & LOCKWORD_AWAY);
    assert_non_null(hbm_pointer(lease));
    assert_int_equal(hbm_lock(lease, 1000), 0);
    memset(hbm_pointer(lease), 3, 4096);
    hbm_close(session);
}

static void a_grant_of_memory_that_the_arena_has_left_is_not_mapped(void **state)
{
    hbm_session *session = open_with(0);
    hbm_lease *first = attach(session, "b2"), *second;

    (void)state;
    hbm_unlock(first, NULL, 0);
    fake.move_in_attach = true;
    second = attach(session, "b2");
    assert_int_equal(fake.locks, 1);
    strcpy(hbm_pointer(second), "new home");
    char bytes[9];
    assert_int_equal(pread(fake.fds[2], bytes, 9, 256), 9);
    assert_string_equal(bytes, "new home");
    hbm_close(session);
}

static void *lock_under_seccomp(void *lease)
{
    if (!trap_calls())
        return (void *)-1;
    for (unsigned i = 0; i < 10000; i++)
        if (hbm_lock(lease, 0) || hbm_unlock(lease, NULL, 0))
            return (void *)-2;
    return (void *)(intptr_t)trapped;
}

static void locking_resident_memory_enters_no_system_call(void **state)
{
    hbm_session *session = open_with(0);

    (void)state;
    enters_no_system_call(lock_under_seccomp, attach(session, "b0"));
    hbm_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(attaching_twice_gives_one_pointer_unmapped_with_the_last_lease),
        TEST(an_unlocked_arena_asked_back_is_let_go_by_the_thread),
        TEST(a_locked_arena_asked_back_is_let_go_by_the_last_unlock),
        TEST(a_lock_on_an_arena_asked_back_lets_go_first),
        TEST(a_safe_point_gives_back_and_retakes_what_is_locked),
        TEST(what_is_mapped_says_whether_it_is_host_memory),
        TEST(locking_many_is_all_or_nothing),
        TEST(unlocking_what_is_not_locked_is_refused),
        TEST(an_unlocked_attach_maps_at_the_first_lock),
        TEST(a_grant_of_memory_that_the_arena_has_left_is_not_mapped),
        TEST(locking_resident_memory_enters_no_system_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
