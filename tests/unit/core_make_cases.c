/* Device memory that a restore's copy makes itself: there is none of it before the bytes are there. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>

static struct buffer *away(void)
{
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 7);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    return buffer;
}

static struct ask *begin_restore(void)
{
    struct ask *question = ask(&w, alice, NULL);

    w.hold = true;
    verb_restore(w.core, &question->call, "w");
    world_run(&w);
    return question;
}

static void a_restore_is_one_job(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    unsigned creates = w.ran[JOB_CREATE], copies = w.ran[JOB_COPY];

    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_CREATE], creates);
    assert_int_equal(w.ran[JOB_COPY], copies + 1);
    assert_non_null(world_kept(&w, "x-")); /* what came back is in the store */
    assert_true(is_filled(buffer, 7));
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_DEVICE);
    assert_true(is_filled(named(&w, "w"), 7));
    world_check_books(&w);
}

static void its_room_is_taken_before_the_job_runs(void **state)
{
    (void)state;
    uint64_t size = away()->arena->extent->size;
    struct ask *question = begin_restore();

    assert_int_equal(w.device->used[HBM_TIER_DEVICE], size);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], size);
}

static void a_device_without_room_after_all_leaves_everything_as_it_was(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    char *before = world_picture(&w);

    world_fail(&w, JOB_COPY, 1, HBM_E_NO_MEMORY);
    assert_int_equal(restore(&w, "w")->error, HBM_E_NO_MEMORY);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
}

static void a_worker_that_sends_no_memory_is_told_of_and_nothing_is_lost(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    struct ask *question = begin_restore();
    struct job *job = list_entry(list_first(&w.jobs), struct job, node);

    list_unlink(&job->node);
    job->done(job); /* without an fd */
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_INTERNAL);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void a_cancel_that_comes_too_late_for_the_job_keeps_nothing_of_it(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    struct ask *question = begin_restore();

    op_cancel(op_get(w.core, question->id), "asked to");
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_CANCELLED);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void a_crash_while_it_runs_finds_the_bytes_where_they_were(void **state)
{
    (void)state;
    away();
    struct ask *unanswered = begin_restore();
    assert_int_equal(world_restart(&w), 0);
    free(unanswered);
    w.hold = false;
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    assert_true(is_filled(named(&w, "w"), 7));
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_make_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_restore_is_one_job),
        CASE(its_room_is_taken_before_the_job_runs),
        CASE(a_device_without_room_after_all_leaves_everything_as_it_was),
        CASE(a_worker_that_sends_no_memory_is_told_of_and_nothing_is_lost),
        CASE(a_cancel_that_comes_too_late_for_the_job_keeps_nothing_of_it),
        CASE(a_crash_while_it_runs_finds_the_bytes_where_they_were),
    };

    return cmocka_run_group_tests_name("memory that a copy makes", tests, NULL, NULL);
}
