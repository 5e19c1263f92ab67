/* Room: it comes free when the memory does, which is when its last fd has been closed. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    w.slow = true;
    return 0;
}

static uint64_t used_on_device(void)
{
    return w.device->used[HBM_TIER_DEVICE];
}

static void free_buffer(const char *name)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_free(w.core, &question->call, named(&w, name)->id);
    assert_int_equal(error_of(&w, question), 0);
}

static struct ask *alloc(struct session *session, uint64_t bytes)
{
    struct alloc_args args = {.dims = {bytes}, .rank = 1, .dtype = HBM_U8, .mode = 0600};
    struct ask *question = ask(&w, session->who, session);

    verb_alloc(w.core, &question->call, &args);
    world_run(&w);
    return question;
}

static void freed_memory_is_used_and_charged_until_it_is_closed(void **state)
{
    (void)state;
    const struct buffer *buffer = make_kept(&w, "a", 64, 1024);
    const struct account *account = buffer->arena->extent->account;
    uint64_t size = buffer->arena->extent->size;

    free_buffer("a"); /* answered, though nothing is closed */
    assert_null(world_kept(&w, "x-"));
    assert_int_equal(used_on_device(), size);
    assert_int_equal(w.device->closing[HBM_TIER_DEVICE], size);
    assert_int_equal(account->use[HBM_TIER_DEVICE], size);
    assert_true(world_close_one(&w));
    assert_false(world_close_one(&w));
    assert_int_equal(used_on_device(), 0);
    world_check_books(&w);
}

static void what_is_mapped_elsewhere_is_not_closed(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "a", 64, 1024);
    struct extent *held = extent_ref(buffer->arena->extent);

    free_buffer("a");
    assert_false(world_close_one(&w));
    extent_unref(held);
    assert_true(world_close_one(&w));
}

static void who_asks_for_memory_waits_while_some_is_being_closed(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct ask *question;

    w.core->limits.memory_wait_ms = 0;  /* even so */
    make_kept(&w, "a", 40 * 256, 1024); /* 40 MiB of the 64 */
    free_buffer("a");
    question = alloc(session, 40 * MIB);
    assert_int_equal(question->answers, 0);
    world_close_one(&w);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(used_on_device(), 40 * MIB);
}

static void a_limit_is_not_met_by_what_is_being_closed(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);

    w.core->limits.account[HBM_TIER_DEVICE] = 4 * MIB;
    w.core->limits.memory_wait_ms = 0;
    make_kept(&w, "a", 1024, 1024);
    struct ask *question = alloc(session, 4 * MIB);
    assert_int_equal(error_of(&w, question), HBM_E_LIMIT); /* nothing is on its way: at once */
    free_buffer("a");
    question = alloc(session, 4 * MIB);
    assert_int_equal(question->answers, 0);
    world_close_one(&w);
    assert_int_equal(error_of(&w, question), 0);
}

static void a_close_that_hangs_is_waited_for_no_longer_than_a_second(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);

    w.core->limits.account[HBM_TIER_DEVICE] = 4 * MIB;
    w.core->limits.memory_wait_ms = 0;
    make_kept(&w, "a", 1024, 1024);
    free_buffer("a");
    struct ask *question = alloc(session, 4 * MIB);
    world_pass(&w, 999);
    assert_int_equal(question->answers, 0);
    world_pass(&w, 2);
    assert_int_equal(error_of(&w, question), HBM_E_LIMIT);
    world_close_one(&w);
}

static void who_waits_for_a_close_and_gets_too_little_hears_so_at_once(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);

    w.core->limits.memory_wait_ms = 0;
    make_kept(&w, "a", 256, 1024);
    make_kept(&w, "b", 40 * 256, 1024);
    free_buffer("a");
    struct ask *question = alloc(session, 40 * MIB);
    assert_int_equal(question->answers, 0);
    world_close_one(&w);
    assert_int_equal(error_of(&w, question), HBM_E_NO_MEMORY);
}

static void the_pool_gives_up_no_more_than_is_wanted(void **state)
{
    (void)state;
    w.device->is_cuda = true;
    make_kept(&w, "a", 256, 1024); /* 1 MiB each */
    make_kept(&w, "b", 256, 1024);
    make_kept(&w, "c", 512, 1024);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(offload(&w, i ? "b" : "a", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
        assert_int_equal(w.device->pooled, 0);
    }
    assert_int_equal(restore(&w, "a")->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "b")->state, WIRE_OP_DONE);
    assert_int_equal(w.device->pooled, 2 * MIB);
    while (world_close_one(&w)) {
    }
    w.device->capacity[HBM_TIER_HOST] = 3 * MIB;
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "c", HBM_TIER_HOST, false);
    world_run(&w);
    assert_int_equal(w.device->pooled, MIB);
    assert_int_equal(w.device->closing[HBM_TIER_HOST], MIB);
    while (world_close_one(&w))
        world_run(&w);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 3 * MIB); /* c's, and what is left in the pool */
}

static void a_machine_short_of_memory_is_asked_again_when_the_pool_is_closed(void **state)
{
    (void)state;
    w.device->is_cuda = true;
    make_kept(&w, "a", 256, 1024);
    make_kept(&w, "b", 512, 1024);
    assert_int_equal(offload(&w, "a", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "a")->state, WIRE_OP_DONE);
    while (world_close_one(&w)) {
    }
    world_fail(&w, JOB_CREATE, 1, HBM_E_NO_MEMORY);
    unsigned creates = w.ran[JOB_CREATE];
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "b", HBM_TIER_HOST, false);
    for (unsigned i = 0; i < 5; i++)
        world_pass(&w, 2);
    assert_int_equal(w.ran[JOB_CREATE], creates + 1);
    assert_true(world_close_one(&w));
    world_pass(&w, 2);
    assert_int_equal(w.ran[JOB_CREATE], creates + 2);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    while (world_close_one(&w)) {
    }
    world_check_books(&w);
}

/* "a", which lay on the disk, is being closed; "b" is to go there, and there is no room. */
static struct ask *offload_to_a_full_disk(void)
{
    struct ask *question;

    make_kept(&w, "a", 256, 1024);
    make_kept(&w, "b", 256, 1024);
    assert_int_equal(offload(&w, "a", HBM_TIER_DISK, false)->state, WIRE_OP_DONE);
    while (world_close_one(&w)) {
    }
    free_buffer("a");
    world_fail(&w, JOB_CREATE, 1, HBM_E_NO_SPACE);
    question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "b", HBM_TIER_DISK, false);
    world_run(&w);
    return question;
}

/* FAULTS 20: the operator freed what lay there, and asks at once. */
static void a_full_disk_is_asked_again_when_what_lay_there_is_closed(void **state)
{
    (void)state;
    struct ask *question = offload_to_a_full_disk();
    unsigned creates = w.ran[JOB_CREATE];

    world_pass(&w, 20);
    assert_int_equal(w.ran[JOB_CREATE], creates);
    assert_true(world_close_one(&w));
    world_pass(&w, 2);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    while (world_close_one(&w)) {
    }
    world_check_books(&w);
}

static void a_full_disk_is_asked_once_more_where_a_close_hangs(void **state)
{
    (void)state;
    struct ask *question = offload_to_a_full_disk();

    world_pass(&w, 999);
    world_fail(&w, JOB_CREATE, 1, HBM_E_NO_SPACE);
    world_pass(&w, 2);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_FAILED);
    assert_int_equal(op->error, HBM_E_NO_SPACE);
    while (world_close_one(&w)) {
    }
    world_check_books(&w);
}

static void a_stop_while_memory_is_being_closed_loses_nothing_and_tells_nobody(void **state)
{
    (void)state;
    make_kept(&w, "a", 64, 1024);
    make_kept(&w, "b", 64, 1024);
    free_buffer("a");
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)

int core_room_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(freed_memory_is_used_and_charged_until_it_is_closed),
        CASE(what_is_mapped_elsewhere_is_not_closed),
        CASE(who_asks_for_memory_waits_while_some_is_being_closed),
        CASE(a_limit_is_not_met_by_what_is_being_closed),
        CASE(a_close_that_hangs_is_waited_for_no_longer_than_a_second),
        CASE(who_waits_for_a_close_and_gets_too_little_hears_so_at_once),
        CASE(the_pool_gives_up_no_more_than_is_wanted),
        CASE(a_machine_short_of_memory_is_asked_again_when_the_pool_is_closed),
        CASE(a_full_disk_is_asked_again_when_what_lay_there_is_closed),
        CASE(a_full_disk_is_asked_once_more_where_a_close_hangs),
        CASE(a_stop_while_memory_is_being_closed_loses_nothing_and_tells_nobody),
    };

    return cmocka_run_group_tests_name("room", tests, NULL, NULL);
}
