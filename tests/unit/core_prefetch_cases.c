#include "core_cases.h"
#include "core_prefetch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void a_prefetch_brings_one_group_after_the_other_two_at_a_time(void **state)
{
    (void)state;
    away_model(4);
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    static const char *const seen[] = {"----", "0---", "01--", "012-", "0123"};
    for (unsigned i = 0; i < 4; i++) {
        assert_string_equal(there_of(4), seen[i]);
        assert_int_equal(moving(4), i < 3 ? 2 : 1);
        assert_true(world_step(&w));
    }
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_string_equal(there_of(4), seen[4]);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 8);
    assert_int_equal(op->bytes_done, op->bytes_total);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(op->rows[i].tier, HBM_TIER_DEVICE);
        assert_null(op->rows[i].skipped);
    }
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    assert_true(is_filled(named(&w, "m/layer.3.b"), 8));
    world_check_books(&w);
}

static void a_prefetch_of_what_is_there_is_done_at_once(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    assert_int_equal(op_get(w.core, question->id)->state, WIRE_OP_DONE);
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_int_equal(op->n_rows, 4);
    assert_int_equal(op->bytes_total, 0);
    assert_null(op->rows[3].skipped);
    assert_int_equal(w.ran[JOB_COPY], copies);
}

/* FAULTS 18 */
static void what_a_prefetch_finds_no_room_for_stays_and_is_said(void **state)
{
    (void)state;
    away_model(3);
    w.device->capacity[HBM_TIER_DEVICE] = 2 * layer(0)->arena->extent->size;
    struct op *op = prefetch("model:m"); /* and no time has passed */
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(there_of(3), "01-");
    assert_null(op->rows[3].skipped);
    assert_string_equal(op->rows[4].skipped, "the device has no room for it");
    assert_int_equal(op->rows[4].error, 0);
    assert_int_equal(op->rows[4].tier, HBM_TIER_HOST);
    assert_true(list_empty(&w.core->memory_waiters));
    world_check_books(&w);
}

static void a_prefetch_takes_no_memory_that_others_wait_for(void **state)
{
    (void)state;
    away_model(2);
    make_kept(&w, "large", 64, 1024);
    make_kept(&w, "other", 64, 1024);
    offload(&w, "large", HBM_TIER_HOST, false);
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE] + 2 * layer(0)->arena->extent->size;
    struct ask *waits = ask(&w, alice, NULL);
    verb_restore(w.core, &waits->call, "large");
    world_run(&w);
    assert_false(list_empty(&w.core->memory_waiters));
    struct op *op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(there_of(2), "--");
    assert_string_equal(op->rows[0].skipped, "others wait for memory of its device");
    offload(&w, "other", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, waits)->state, WIRE_OP_DONE);
}

static void a_lock_of_what_is_on_its_way_waits_for_that_move_alone(void **state)
{
    (void)state;
    away_model(4);
    struct session *session = client(&w, alice);
    uint32_t slot = attach_away(session, 0)->mappings[0]->slot;
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    struct ask *question = begin(NULL, "model:m"), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &slot, 1, 1000);
    assert_int_equal(locking->answers, 0);
    assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1); /* the first layer is usable, and three are not there yet */
    assert_string_equal(there_of(4), "0---");
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_COPY], copies + 4); /* each once */
    world_check_books(&w);
}

static void a_lock_of_what_a_prefetch_has_not_begun_does_not_wait_for_the_rest(void **state)
{
    (void)state;
    away_model(6);
    struct session *session = client(&w, alice);
    uint32_t slot = attach_away(session, 5)->mappings[0]->slot;
    w.hold = true;
    struct ask *question = begin(NULL, "model:m"), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &slot, 1, 1000);
    for (unsigned i = 0; i < 3; i++) /* two on their way, and its own */
        assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1);
    assert_string_equal(there_of(6), "01---5");
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    for (unsigned i = 0; i < 12; i++)
        assert_null(op->rows[i].skipped);
    world_check_books(&w);
}

/* FAULTS 14 */
static void a_cancelled_prefetch_keeps_what_has_come(void **state)
{
    (void)state;
    for (unsigned steps = 0; steps < 4; steps++) {
        if (!steps)
            away_model(4);
        else
            offload(&w, "model:m", HBM_TIER_HOST, true);
        w.hold = true;
        struct ask *question = begin(NULL, "model:m"), *stop = ask(&w, alice, NULL);
        for (unsigned i = 0; i < steps; i++)
            assert_true(world_step(&w));
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        struct op *op = op_of(&w, question);
        assert_int_equal(op->state, WIRE_OP_CANCELLED);
        assert_string_equal(op->detail, "it was cancelled on request");
        for (unsigned i = 0; i < 4; i++) {
            bool came = i < steps;
            assert_int_equal(arena_tier(layer(i)->arena), came ? HBM_TIER_DEVICE : HBM_TIER_HOST);
            assert_int_equal(op->rows[2 * i].error, came ? 0 : HBM_E_CANCELLED);
            assert_null(layer(i)->arena->transition);
        }
        world_check_books(&w);
    }
}

static void a_prefetch_ends_with_the_client_that_asked_for_it(void **state)
{
    (void)state;
    away_model(4);
    struct session *session = client(&w, alice);
    w.hold = true;
    struct ask *question = begin(session, "model:m");
    assert_true(world_step(&w));
    session_gone(session, true, "bye");
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there_of(4), "0---");
    world_check_books(&w);
}

/* FAULTS 24: what a dying worker takes with it stays away; the rest comes. */
static void a_worker_that_dies_in_a_prefetch_takes_one_group_with_it(void **state)
{
    (void)state;
    away_model(3);
    world_fail(&w, JOB_COPY, 2, HBM_E_WORKER_DIED);
    struct op *op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_FAILED);
    assert_int_equal(op->error, HBM_E_WORKER_DIED);
    assert_non_null(strstr(op->detail, "1 of 3 arenas did not come"));
    assert_string_equal(there_of(3), "0-2");
    assert_int_equal(op->rows[0].error, 0);
    assert_int_equal(op->rows[2].error, HBM_E_WORKER_DIED);
    assert_int_equal(prefetch("model:m")->state, WIRE_OP_DONE);
    assert_string_equal(there_of(3), "012");
    world_check_books(&w);
}

static void a_damaged_group_is_told_and_the_others_come(void **state)
{
    (void)state;
    away_model(3);
    assert_int_equal(pwrite(layer(0)->arena->extent->fd, "x", 1, 100), 1);
    struct op *op = prefetch("model:m");
    assert_int_equal(op->error, HBM_E_CHECKSUM);
    assert_string_equal(there_of(3), "-12");
    assert_int_equal(op->rows[0].error, HBM_E_CHECKSUM);
    assert_int_equal(op->rows[2].error, 0);
    world_check_books(&w);
}

static void what_is_freed_before_its_turn_is_no_obstacle(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 64);
    make_kept(&w, "b", 32, 64);
    make_kept(&w, "c", 32, 64);
    offload(&w, "*", HBM_TIER_HOST, true);
    w.hold = true;
    struct ask *question = begin(NULL, "*"), *freeing = ask(&w, alice, NULL);
    verb_free_sel(w.core, &freeing->call, "c");
    w.hold = false;
    op_of(&w, freeing);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->rows[1].tier, HBM_TIER_DEVICE);
    assert_int_equal(op->rows[2].error, HBM_E_STALE);
    world_check_books(&w);
}

static void a_prefetch_passes_over_what_others_move_and_what_is_drained(void **state)
{
    (void)state;
    away_model(2);
    w.hold = true;
    struct ask *moves = ask(&w, alice, NULL);
    verb_offload(w.core, &moves->call, "m/layer.0.w", HBM_TIER_DISK, true);
    struct ask *question = begin(NULL, "model:m");
    while (arena_tier(layer(1)->arena) != HBM_TIER_DEVICE)
        assert_true(world_step(&w));
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->rows[0].skipped, "another operation has it");
    op_of(&w, moves);
    struct ask *draining = ask(&w, root, NULL);
    verb_drain(w.core, &draining->call, NULL);
    op_of(&w, draining);
    op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->rows[2].skipped, "its device is drained");
    assert_string_equal(there_of(2), "--");
    world_check_books(&w);
}

static unsigned buffers_looked_up;

struct buffer *__real_buffer_get(struct core *core, uint64_t id);

struct buffer *__wrap_buffer_get(struct core *core, uint64_t id);

struct buffer *__wrap_buffer_get(struct core *core, uint64_t id)
{
    buffers_looked_up++;
    return __real_buffer_get(core, id);
}

static void a_prefetch_looks_at_a_buffer_as_often_however_many_groups_it_passes_over(void **state)
{
    (void)state;
    away_model(32);
    struct ask *draining = ask(&w, root, NULL);
    verb_drain(w.core, &draining->call, NULL);
    op_of(&w, draining);
    buffers_looked_up = 0;
    struct op *op = prefetch("model:m");
    assert_int_equal(op->n_rows, 64);
    assert_string_equal(op->rows[63].skipped, "its device is drained");
    assert_true(buffers_looked_up > 0);
    assert_true(buffers_looked_up <= 4 * 64);
}

static void a_prefetch_is_not_remembered_by_the_next_owner(void **state)
{
    (void)state;
    away_model(3);
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    assert_true(world_step(&w));
    free(question);
    w.hold = false;
    assert_int_equal(world_restart(&w), 0);
    world_run(&w);
    assert_string_equal(there_of(3), "0--");
    assert_int_equal(prefetch("model:m")->state, WIRE_OP_DONE);
    assert_string_equal(there_of(3), "012");
    assert_true(is_filled(named(&w, "m/layer.2.w"), 5));
    world_check_books(&w);
}

static void a_prefetch_is_for_who_may_read(void **state)
{
    (void)state;
    uint64_t lease;
    make_kept(&w, "w", 32, 64);
    offload(&w, "w", HBM_TIER_HOST, false);
    w.core->limits.account[ACCOUNT_OPS] = 1;
    named(&w, "w")->arena->mode = 0600;
    struct ask *question = ask(&w, bob, NULL);
    verb_prefetch(w.core, &question->call, "~1000/w");
    assert_int_equal(error_of(&w, question), HBM_E_NOT_FOUND);
    build_model(&w, "built", 2, 0, &lease);
    question = ask(&w, alice, NULL);
    verb_prefetch(w.core, &question->call, "model:built");
    assert_int_equal(error_of(&w, question), HBM_E_NOT_READY);
    w.hold = true;
    struct ask *first = begin(NULL, "w");
    question = begin(NULL, "w");
    assert_int_equal(question->error, HBM_E_LIMIT);
    w.hold = false;
    free(question);
    assert_int_equal(op_of(&w, first)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_prefetch_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_prefetch_brings_one_group_after_the_other_two_at_a_time),
        CASE(a_prefetch_of_what_is_there_is_done_at_once),
        CASE(what_a_prefetch_finds_no_room_for_stays_and_is_said),
        CASE(a_prefetch_takes_no_memory_that_others_wait_for),
        CASE(a_lock_of_what_is_on_its_way_waits_for_that_move_alone),
        CASE(a_lock_of_what_a_prefetch_has_not_begun_does_not_wait_for_the_rest),
        CASE(a_cancelled_prefetch_keeps_what_has_come),
        CASE(a_prefetch_ends_with_the_client_that_asked_for_it),
        CASE(a_worker_that_dies_in_a_prefetch_takes_one_group_with_it),
        CASE(a_damaged_group_is_told_and_the_others_come),
        CASE(what_is_freed_before_its_turn_is_no_obstacle),
        CASE(a_prefetch_passes_over_what_others_move_and_what_is_drained),
        CASE(a_prefetch_looks_at_a_buffer_as_often_however_many_groups_it_passes_over),
        CASE(a_prefetch_is_not_remembered_by_the_next_owner),
        CASE(a_prefetch_is_for_who_may_read),
    };

    return cmocka_run_group_tests_name("prefetch", tests, NULL, NULL);
}
