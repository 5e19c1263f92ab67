/* The host pool: what a wake releases serves the next sleep, and gives way to everyone else. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>

/* As if the device were a GPU: memfds do for its host-NUMA memory. */
static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    w.device->is_cuda = true;
    return 0;
}

static uint64_t used_on_host(void)
{
    return w.device->used[HBM_TIER_HOST];
}

static unsigned stored_as(const char *prefix)
{
    unsigned n = 0;

    list_for_each (node, &w.store)
        n += !strncmp(list_entry(node, struct kept, node)->name, prefix, strlen(prefix));
    return n;
}

static void sleep_and_wake(const char *name)
{
    assert_int_equal(offload(&w, name, HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, name)->state, WIRE_OP_DONE);
}

static void what_a_restore_releases_serves_the_next_offload(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    uint64_t size = buffer->arena->extent->size;

    sleep_and_wake("w");
    assert_int_equal(w.device->pooled, size);
    assert_int_equal(used_on_host(), size);
    assert_int_equal(buffer->arena->extent->account->use[HBM_TIER_HOST], 0);
    assert_int_equal(stored_as("x-"), 1); /* the device extent alone: nobody is to find the pool after a restart */
    unsigned creates = w.ran[JOB_CREATE];
    for (unsigned i = 0; i < 5; i++) {
        fill(buffer, i);
        assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
        assert_int_equal(w.ran[JOB_CREATE], creates);
        assert_int_equal(w.device->pooled, 0);
        assert_int_equal(buffer->arena->extent->account->use[HBM_TIER_HOST], size);
        world_check_books(&w);
        assert_true(is_filled(buffer, i));
        assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
        assert_true(is_filled(buffer, i));
    }
    assert_int_equal(w.ran[JOB_DESTROY], 0);
}

static void the_worker_knows_reused_memory_by_the_same_token(void **state)
{
    (void)state;
    uint64_t first = 0;

    make_kept(&w, "w", 32, 1024);
    for (unsigned i = 0; i < 3; i++) {
        struct ask *question = ask(&w, alice, NULL);
        w.hold = true;
        verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
        world_run(&w);
        if (!i)
            world_step(&w); /* CREATE, the first time */
        const struct job *job = list_entry(list_first(&w.jobs), struct job, node);
        assert_int_equal(job->opcode, JOB_COPY);
        assert_int_not_equal(job->request.copy.target.token, 0);
        if (i)
            assert_int_equal(job->request.copy.target.token, first);
        first = job->request.copy.target.token;
        w.hold = false;
        assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
        assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    }
}

static struct job_create_request create_of(struct ask *question)
{
    world_run(&w);
    const struct job *job = list_entry(list_first(&w.jobs), struct job, node);
    assert_int_equal(job->opcode, JOB_CREATE);
    struct job_create_request request = job->request.create;
    w.hold = false;
    world_run(&w);
    free(question);
    return request;
}

static void large_host_memory_is_pinned_in_pieces_but_for_those_who_go_on_in_it(void **state)
{
    (void)state;
    make_kept(&w, "small", 31, 1024);
    make_kept(&w, "large", 32, 1024);
    w.core->limits.pieces_bytes = 32 * 4096;
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "small", HBM_TIER_HOST, false);
    assert_int_equal(create_of(question).flags, 0);
    question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "large", HBM_TIER_HOST, false);
    assert_int_equal(create_of(question).flags, JOB_IN_PIECES);
    assert_int_equal(restore(&w, "large")->state, WIRE_OP_DONE);
    assert_int_equal(w.device->pooled, 32 * 4096);
    question = ask(&w, alice, NULL);
    w.hold = true;
    verb_demote(w.core, &question->call, "large", true); /* not into what lies in the pool */
    assert_int_equal(create_of(question).flags, 0);
    world_check_books(&w);
}

static void after_a_minute_it_is_given_back(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    make_kept(&w, "v", 32, 2048);
    sleep_and_wake("w");
    world_pass(&w, 30000);
    sleep_and_wake("v");
    assert_true(w.device->pooled > 0);
    world_pass(&w, 31000);
    assert_int_equal(w.ran[JOB_DESTROY], 1);
    assert_int_equal(w.device->pooled, named(&w, "v")->arena->extent->size);
    world_pass(&w, 30000);
    assert_int_equal(w.ran[JOB_DESTROY], 2);
    assert_int_equal(w.device->pooled, 0);
    world_check_books(&w);
    assert_int_equal(w.wake, 0); /* nothing left to wake up for */
}

static void it_gives_way_to_who_needs_the_room(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024), *b = make_kept(&w, "b", 64, 1024),
                  *c = make_kept(&w, "c", 16, 1024);
    uint64_t room = a->arena->extent->size + b->arena->extent->size;

    w.device->capacity[HBM_TIER_HOST] = room;
    sleep_and_wake("a");
    assert_int_equal(offload(&w, "b", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(used_on_host(), room); /* there was room for both */
    assert_int_equal(w.ran[JOB_DESTROY], 0);
    assert_int_equal(offload(&w, "c", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(used_on_host(), b->arena->extent->size + c->arena->extent->size);
    assert_int_equal(w.ran[JOB_DESTROY], 1);
    world_check_books(&w);
}

static void it_stays_when_going_would_not_help(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);
    make_kept(&w, "b", 64, 1024);

    w.device->capacity[HBM_TIER_HOST] = a->arena->extent->size;
    sleep_and_wake("a");
    assert_int_not_equal(offload(&w, "b", HBM_TIER_HOST, false)->error, 0);
    assert_int_equal(w.device->pooled, a->arena->extent->size);
}

static void it_serves_no_other_tier(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 32, 1024);
    uint64_t size = a->arena->extent->size;

    make_kept(&w, "b", 32, 1024);
    assert_int_equal(offload(&w, "a", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(offload(&w, "b", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "a")->state, WIRE_OP_DONE);
    assert_int_equal(w.device->pooled, size); /* a piece of just the size that b and the disk want next */
    unsigned creates = w.ran[JOB_CREATE];
    assert_int_equal(restore(&w, "b")->state, WIRE_OP_DONE);
    assert_int_equal(offload(&w, "a", HBM_TIER_DISK, false)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_CREATE], creates + 1); /* the disk's */
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], size);
    assert_int_equal(w.device->used[HBM_TIER_DISK], size);
    assert_int_equal(used_on_host(), w.device->pooled);
}

static void a_machine_short_of_memory_gets_it_all(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    make_kept(&w, "b", 64, 1024);
    sleep_and_wake("a");
    world_fail(&w, JOB_CREATE, 1, HBM_E_NO_MEMORY);
    assert_int_equal(offload(&w, "b", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->pooled, 0);
    assert_int_equal(w.ran[JOB_DESTROY], 1);
    world_check_books(&w);
}

static void another_owner_gets_memory_of_its_own(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    sleep_and_wake("a");
    struct session *session = client(&w, bob);
    make_buffer(&w, session, "b", 32, 1024, WIRE_KEEP);
    session_gone(session, true, "bye");
    unsigned creates = w.ran[JOB_CREATE];
    struct ask *question = ask(&w, bob, NULL);
    verb_offload(w.core, &question->call, "b", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_CREATE], creates + 1);
    assert_true(w.device->pooled > 0);
}

static void a_failed_copy_loses_nothing_and_leaves_the_piece(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    sleep_and_wake("w");
    fill(buffer, 9);
    world_fail(&w, JOB_COPY, 1, HBM_E_CUDA);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->error, HBM_E_CUDA);
    assert_true(is_filled(buffer, 9));
    assert_int_equal(w.device->pooled, buffer->arena->extent->size);
    sleep_and_wake("w");
    assert_true(is_filled(buffer, 9));
}

static void what_a_hung_worker_may_still_write_is_nobodys_next(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 9);
    sleep_and_wake("w");
    w.fault_at_large = true;
    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->error, HBM_E_WORKER_DIED);
    assert_int_equal(w.device->pooled, 0);
    assert_int_equal(used_on_host(), 0);
    world_check_books(&w);
    sleep_and_wake("w");
    assert_true(is_filled(buffer, 9));
}

static void a_restart_begins_without_it(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 4);
    sleep_and_wake("w");
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    assert_int_equal(w.device->pooled, 0);
    assert_true(is_filled(named(&w, "w"), 4));
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)

int core_pool_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_a_restore_releases_serves_the_next_offload),
        CASE(the_worker_knows_reused_memory_by_the_same_token),
        CASE(large_host_memory_is_pinned_in_pieces_but_for_those_who_go_on_in_it),
        CASE(after_a_minute_it_is_given_back),
        CASE(it_gives_way_to_who_needs_the_room),
        CASE(it_stays_when_going_would_not_help),
        CASE(it_serves_no_other_tier),
        CASE(a_machine_short_of_memory_gets_it_all),
        CASE(another_owner_gets_memory_of_its_own),
        CASE(a_failed_copy_loses_nothing_and_leaves_the_piece),
        CASE(what_a_hung_worker_may_still_write_is_nobodys_next),
        CASE(a_restart_begins_without_it),
    };

    return cmocka_run_group_tests_name("host pool", tests, NULL, NULL);
}
