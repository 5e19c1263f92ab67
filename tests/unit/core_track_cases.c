/* An operation on several arenas: two of them are under way at a time, of small ones eight, and all or nothing comes of
 * it. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>

static unsigned jobs_waiting(void)
{
    unsigned n = 0;

    list_for_each (node, &w.jobs)
        n++;
    return n;
}

/* All jobs that make memory are done, and nothing of what copies. */
static void run_creates(void)
{
    world_run(&w);
    while (!list_empty(&w.jobs) && list_entry(list_first(&w.jobs), struct job, node)->opcode == JOB_CREATE)
        world_step(&w), world_run(&w);
}

static struct ask *begin(enum hbm_tier tier)
{
    struct ask *question = ask(&w, alice, NULL);

    w.hold = true;
    if (tier == HBM_TIER_DEVICE)
        verb_restore(w.core, &question->call, "b*");
    else
        verb_offload(w.core, &question->call, "b*", tier, false);
    run_creates();
    return question;
}

static void make_three(void)
{
    make_kept(&w, "b1", 32, 1024), make_kept(&w, "b2", 32, 1024), make_kept(&w, "b3", 32, 1024);
    fill(named(&w, "b1"), 1), fill(named(&w, "b2"), 2), fill(named(&w, "b3"), 3);
}

static void expect_all(enum hbm_tier tier)
{
    char name[] = "b1";

    for (unsigned i = 1; i <= 3; i++, name[1]++) {
        assert_int_equal(arena_tier(named(&w, name)->arena), tier);
        assert_true(is_filled(named(&w, name), i));
    }
    world_check_books(&w);
}

static struct op *go_on(struct ask *question)
{
    w.hold = false;
    return op_of(&w, question);
}

static void of_large_ones_two_are_copied_side_by_side_and_the_third_when_one_is_done(void **state)
{
    (void)state;
    make_kept(&w, "b1", 4096, 1024), make_kept(&w, "b2", 4096, 1024), make_kept(&w, "b3", 4096, 1024);
    struct ask *question = begin(HBM_TIER_HOST);
    assert_int_equal(jobs_waiting(), 2);
    world_step(&w);
    world_run(&w);
    assert_int_equal(jobs_waiting(), 2);
    world_step(&w);
    world_run(&w);
    assert_int_equal(jobs_waiting(), 1);
    assert_int_equal(arena_tier(named(&w, "b1")->arena), HBM_TIER_DEVICE); /* all are swapped at once */
    assert_int_equal(go_on(question)->state, WIRE_OP_DONE);
    question = begin(HBM_TIER_DEVICE);
    assert_int_equal(jobs_waiting(), 2);
    assert_int_equal(go_on(question)->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(named(&w, "b3")->arena), HBM_TIER_DEVICE);
}

static void make_ten(void)
{
    make_three();
    for (char name[] = "b4x"; name[1] <= '9'; name[1]++)
        make_kept(&w, name, 1, 1);
    make_kept(&w, "b10", 1, 1);
}

static void of_small_ones_eight_are_under_way_and_the_next_when_one_is_done(void **state)
{
    (void)state;
    make_ten();
    struct ask *question = begin(HBM_TIER_HOST);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(jobs_waiting(), 8);
        world_step(&w);
        world_run(&w);
    }
    assert_int_equal(jobs_waiting(), 8);
    world_step(&w);
    assert_int_equal(jobs_waiting(), 7);
    assert_int_equal(arena_tier(named(&w, "b1")->arena), HBM_TIER_DEVICE);
    assert_int_equal(go_on(question)->state, WIRE_OP_DONE);
    expect_all(HBM_TIER_HOST);
    question = begin(HBM_TIER_DEVICE);
    assert_int_equal(jobs_waiting(), 8);
    assert_int_equal(go_on(question)->state, WIRE_OP_DONE);
    expect_all(HBM_TIER_DEVICE);
}

static struct ask *begin_creating(void)
{
    struct ask *question = ask(&w, alice, NULL);

    make_ten();
    w.hold = true;
    verb_offload(w.core, &question->call, "b*", HBM_TIER_HOST, false);
    world_run(&w);
    assert_int_equal(list_entry(list_first(&w.jobs), struct job, node)->opcode, JOB_CREATE);
    return question;
}

static void the_memory_of_eight_small_ones_is_made_at_once(void **state)
{
    (void)state;
    struct ask *question = begin_creating();
    assert_int_equal(jobs_waiting(), 8);
    world_step(&w);
    world_run(&w);
    assert_int_equal(jobs_waiting(), 8);
    assert_int_equal(go_on(question)->state, WIRE_OP_DONE);
    expect_all(HBM_TIER_HOST);
}

static void memory_that_cannot_be_made_undoes_what_was_made_beside_it(void **state)
{
    (void)state;
    struct ask *question = begin_creating();
    unsigned copies = w.ran[JOB_COPY];
    world_fail(&w, JOB_CREATE, 3, HBM_E_NO_SPACE);
    assert_int_equal(go_on(question)->error, HBM_E_NO_SPACE);
    assert_int_equal(w.ran[JOB_COPY], copies);
    expect_all(HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

static void a_cancel_while_memory_is_made_leaves_all_where_it_was(void **state)
{
    (void)state;
    struct ask *question = begin_creating();
    op_cancel(op_get(w.core, question->id), "asked to");
    assert_int_equal(go_on(question)->error, HBM_E_CANCELLED);
    expect_all(HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

/* Room for two of the ten: the third waits for some, and nobody is sent to stand behind it. */
static void one_that_waits_for_room_is_waited_for(void **state)
{
    (void)state;
    uint64_t capacity = w.device->capacity[HBM_TIER_HOST];
    make_ten();
    w.device->capacity[HBM_TIER_HOST] = named(&w, "b1")->arena->extent->size * 2;
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "b*", HBM_TIER_HOST, false);
    run_creates();
    unsigned waiting = 0;
    list_for_each (node, &w.core->memory_waiters)
        waiting++;
    assert_int_equal(waiting, 1);
    op_cancel(op_get(w.core, question->id), "asked to");
    assert_int_equal(go_on(question)->error, HBM_E_CANCELLED);
    expect_all(HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    w.device->capacity[HBM_TIER_HOST] = capacity;
}

static void the_bytes_of_all_are_its_progress(void **state)
{
    (void)state;
    make_three();
    struct ask *question = begin(HBM_TIER_HOST);
    uint64_t id = question->id;

    list_for_each (node, &w.jobs) {
        struct job *job = list_entry(node, struct job, node);
        job->bytes_done = 4096;
        job->progress(job);
    }
    assert_int_equal(op_progress(op_get(w.core, id)), 3 * 4096);
    uint64_t total = op_get(w.core, id)->bytes_total;
    const struct op *op = go_on(question);
    assert_int_equal(op->bytes_done, total);
}

static void the_first_error_calls_the_others_off_and_is_what_is_told(void **state)
{
    (void)state;
    make_ten();
    struct ask *question = begin(HBM_TIER_HOST);
    world_fail(&w, JOB_COPY, 1, HBM_E_NO_SPACE);
    world_step(&w);
    assert_int_equal(jobs_waiting(), 7);
    list_for_each (node, &w.jobs)
        assert_int_equal(list_entry(node, struct job, node)->error, HBM_E_CANCELLED);
    unsigned copies = w.ran[JOB_COPY];
    assert_int_equal(go_on(question)->error, HBM_E_NO_SPACE);
    assert_true(w.ran[JOB_COPY] <= copies + 7); /* the last two never begin */
    expect_all(HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

static void an_error_of_the_second_undoes_what_the_first_has_made(void **state)
{
    (void)state;
    make_three();
    assert_int_equal(offload(&w, "b*", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    struct ask *question = begin(HBM_TIER_DEVICE);
    world_fail(&w, JOB_COPY, 2, HBM_E_NO_MEMORY);
    assert_int_equal(go_on(question)->error, HBM_E_NO_MEMORY);
    expect_all(HBM_TIER_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
}

static void a_cancel_ends_all(void **state)
{
    (void)state;
    make_three();
    struct ask *question = begin(HBM_TIER_HOST);
    op_cancel(op_get(w.core, question->id), "asked to");
    list_for_each (node, &w.jobs)
        assert_int_equal(list_entry(node, struct job, node)->error, HBM_E_CANCELLED);
    assert_int_equal(go_on(question)->error, HBM_E_CANCELLED);
    expect_all(HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_track_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(of_large_ones_two_are_copied_side_by_side_and_the_third_when_one_is_done),
        CASE(of_small_ones_eight_are_under_way_and_the_next_when_one_is_done),
        CASE(the_memory_of_eight_small_ones_is_made_at_once),
        CASE(memory_that_cannot_be_made_undoes_what_was_made_beside_it),
        CASE(a_cancel_while_memory_is_made_leaves_all_where_it_was),
        CASE(one_that_waits_for_room_is_waited_for),
        CASE(the_bytes_of_all_are_its_progress),
        CASE(the_first_error_calls_the_others_off_and_is_what_is_told),
        CASE(an_error_of_the_second_undoes_what_the_first_has_made),
        CASE(a_cancel_ends_all),
    };

    return cmocka_run_group_tests_name("tracks", tests, NULL, NULL);
}
