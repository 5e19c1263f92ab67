/* The end of a client on a GPU: what it could write is released when the driver has let go of it, not before. */
#include <stdio.h>
#include <string.h>

#include "core_cases.h"
#include "core_world.h"

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

static const char *awaited(uint64_t id)
{
    static struct awaiting awaiting;

    return session_awaiting(session_get(w.core, id), &awaiting) ? awaiting.what : NULL;
}

static void a_writer_whose_link_broke_is_kept_until_its_process_ends(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    assert_non_null(session_get(w.core, id));
    assert_string_equal(awaited(id), "its process to end");
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
    char text[96];

    session_process_ended(session_get(w.core, id));
    world_pass(&w, 60000);
    assert_non_null(session_get(w.core, id));
    snprintf(text, sizeof(text), "the driver to let go of pid %d", session_get(w.core, id)->pid);
    assert_string_equal(awaited(id), text);
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

static void what_is_awaited_is_said_where_nobody_can_ask_the_driver(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    w.device->worker_pid = 0;
    session_process_ended(session_get(w.core, id));
    world_pass(&w, 300);
    assert_string_equal(awaited(id), "a GPU's worker that can ask the driver");
    w.device->worker_pid = 1;
    w.mute = true;
    world_pass(&w, 300);
    assert_non_null(strstr(awaited(id), "10 s to pass"));
    assert_null(strstr(awaited(id), "pid"));
}

static void who_waits_for_longer_than_the_bound_is_counted_once(void **state)
{
    (void)state;
    uint64_t id = a_gone_writer();

    world_pass(&w, 13000);
    assert_int_equal(w.core->counters.late_reclaims, 0);
    world_pass(&w, 2000); /* its process lives on: nothing else would wake the core */
    assert_int_equal(w.core->counters.late_reclaims, 1);
    session_process_ended(session_get(w.core, id));
    world_pass(&w, 60000);
    assert_int_equal(w.core->counters.late_reclaims, 1);
    w.listed_pid = -1;
    world_pass(&w, 10);
    assert_null(session_get(w.core, id));
}

static void a_blind_wait_begins_anew_with_the_daemon(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    uint64_t id = session->id;

    w.mute = true;
    make_buffer(&w, session, "w", 4, 64, 0);
    session_process_ended(session);
    world_pass(&w, 5000);
    world_crash(&w);
    w.now += 100000;
    assert_int_equal(world_come_back(&w), 0);
    w.device->is_cuda = true;
    world_pass(&w, 100); /* it finds out once more that the driver does not tell */
    world_pass(&w, 8900);
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

/* One process may have many sessions, and a child that it forked keeps it listed for as long as it likes. */
static void the_driver_is_asked_about_everybody_however_many_it_still_lists(void **state)
{
    (void)state;
    char name[16];
    uint64_t id = 0;

    w.listed_pid = 7;
    for (int i = 0; i <= 100; i++) {
        struct session *session = client(&w, i < 100 ? bob : alice);
        id = session->id;
        session->pid = i < 100 ? 7 : 8;
        snprintf(name, sizeof(name), "b%d", i);
        make_buffer(&w, session, name, 4, 64, 0);
        session_process_ended(session);
    }
    for (int i = 0; i < 10; i++)
        world_pass(&w, 10);
    assert_null(session_get(w.core, id));
    assert_int_equal(w.core->n_quarantined, 100);
    w.listed_pid = -1;
    for (int i = 0; i < 10; i++)
        world_pass(&w, 10);
    assert_int_equal(w.core->n_quarantined, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)

int core_quarantine_cases(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_writer_whose_link_broke_is_kept_until_its_process_ends),
        TEST(a_dead_writer_is_kept_while_the_driver_lists_it),
        TEST(a_dead_reader_is_released_with_its_process),
        TEST(where_the_driver_does_not_tell_ten_seconds_are_waited),
        TEST(what_is_awaited_is_said_where_nobody_can_ask_the_driver),
        TEST(who_waits_for_longer_than_the_bound_is_counted_once),
        TEST(a_blind_wait_begins_anew_with_the_daemon),
        TEST(a_writer_of_another_pid_namespace_is_waited_for_as_long),
        TEST(a_session_that_maps_nothing_is_gone_with_its_link),
        TEST(the_driver_is_asked_about_everybody_however_many_it_still_lists),
    };
    return cmocka_run_group_tests_name("quarantine", tests, NULL, NULL);
}
