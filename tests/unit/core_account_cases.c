/* Accounts, listeners and timers. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/listener.h"
#include "proto/messages.h"

static void a_charge_past_either_limit_is_refused_and_charges_nothing(void **state)
{
    struct listener *pods = listener_add(w.core, "pods");
    struct account *one = account_of(w.core, (struct owner){pods->id, 0}),
                   *other = account_of(w.core, (struct owner){pods->id, 1});
    char detail[HBM_DETAIL_MAX];

    (void)state;
    pods->each[ACCOUNT_BUFFERS] = 3;
    pods->total[ACCOUNT_BUFFERS] = 5;
    assert_int_equal(account_charge(one, ACCOUNT_BUFFERS, 3, detail), 0);
    assert_int_equal(account_charge(one, ACCOUNT_BUFFERS, 1, detail), HBM_E_LIMIT);
    assert_non_null(strstr(detail, "user 0 has 3 buffers, account_buffers is 3"));
    assert_int_equal(account_charge(other, ACCOUNT_BUFFERS, 3, detail), HBM_E_LIMIT);
    assert_non_null(strstr(detail, "listener pods has 3 buffers, total_buffers is 5"));
    assert_int_equal(other->use[ACCOUNT_BUFFERS], 0);
    assert_int_equal(account_charge(other, ACCOUNT_BUFFERS, 2, detail), 0);
    assert_int_equal(pods->whole.use[ACCOUNT_BUFFERS], 5);
    assert_int_equal(account_charge(one, ACCOUNT_DEVICE_BYTES, UINT64_MAX, detail), 0); /* no limit, no overflow */
    account_release(one, ACCOUNT_DEVICE_BYTES, UINT64_MAX);
    account_release(one, ACCOUNT_BUFFERS, 3);
    account_release(other, ACCOUNT_BUFFERS, 2);
    assert_int_equal(pods->whole.use[ACCOUNT_BUFFERS], 0);
}

static void a_listener_is_known_by_its_name_alone(void **state)
{
    struct listener *pods = listener_of(w.core, listener_id("pods")); /* as the ledger speaks of it first */

    (void)state;
    assert_false(pods->configured);
    assert_string_equal(pods->name, "0x8ec19e4d");
    assert_int_equal(listener_by_name(pods->name), pods->id);
    assert_ptr_equal(listener_add(w.core, "pods"), pods);
    assert_string_equal(pods->name, "pods");
    assert_int_equal(listener_by_name("pods"), pods->id);
    assert_int_equal(listener_by_name("main"), 0);
    assert_null(listener_add(w.core, "pods"));
}

static void a_client_counts_the_devices_of_its_listener(void **state)
{
    struct listener *pods = listener_add(w.core, "pods");
    const struct principal who = {.owner = {pods->id, 0}};
    struct device *second;
    uint64_t capacity[HBM_TIERS] = {1 << 20};

    (void)state;
    second = device_add(w.core, "second", "second", false, capacity);
    pods->devices = UINT64_C(1) << second->index;
    assert_int_equal(listener_n_devices(pods, w.core), 1);
    assert_ptr_equal(listener_device(w.core, &who, 0), second);
    assert_ptr_equal(listener_device(w.core, &who, WIRE_DEVICE_ANY), second);
    assert_null(listener_device(w.core, &who, second->index));
    assert_int_equal(listener_device_index(w.core, &who, second), 0);
    assert_int_equal(listener_device_index(w.core, &who, w.device), WIRE_DEVICE_ANY);
    assert_ptr_equal(listener_device(w.core, &alice, second->index), second);
    list_unlink(&second->node); /* the world's own picture has one */
    w.core->n_devices--;
    free(second);
}

static unsigned n_accounts(void)
{
    unsigned n = 0;

    list_for_each (node, &w.core->accounts)
        n++;
    return n;
}

static void a_thousand_users_who_came_and_went_leave_no_account(void **state)
{
    struct principal who = {.owner = {0, 0}};

    (void)state;
    make_kept(&w, "w", 8, 8);
    for (unsigned uid = 5000; uid < 6000; uid++) {
        who.owner.uid = uid;
        session_gone(client(&w, who), true, "bye");
        world_pass(&w, 10);
    }
    assert_true(n_accounts() < 200);
    world_pass(&w, 2000);
    assert_int_equal(n_accounts(), 1); /* alice has memory */
    assert_int_equal(listener_of(w.core, 0)->whole.use[ACCOUNT_SESSIONS], 0);
    struct ask *question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, named(&w, "w")->id);
    assert_int_equal(error_of(&w, question), 0);
    world_pass(&w, 2000);
    assert_int_equal(n_accounts(), 0);
}

static void who_waits_for_memory_has_an_account_after_his_session_ended(void **state)
{
    struct session *session = client(&w, alice), *other = client(&w, bob);
    struct alloc_args args = {.size = 60 * MIB, .dtype = HBM_U8, .mode = 0600, .handle = HBM_HANDLE_FD};
    struct ask *first = ask(&w, alice, session), *second = ask(&w, bob, other);

    (void)state;
    w.core->limits.memory_wait_ms = 60000;
    verb_alloc(w.core, &first->call, &args);
    world_run(&w);
    verb_alloc(w.core, &second->call, &args);
    world_run(&w);
    session_gone(other, true, "bye");
    world_pass(&w, 5000);
    assert_false(list_empty(&w.core->memory_waiters));
    session_gone(session, true, "bye"); /* its memory goes to who waits, and back, for nobody asks any more */
    world_pass(&w, 5000);
    assert_int_equal(second->answers, 1);
    world_pass(&w, 2000);
    assert_int_equal(n_accounts(), 0);
    free(first);
    free(second);
    world_check_books(&w);
}

/* ---- The store ---- */

static struct account *of(const struct principal *who)
{
    return account_of(w.core, who->owner);
}

static int alloc_of(struct session *session, struct principal who, uint64_t *lease)
{
    struct alloc_args args = {.size = 4096, .dtype = HBM_U8, .mode = 0600, .handle = HBM_HANDLE_FD};
    struct ask *asked = ask(&w, who, session);

    verb_alloc(w.core, &asked->call, &args);
    world_run(&w);
    for (unsigned i = 0; !asked->answers && i < 10; i++)
        world_pass(&w, 100);
    *lease = asked->id;
    return error_of(&w, asked);
}

static void a_user_has_no_more_of_the_store_than_his_share_and_moves_within_it(void **state)
{
    struct session *session = client(&w, alice), *other = client(&w, bob);
    uint64_t lease = 0;

    (void)state;
    make_kept(&w, "w", 8, 8);
    w.core->limits.account[ACCOUNT_OBJECTS] = 3;
    assert_int_equal(alloc_of(session, alice, &lease), 0);
    assert_int_equal(alloc_of(session, alice, &lease), 0);
    assert_int_equal(of(&alice)->use[ACCOUNT_OBJECTS], 3);
    uint64_t refused;
    assert_int_equal(alloc_of(session, alice, &refused), HBM_E_LIMIT);
    assert_non_null(strstr(last_detail, "3 memory objects in the store, account_objects is 3"));
    assert_int_equal(of(&alice)->use[ACCOUNT_OBJECTS], 3);
    assert_int_equal(alloc_of(other, bob, &refused), 0);
    /* At its limit: what is there goes to another tier and comes back. */
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, true)->error, 0);
    assert_int_equal(restore(&w, "w")->error, 0);
    detach(&w, idmap_get(&w.core->ids, lease, ID_LEASE));
    assert_int_equal(of(&alice)->use[ACCOUNT_OBJECTS], 2);
    assert_int_equal(world_restart(&w), 0);
    world_check_books(&w);
}

static void a_full_store_refuses_new_memory_and_sessions_and_lets_memory_move(void **state)
{
    struct session *session = client(&w, alice);
    uint64_t lease;

    (void)state;
    make_kept(&w, "w", 8, 8);
    w.store_is_full = 1;
    assert_int_equal(alloc_of(session, alice, &lease), HBM_E_LIMIT);
    assert_non_null(strstr(last_detail, "is full"));
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, true)->error, 0);
    world_check_books(&w);
    w.store_is_full = 2;
    assert_int_equal(restore(&w, "w")->error, HBM_E_LIMIT);
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_HOST);
    world_check_books(&w);
    w.store_is_full = 0;
    assert_int_equal(alloc_of(session, alice, &lease), 0);
    world_check_books(&w);
}

static int was_ready;

static void note_ready(struct session *session, int error)
{
    (void)session;
    was_ready = error;
}

static void a_session_that_the_store_has_no_room_for_is_refused(void **state)
{
    const struct session *first = client(&w, bob);
    char detail[HBM_DETAIL_MAX];
    int error;

    (void)state;
    w.store_is_full = 2;
    struct session *session = session_new(w.core, bob, 1, dup(first->pidfd), "late", &error, detail);
    assert_non_null(session);
    session->ready = note_ready;
    session_start(session);
    assert_int_equal(was_ready, HBM_E_LIMIT);
    session_free(session);
    world_check_books(&w);
}

/* ---- Timers ---- */

#define TIMERS 5000

struct alarm {
    struct timer timer;
    uint64_t at;
    unsigned fired;
};

static uint64_t last_fired;

static void ring(struct timer *timer)
{
    struct alarm *alarm = container_of(timer, struct alarm, timer);

    assert_true(alarm->at >= last_fired && alarm->at <= core_now(w.core));
    last_fired = alarm->at;
    alarm->fired++;
}

static void thousands_of_timers_fire_once_in_their_order_or_not_at_all(void **state)
{
    struct alarm *alarms = calloc(TIMERS, sizeof(*alarms));
    uint32_t random = 1;

    (void)state;
    last_fired = 0;
    for (unsigned round = 0; round < 3; round++) { /* armed, armed anew, and a third of them stopped */
        for (unsigned i = 0; i < TIMERS; i++) {
            uint64_t delay = (random = random * 1664525 + 1013904223) >> 22;
            alarms[i].timer.fire = ring;
            alarms[i].at = core_now(w.core) + delay;
            if (round < 2)
                timer_arm(w.core, &alarms[i].timer, delay);
            else if (i % 3 == 0)
                timer_stop(w.core, &alarms[i].timer);
            else
                alarms[i].at = alarms[i].timer.at_ms;
        }
    }
    for (unsigned passed = 0; passed < 1100; passed += 50)
        world_pass(&w, 50);
    for (unsigned i = 0; i < TIMERS; i++)
        assert_int_equal(alarms[i].fired, i % 3 != 0);
    free(alarms);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_account_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_charge_past_either_limit_is_refused_and_charges_nothing),
        CASE(a_listener_is_known_by_its_name_alone),
        CASE(a_client_counts_the_devices_of_its_listener),
        CASE(a_thousand_users_who_came_and_went_leave_no_account),
        CASE(who_waits_for_memory_has_an_account_after_his_session_ended),
        CASE(a_user_has_no_more_of_the_store_than_his_share_and_moves_within_it),
        CASE(a_full_store_refuses_new_memory_and_sessions_and_lets_memory_move),
        CASE(a_session_that_the_store_has_no_room_for_is_refused),
        CASE(thousands_of_timers_fire_once_in_their_order_or_not_at_all),
    };

    return cmocka_run_group_tests_name("accounts", tests, NULL, NULL);
}
