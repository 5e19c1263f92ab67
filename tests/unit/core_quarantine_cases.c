/* The end of a client on a GPU: what it could write is released when the driver has let go of it, not before. */
#include "core_cases.h"
#include "core_world.h"

static struct world w;

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    w.device->is_cuda = true;
    w.device->worker_pid = 1;
    w.listed_pid = -1;
    w.mute = false;
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_end(&w);
    return 0;
}

/* A writer whose link broke; its buffer goes with it. */
static uint64_t a_gone_writer(void)
{
    struct session *session = client(&w, alice);
    uint64_t id = session->id;

    make_buffer(&w, session, "w", 4, 64, 0);
    w.listed_pid = session->pid;
    session_gone(session, false, "it hung up");
    world_pass(&w, 1000);
    return id;
}

static void a_writer_whose_link_broke_is_kept_until_its_process_ends(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    assert_non_null(session_get(w.core, id));
    assert_string_equal(session_awaiting(session_get(w.core, id)), "its process to end");
    w.listed_pid = -1;
    session_process_ended(session_get(w.core, id));
    world_pass(&w, 10);
    assert_null(session_get(w.core, id));
    assert_int_equal(w.core->n_buffers, 0);
}

static void a_dead_writer_is_kept_while_the_driver_lists_it(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    session_process_ended(session_get(w.core, id));
    world_pass(&w, 60000);
    assert_non_null(session_get(w.core, id));
    assert_string_equal(session_awaiting(session_get(w.core, id)), "the driver to end its GPU context");
    w.listed_pid = -1;
    world_pass(&w, 10);
    assert_null(session_get(w.core, id));
}

static void a_dead_reader_is_released_with_its_process(void **state)
{
    (void)state;
    struct session *session;

    make_kept(&w, "w", 4, 64);
    session = client(&w, alice);
    attach(&w, session, "w", HBM_RO);
    uint64_t id = session->id;
    w.listed_pid = session->pid;
    session_process_ended(session);
    world_pass(&w, 10);
    assert_null(session_get(w.core, id));
}

static void where_the_driver_does_not_tell_ten_seconds_are_waited(void **state)
{
    (void)state;
    w.mute = true;
    uint64_t id = a_gone_writer();

    world_pass(&w, 60000); /* counted from the end of the process, not of the link */
    session_process_ended(session_get(w.core, id));
    world_pass(&w, 9000);
    assert_non_null(session_get(w.core, id));
    world_pass(&w, 2000);
    assert_null(session_get(w.core, id));
}

static void a_writer_of_another_pid_namespace_is_waited_for_as_long(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    session_get(w.core, id)->pid = 0;
    session_process_ended(session_get(w.core, id));
    world_pass(&w, 9000);
    assert_non_null(session_get(w.core, id));
    world_pass(&w, 2000);
    assert_null(session_get(w.core, id));
}

static void a_session_that_maps_nothing_is_gone_with_its_link(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    uint64_t id = session->id;

    session_gone(session, false, "it hung up");
    world_pass(&w, 10);
    assert_null(session_get(w.core, id));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int core_quarantine_cases(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_writer_whose_link_broke_is_kept_until_its_process_ends),
        TEST(a_dead_writer_is_kept_while_the_driver_lists_it),
        TEST(a_dead_reader_is_released_with_its_process),
        TEST(where_the_driver_does_not_tell_ten_seconds_are_waited),
        TEST(a_writer_of_another_pid_namespace_is_waited_for_as_long),
        TEST(a_session_that_maps_nothing_is_gone_with_its_link),
    };
    return cmocka_run_group_tests_name("quarantine", tests, NULL, NULL);
}
