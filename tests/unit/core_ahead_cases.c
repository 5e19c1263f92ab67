/* Host memory that is made ahead: ready for the first move of what lies on the device, and nobody's until then. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/host_ahead.h"
#include "daemon/core/host_pool.h"

#define IDLE_MS 3600000

static void set_up(uint64_t cap)
{
    w.core->limits.host_pool_idle_ms = IDLE_MS;
    host_ahead_limit(w.device, cap);
    world_run(&w);
}

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    set_up(64 * MIB);
    return 0;
}

/* As if the device were a GPU, which keeps what its owner has let go of, too. */
static int begin_gpu(void **state)
{
    begin(state);
    w.device->is_cuda = true;
    return 0;
}

static void grow(void)
{
    for (unsigned i = 0; i < 20; i++)
        world_pass(&w, 200);
}

static uint64_t ready(void)
{
    return w.device->ahead.bytes;
}

static uint64_t size_of(const struct buffer *buffer)
{
    return buffer->arena->extent->size;
}

static unsigned creates(void)
{
    return w.ran[JOB_CREATE];
}

static void offloads(const char *name)
{
    assert_int_equal(offload(&w, name, HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
}

static void what_lies_on_the_device_has_memory_ready_for_its_first_offload(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024), *b = make_kept(&w, "b", 64, 1024);
    uint64_t size = size_of(a) + size_of(b);

    fill(a, 3);
    grow();
    assert_int_equal(ready(), size);
    assert_int_equal(w.device->pooled, size);
    assert_int_equal(w.device->used[HBM_TIER_HOST], size);
    assert_int_equal(a->arena->extent->account->use[HBM_TIER_HOST], 0);   /* nobody pays yet */
    assert_int_equal(a->arena->extent->account->use[ACCOUNT_OBJECTS], 2); /* nor is it kept over a restart */
    world_check_books(&w);
    unsigned before = creates();
    offloads("a");
    assert_int_equal(creates(), before);
    assert_true(is_filled(a, 3));
    assert_int_equal(a->arena->extent->account->use[HBM_TIER_HOST], size_of(a));
    assert_int_equal(ready(), size_of(b));
    grow();
    assert_int_equal(ready(), size_of(b)); /* what lies in host memory needs none */
    world_check_books(&w);
}

static void one_piece_at_a_time_and_a_pause_as_long_as_it_took(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    make_kept(&w, "b", 64, 1024);
    unsigned before = creates();

    w.hold = true;
    world_pass(&w, 100);
    assert_false(list_empty(&w.jobs));
    assert_true(list_first(&w.jobs)->next == &w.jobs);
    w.now += 500; /* a slow one */
    w.hold = false;
    world_run(&w);
    assert_int_equal(creates(), before + 1);
    world_pass(&w, 499);
    assert_int_equal(creates(), before + 1);
    world_pass(&w, 1);
    assert_int_equal(creates(), before + 2);
}

static void never_more_than_the_cap(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);

    make_kept(&w, "b", 64, 1024);
    make_kept(&w, "c", 32, 1024);
    host_ahead_limit(w.device, 2 * size_of(a) - 1);
    grow();
    assert_int_equal(ready(), size_of(a));
    host_ahead_limit(w.device, 2 * size_of(a));
    grow();
    assert_int_equal(ready(), 2 * size_of(a));
    world_check_books(&w);
}

static void a_lower_cap_takes_what_is_over_it(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);

    make_kept(&w, "b", 32, 1024);
    grow();
    host_ahead_limit(w.device, size_of(a));
    world_run(&w);
    assert_int_equal(ready(), size_of(a));
    host_ahead_limit(w.device, 0);
    world_run(&w);
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    grow();
    assert_int_equal(ready(), 0);
    assert_int_equal(w.wake, 0);
}

static void what_is_made_when_the_cap_is_lowered_is_not_kept(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    w.hold = true;
    world_pass(&w, 100);
    assert_false(list_empty(&w.jobs));
    host_ahead_limit(w.device, 0);
    w.hold = false;
    world_run(&w);
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

static void another_owner_gets_memory_that_was_nobodys(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);

    grow();
    offloads("a");
    assert_int_equal(restore(&w, "a")->state, WIRE_OP_DONE);
    assert_int_equal(w.device->pooled, size_of(a)); /* alice's now, with her bytes in it */
    grow();
    assert_int_equal(ready(), 0); /* it is hers for the next time */
    struct session *session = client(&w, bob);
    make_buffer(&w, session, "b", 32, 1024, WIRE_KEEP);
    session_gone(session, true, "bye");
    grow();
    assert_int_equal(ready(), size_of(a)); /* what is hers is nothing for bob */
    unsigned before = creates();
    struct ask *question = ask(&w, bob, NULL);
    verb_offload(w.core, &question->call, "b", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(creates(), before);
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->pooled, size_of(a));
    world_check_books(&w);
}

static void what_stays_or_leaves_in_another_form_gets_none(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024), *b = make_kept(&w, "b", 64, 1024);
    struct ask *question = ask(&w, alice, NULL);

    b->park.encoding.codec = HBM_CODEC_FP16;
    verb_priority(w.core, &question->call, "a", PRIORITY_NEVER);
    assert_int_equal(error_of(&w, question), 0);
    grow();
    assert_int_equal(ready(), 0);
    b->park.encoding.codec = HBM_CODEC_RAW;
    host_ahead_wake(w.device);
    grow();
    assert_int_equal(ready(), size_of(b));
    assert_int_not_equal(size_of(a), size_of(b));
}

static void what_is_on_its_way_out_gets_no_second_piece(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    grow();
    unsigned before = creates();
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "a", HBM_TIER_HOST, false);
    world_run(&w);
    assert_int_equal(ready(), 0);
    assert_false(list_empty(&w.jobs)); /* the copy */
    host_ahead_wake(w.device);
    world_pass(&w, 1000);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(creates(), before);
}

static void what_fits_nothing_any_more_goes_after_a_minute(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);
    uint64_t size = size_of(a);
    struct ask *question;

    grow();
    question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, a->id);
    assert_int_equal(error_of(&w, question), 0);
    world_pass(&w, 200);
    world_pass(&w, 59000);
    assert_int_equal(ready(), size);
    world_pass(&w, 2000);
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    assert_int_equal(w.wake, 0); /* nothing left to wake up for */
}

static void it_goes_when_nothing_happens_and_comes_back_with_the_next_use(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);

    grow();
    unsigned before = creates();
    world_pass(&w, IDLE_MS - 10000);
    assert_int_equal(ready(), size_of(a));
    struct session *session = client(&w, alice);
    attach(&w, session, "a", HBM_RO);
    world_pass(&w, IDLE_MS - 10000);
    assert_int_equal(ready(), size_of(a)); /* it was used meanwhile */
    world_pass(&w, 20000);
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    assert_int_equal(w.wake, 0);
    assert_int_equal(creates(), before);
    session_gone(session, true, "bye");
    grow();
    assert_int_equal(ready(), size_of(a));
}

static void it_gives_way_to_who_needs_the_room(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024), *b = make_kept(&w, "b", 64, 1024);

    w.device->capacity[HBM_TIER_HOST] = size_of(b);
    grow();
    assert_int_equal(ready(), size_of(a)); /* no more than there is room for */
    offloads("b");
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], size_of(b));
    grow();
    assert_int_equal(ready(), 0);
    world_check_books(&w);
}

static void a_machine_short_of_memory_gets_it_back_and_is_left_alone(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024), *b = make_kept(&w, "b", 64, 1024);

    host_ahead_limit(w.device, size_of(a));
    grow();
    world_fail(&w, JOB_CREATE, 1, HBM_E_NO_MEMORY);
    offloads("b");
    assert_int_equal(ready(), 0);
    world_pass(&w, 50000);
    assert_int_equal(ready(), 0);
    world_pass(&w, 20000);
    assert_int_equal(ready(), size_of(a));
    assert_int_equal(arena_tier(b->arena), HBM_TIER_HOST);
}

static void what_fails_is_tried_again_later_and_later(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);
    unsigned before = creates();

    for (unsigned i = 0; i < 3; i++) {
        world_fail(&w, JOB_CREATE, 1, HBM_E_WORKER_DIED);
        world_pass(&w, i ? 10 : 100);
        assert_int_equal(creates(), before + i + 1);
        host_ahead_wake(w.device); /* whatever happens meanwhile */
        world_pass(&w, (1000u << i) - 10);
        assert_int_equal(creates(), before + i + 1);
    }
    assert_int_equal(ready(), 0);
    world_pass(&w, 10);
    assert_int_equal(ready(), size_of(a));
}

static void without_a_worker_it_waits_for_the_next(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);
    unsigned before = creates();

    device_worker_gone(w.core, w.device, "killed");
    grow();
    assert_int_equal(creates(), before);
    w.device->worker_pid = 2;
    host_ahead_wake(w.device); /* as it says that it serves */
    grow();
    assert_int_equal(ready(), size_of(a));
}

static void a_restart_begins_without_it_and_makes_it_anew(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    grow();
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    assert_int_equal(w.device->pooled, 0);
    set_up(64 * MIB);
    grow();
    assert_int_equal(ready(), size_of(named(&w, "a")));
    world_check_books(&w);
}

static void a_daemon_that_stops_makes_none(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    w.hold = true;
    world_pass(&w, 100);
    core_drain(w.core);
    w.hold = false;
    grow();
    assert_int_equal(ready(), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)
#define GPU_CASE(name) cmocka_unit_test_setup_teardown(name, begin_gpu, world_teardown)

int core_ahead_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_lies_on_the_device_has_memory_ready_for_its_first_offload),
        CASE(one_piece_at_a_time_and_a_pause_as_long_as_it_took),
        CASE(never_more_than_the_cap),
        CASE(a_lower_cap_takes_what_is_over_it),
        CASE(what_is_made_when_the_cap_is_lowered_is_not_kept),
        GPU_CASE(another_owner_gets_memory_that_was_nobodys),
        CASE(what_stays_or_leaves_in_another_form_gets_none),
        CASE(what_is_on_its_way_out_gets_no_second_piece),
        CASE(what_fits_nothing_any_more_goes_after_a_minute),
        CASE(it_goes_when_nothing_happens_and_comes_back_with_the_next_use),
        CASE(it_gives_way_to_who_needs_the_room),
        CASE(a_machine_short_of_memory_gets_it_back_and_is_left_alone),
        CASE(what_fails_is_tried_again_later_and_later),
        CASE(without_a_worker_it_waits_for_the_next),
        CASE(a_restart_begins_without_it_and_makes_it_anew),
        CASE(a_daemon_that_stops_makes_none),
    };

    return cmocka_run_group_tests_name("host memory made ahead", tests, NULL, NULL);
}
