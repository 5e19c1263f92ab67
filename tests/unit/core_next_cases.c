/* What a client says it uses next is fetched, in that order. */
#include "core_cases.h"
#include "core_prefetch.h"

static unsigned told;

static void count_op_ended(struct session *session, uint64_t op, int error)
{
    (void)session;
    (void)op;
    (void)error;
    told++;
}

static void what_is_used_next_comes_in_the_order_that_was_said(void **state)
{
    (void)state;
    uint32_t slots[5];
    away_model(5);
    struct session *session = reader(5, slots);
    session->send_op_ended = count_op_ended;
    told = 0;
    uint64_t events = w.core->events.next;
    w.hold = true;
    verb_ahead(w.core, session, (uint32_t[]){slots[3], slots[0], slots[4]}, 3);
    static const char *const seen[] = {"-----", "---3-", "0--3-"};
    for (unsigned i = 0; i < 3; i++) {
        assert_string_equal(there_of(5), seen[i]);
        assert_true(world_step(&w));
    }
    assert_string_equal(there_of(5), "0--34");
    w.hold = false;
    world_run(&w);
    assert_string_equal(there_of(5), "0--34");
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_DONE);
    assert_int_equal(told, 0); /* nobody waits for it */
    assert_int_equal(w.core->events.next, events);
    world_check_books(&w);
}

/* FAULTS 9 */
static void what_is_said_meanwhile_comes_after_it_and_each_once(void **state)
{
    (void)state;
    uint32_t slots[6];
    away_model(6);
    struct session *session = reader(6, slots);
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    for (unsigned round = 0; round < 100; round++)
        verb_ahead(w.core, session, slots, 4);
    uint64_t op = session->ahead;
    verb_ahead(w.core, session, (uint32_t[]){slots[2], slots[5]}, 2);
    assert_int_equal(session->ahead, op);
    assert_int_equal(moving(6), 2);
    w.hold = false;
    world_run(&w);
    assert_string_equal(there_of(6), "0123-5");
    assert_int_equal(w.ran[JOB_COPY], copies + 5);
    verb_ahead(w.core, session, slots, 4); /* is there */
    assert_int_equal(session->ahead, op);
    world_check_books(&w);
}

static void slots_that_map_nothing_are_passed_over(void **state)
{
    (void)state;
    uint32_t slots[2], wrong[] = {LOCKWORD_SLOTS - 1, LOCKWORD_SLOTS, UINT32_MAX, 4000, 0};
    away_model(3);
    struct session *session = reader(2, slots), *other = client(&w, bob);
    wrong[4] = slots[1];
    verb_ahead(w.core, other, wrong, 5); /* another session's slots are not its own */
    world_run(&w);
    assert_string_equal(there_of(3), "---");
    assert_int_equal(other->ahead, 0);
    verb_ahead(w.core, session, wrong, 5);
    verb_ahead(w.core, session, wrong, 0);
    world_run(&w);
    assert_string_equal(there_of(3), "-1-");
    world_check_books(&w);
}

static void what_is_used_next_waits_for_no_memory_and_costs_an_operation(void **state)
{
    (void)state;
    uint32_t slots[4];
    struct account *account = account_of(w.core, alice.owner);
    away_model(4);
    struct session *session = reader(4, slots);
    uint64_t capacity = w.device->capacity[HBM_TIER_DEVICE];
    w.device->capacity[HBM_TIER_DEVICE] = layer(0)->arena->extent->size;
    verb_ahead(w.core, session, slots, 3);
    world_run(&w);
    assert_string_equal(there_of(4), "0---");
    assert_true(list_empty(&w.core->memory_waiters));
    w.device->capacity[HBM_TIER_DEVICE] = capacity;
    w.core->limits.account[ACCOUNT_OPS] = 1;
    w.hold = true;
    struct ask *question = begin(NULL, "m/layer.3.w");
    verb_ahead(w.core, session, slots, 3); /* is forgotten */
    w.hold = false;
    op_of(&w, question);
    assert_string_equal(there_of(4), "0--3");
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    assert_int_equal(account->use[ACCOUNT_OPS], 1);
    w.hold = false;
    world_run(&w);
    assert_int_equal(account->use[ACCOUNT_OPS], 0);
    assert_string_equal(there_of(4), "0123");
    world_check_books(&w);
}

static void a_session_takes_its_prefetch_along_and_a_cancel_ends_it(void **state)
{
    (void)state;
    uint32_t slots[4];
    away_model(4);
    struct session *session = reader(4, slots);
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    struct ask *stop = ask(&w, alice, NULL);
    verb_op_cancel(w.core, &stop->call, session->ahead);
    verb_ahead(w.core, session, slots + 3, 1); /* too late for that one */
    w.hold = false;
    assert_int_equal(op_of(&w, stop)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there_of(4), "----");
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    uint64_t op = session->ahead;
    assert_true(world_step(&w));
    session_gone(session, true, "bye");
    w.hold = false;
    world_run(&w);
    assert_int_equal(op_get(w.core, op)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there_of(4), "0---");
    world_check_books(&w);
}

static void a_loop_leaves_others_operations_to_be_asked_about(void **state)
{
    (void)state;
    uint32_t slots[1];
    make_kept(&w, "w", 32, 64);
    uint64_t of_interest = offload(&w, "w", HBM_TIER_HOST, false)->id;
    away_model(1);
    struct session *session = reader(1, slots);
    for (unsigned i = 0; i < 2 * OPS_KEPT / 3; i++) {
        verb_ahead(w.core, session, slots, 1);
        world_run(&w);
        assert_string_equal(there_of(1), "0");
        offload(&w, "model:m", HBM_TIER_HOST, true);
    }
    assert_non_null(op_get(w.core, of_interest));
    world_check_books(&w);
}

static void a_daemon_that_stops_waits_for_what_is_on_its_way_alone(void **state)
{
    (void)state;
    uint32_t slots[5];
    away_model(5);
    struct session *session = reader(5, slots);
    w.hold = true;
    struct ask *question = begin(NULL, "m/layer.[01].w");
    verb_ahead(w.core, session, slots + 2, 3);
    core_drain(w.core);
    w.hold = false;
    op_of(&w, question);
    assert_string_equal(there_of(5), "0123-");
    assert_true(core_is_idle(w.core));
    verb_ahead(w.core, session, slots + 4, 1);
    world_run(&w);
    assert_string_equal(there_of(5), "0123-");
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_next_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(what_is_used_next_comes_in_the_order_that_was_said),
        CASE(what_is_said_meanwhile_comes_after_it_and_each_once),
        CASE(slots_that_map_nothing_are_passed_over),
        CASE(what_is_used_next_waits_for_no_memory_and_costs_an_operation),
        CASE(a_session_takes_its_prefetch_along_and_a_cancel_ends_it),
        CASE(a_loop_leaves_others_operations_to_be_asked_about),
        CASE(a_daemon_that_stops_waits_for_what_is_on_its_way_alone),
    };

    return cmocka_run_group_tests_name("what is used next", tests, NULL, NULL);
}
