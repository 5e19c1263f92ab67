/* A move of what clients have mapped or locked, of what another operation moves, of what goes meanwhile. */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <string.h>

static void a_move_waits_until_the_client_lets_go(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    client_locks(session, lease->mappings[0]->slot);
    struct ask *question = ask(&w, alice, NULL);
    unsigned copies = w.ran[JOB_COPY];
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    client_lets_go(&w, session); /* it is locked: nothing happens */
    world_pass(&w, 400);
    assert_int_equal(w.ran[JOB_COPY], copies);
    lockword_unlock(&session->words[lease->mappings[0]->slot]);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0); /* an away mapping keeps no memory on the device */
    assert_false(lease->mappings[0]->present);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 1000);
    assert_int_equal(error_of(&w, locking), 0);
    assert_true(lease->mappings[0]->present);
    assert_ptr_equal(lease->mappings[0]->extent, lease->buffer->arena->extent);
    world_check_books(&w);
}

static void a_client_that_stays_locked_makes_it_busy_and_is_named(void **state)
{
    char pid[16];
    (void)state;
    make_model(&w, "m", 3);
    struct session *session = client(&w, alice), *other = client(&w, alice);
    struct lease *lease = attach(&w, session, "m/layer.1.w", HBM_RO);
    attach(&w, other, "m/layer.0.w", HBM_RO);
    client_locks(session, lease->mappings[0]->slot);
    unsigned copies = w.ran[JOB_COPY];
    struct ask *question = ask(&w, alice, NULL);
    verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, NULL);
    world_run(&w);
    client_lets_go(&w, other);
    world_pass(&w, 501);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_BUSY);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_non_null(strstr(op->detail, pid));
    assert_int_equal(w.ran[JOB_COPY], copies);
    assert_false(atomic_load(&session->words[lease->mappings[0]->slot]) & LOCKWORD_RECLAIM);
    world_check_books(&w);
}

static void a_lock_calls_an_offload_off(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    w.hold = true;
    world_step(&w); /* the extent */
    client_lets_go(&w, session);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 1000);
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void two_operations_on_one_arena_are_one_too_many(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct ask *first = ask(&w, alice, NULL), *second = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &first->call, "w", HBM_TIER_HOST, false);
    verb_offload(w.core, &second->call, "w", HBM_TIER_DISK, false);
    w.hold = false;
    assert_int_equal(op_of(&w, second)->error, HBM_E_BUSY);
    assert_non_null(strstr(op_get(w.core, op_of(&w, first)->id)->verb, "offload"));
    world_check_books(&w);
}

static void cuda_ipc_memory_moves_only_while_nobody_has_it(void **state)
{
    (void)state;
    struct session *session = make_cuda_ipc(&w, "ipc");
    struct op *op = offload(&w, "ipc", HBM_TIER_HOST, false);
    assert_int_equal(op->error, HBM_E_BUSY);
    assert_non_null(strstr(op->detail, "pid "));
    session_gone(session, true, "bye");
    assert_int_equal(offload(&w, "ipc", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "ipc")->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "ipc")->arena->extent->kind, JOB_EXTENT_CUDA_IPC);
    world_check_books(&w);
}

static void what_is_freed_on_the_way_does_not_stop_the_rest(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    struct session *session = client(&w, alice);
    make_buffer(&w, session, "b", 32, 1024, 0);
    struct lease *lease = list_entry(list_first(&session->leases), struct lease, node);
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "[ab]", HBM_TIER_HOST, false);
    world_step(&w);
    world_step(&w);
    struct ask *going = ask(&w, alice, session);
    verb_detach(w.core, &going->call, lease->id);
    w.hold = false;
    assert_int_equal(error_of(&w, going), 0);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(named(&w, "a")->arena), HBM_TIER_HOST);
    for (size_t i = 0; i < op->n_rows; i++)
        assert_int_equal(op->rows[i].error, strcmp(op->rows[i].name, "a") ? HBM_E_STALE : 0);
    world_check_books(&w);
}

static void a_model_that_is_replaced_while_it_comes_back_is_looked_up_again(void **state)
{
    struct attach_args args = {.name = "m", .access = HBM_RO, .timeout_ms = 1000};
    uint64_t lease;

    (void)state;
    make_model(&w, "m", 2);
    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->error, 0);
    struct session *session = client(&w, alice), *builder = build_model(&w, "m", 2, WIRE_REPLACE, &lease);
    struct model *fresh = lease_get(w.core, lease)->model;
    struct ask *attaching = ask(&w, alice, session), *commit = ask(&w, alice, builder);
    w.hold = true;
    verb_attach_model(w.core, &attaching->call, &args);
    verb_commit(w.core, &commit->call, lease, true);
    w.hold = false;
    assert_int_equal(error_of(&w, commit), 0);
    world_run(&w);
    uint64_t attached = attaching->id;
    assert_int_equal(error_of(&w, attaching), 0);
    assert_ptr_equal(lease_get(w.core, attached)->model, fresh);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_shared_move_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_model_that_is_replaced_while_it_comes_back_is_looked_up_again),
        CASE(a_move_waits_until_the_client_lets_go),
        CASE(a_client_that_stays_locked_makes_it_busy_and_is_named),
        CASE(a_lock_calls_an_offload_off),
        CASE(two_operations_on_one_arena_are_one_too_many),
        CASE(cuda_ipc_memory_moves_only_while_nobody_has_it),
        CASE(what_is_freed_on_the_way_does_not_stop_the_rest),
    };

    return cmocka_run_group_tests_name("moves of what others have", tests, NULL, NULL);
}
