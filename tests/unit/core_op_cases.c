/* Whose an operation is, how many there may be, and how long they are remembered. */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>

static void an_operation_is_cancelled_with_the_client_that_asked_for_it(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct ask *question = ask(&w, alice, session);
    w.hold = true;
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    session_gone(session, true, "bye");
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    world_check_books(&w);
}

static void a_cancel_is_for_the_owner_of_an_operation(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct op *op = offload(&w, "w", HBM_TIER_HOST, false);
    struct ask *stop = ask(&w, bob, NULL);
    verb_op_cancel(w.core, &stop->call, op->id);
    assert_int_equal(error_of(&w, stop), HBM_E_NOT_FOUND);
    stop = ask(&w, root, NULL);
    verb_op_cancel(w.core, &stop->call, op->id);
    assert_int_equal(op_of(&w, stop)->state, WIRE_OP_DONE);
}

static void ended_operations_are_kept_up_to_a_number(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 32);
    uint64_t first = restore(&w, "w")->id;
    for (unsigned i = 0; i < OPS_KEPT; i++)
        restore(&w, "w");
    assert_null(op_get(w.core, first));
    assert_int_equal(w.core->n_ops, OPS_KEPT);
}

static void the_rows_of_ended_operations_are_kept_up_to_a_number(void **state)
{
    (void)state;
    int error = 0;
    char detail[HBM_DETAIL_MAX];
    uint64_t ids[3];

    for (unsigned i = 0; i < 3; i++) {
        struct op *op = op_new(w.core, "test", NULL, NULL, OP_ROWS_KEPT / 2, &error, detail);
        ids[i] = op->id;
        op_end(op, 0, NULL);
    }
    assert_int_equal(op_get(w.core, ids[0])->n_rows, 0);
    assert_int_equal(op_get(w.core, ids[1])->n_rows, OP_ROWS_KEPT / 2);
    struct op *op = op_new(w.core, "test", NULL, NULL, OP_ROWS_KEPT + 1, &error, detail);
    op_end(op, 0, NULL);
    assert_int_equal(op_get(w.core, ids[2])->n_rows, 0);
    assert_int_equal(op->n_rows, OP_ROWS_KEPT + 1); /* what was just asked for is not lost */
}

static void an_account_has_so_many_operations_at_once(void **state)
{
    (void)state;
    make_model(&w, "m", 10);
    struct ask *asks[9];
    char sel[32];
    w.hold = true;
    for (unsigned i = 0; i < 9; i++) {
        asks[i] = ask(&w, alice, NULL);
        snprintf(sel, sizeof(sel), "m/layer.%u.w", i);
        verb_offload(w.core, &asks[i]->call, sel, HBM_TIER_HOST, true);
    }
    assert_int_equal(error_of(&w, asks[8]), HBM_E_LIMIT);
    w.hold = false;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(op_of(&w, asks[i])->state, WIRE_OP_DONE);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_op_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(an_operation_is_cancelled_with_the_client_that_asked_for_it),
        CASE(a_cancel_is_for_the_owner_of_an_operation),
        CASE(the_rows_of_ended_operations_are_kept_up_to_a_number),
        CASE(ended_operations_are_kept_up_to_a_number),
        CASE(an_account_has_so_many_operations_at_once),
    };

    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
