/* The books against the driver, and devices that are lost. */
#include <stdio.h>
#include <string.h>

#include "core_cases.h"
#include "core_world.h"
#include "daemon/core/books.h"

static unsigned told;

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    w.device->is_cuda = true;
    w.device->worker_pid = 7;
    told = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_end(&w);
    return 0;
}

static void count(struct books_wait *wait)
{
    (void)wait;
    told++;
}

static void say(uint64_t used, uint32_t pid, uint64_t bytes)
{
    w.said = (struct job_query_reply){
        .total_bytes = 64 * MIB, .used_bytes = used, .tells_holders = 1, .n = 1, .holders = {{pid, 0, bytes}}};
    books_ask(w.core, w.device);
    world_run(&w);
}

static uint64_t unaccounted(void)
{
    uint64_t bytes = UINT64_MAX;

    assert_true(books_unaccounted(w.core, w.device, &bytes));
    return bytes;
}

static void what_the_driver_counts_beyond_ours_is_unaccounted(void **state)
{
    (void)state;
    make_kept(&w, "w", 1024, 1024);
    say(4 * MIB, 99, UINT64_MAX);
    assert_int_equal(unaccounted(), 0);
    say(9 * MIB, 99, 5 * MIB);
    assert_int_equal(unaccounted(), 5 * MIB);
    say(9 * MIB, 7, 2 * MIB);
    assert_int_equal(unaccounted(), 3 * MIB);
}

static void the_driver_may_count_less_than_was_handed_out(void **state)
{
    (void)state;
    make_kept(&w, "w", 1024, 1024);
    say(MIB, 7, UINT64_MAX);
    assert_int_equal(unaccounted(), 0);
}

static void blocks_in_the_worker_are_counted_once(void **state)
{
    (void)state;
    make_kept(&w, "w", 1024, 1024);
    named(&w, "w")->arena->extent->kind = JOB_EXTENT_CUDA_IPC;
    say(9 * MIB, 7, 6 * MIB); /* 4 of them the block, 2 its context */
    assert_int_equal(unaccounted(), 3 * MIB);
    named(&w, "w")->arena->extent->kind = JOB_EXTENT_DEVICE;
}

static void nothing_is_said_before_the_driver_has_told_nor_of_the_machines_memory(void **state)
{
    (void)state;
    uint64_t bytes;

    assert_false(books_unaccounted(w.core, w.device, &bytes));
    say(MIB, 7, 0);
    assert_true(books_unaccounted(w.core, w.device, &bytes));
    w.device->is_cuda = false;
    assert_false(books_unaccounted(w.core, w.device, &bytes));
}

static void whoever_waits_is_told_once_whether_it_answers_or_not(void **state)
{
    (void)state;
    struct books_wait first = {.ready = count}, second = {.ready = count};

    world_fail(&w, JOB_QUERY, 1, HBM_E_WORKER_DIED);
    books_await(w.core, NULL, &first);
    books_await(w.core, w.device, &second); /* one question for both */
    assert_int_equal(told, 0);
    world_run(&w);
    assert_int_equal(told, 2);
    assert_int_equal(w.ran[JOB_QUERY], 1);
    assert_int_equal(w.device->books.at_ms, 0);
    w.device->worker_pid = 0;
    books_await(w.core, NULL, &first);
    assert_int_equal(told, 3);
}

static int allocate(struct session *session, uint32_t device)
{
    struct alloc_args args = {.size = 4096, .device = device, .mode = 0600, .dtype = HBM_U8};
    struct ask *one = ask(&w, alice, session);

    verb_alloc(w.core, &one->call, &args);
    return error_of(&w, one);
}

static void a_device_that_is_lost_says_why_and_the_others_serve(void **state)
{
    (void)state;
    const uint64_t capacity[HBM_TIERS] = {MIB, MIB, MIB};
    struct session *session = client(&w, alice);

    device_add(w.core, "second", "another", false, capacity)->state = DEVICE_READY;
    w.device->state = DEVICE_FAILED;
    snprintf(w.device->worker_why, sizeof(w.device->worker_why), "Xid 79");
    assert_int_equal(allocate(session, 0), HBM_E_DEVICE_LOST);
    assert_non_null(strstr(last_detail, "Xid 79"));
    assert_int_equal(allocate(session, 1), 0);
    assert_int_equal(allocate(session, 2), HBM_E_NO_DEVICE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int core_books_cases(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_the_driver_counts_beyond_ours_is_unaccounted),
        TEST(the_driver_may_count_less_than_was_handed_out),
        TEST(blocks_in_the_worker_are_counted_once),
        TEST(nothing_is_said_before_the_driver_has_told_nor_of_the_machines_memory),
        TEST(a_device_that_is_lost_says_why_and_the_others_serve),
        TEST(whoever_waits_is_told_once_whether_it_answers_or_not),
    };
    return cmocka_run_group_tests_name("books", tests, NULL, NULL);
}
