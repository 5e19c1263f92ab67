/* What the store gives back is not all that the ledger names, or is not what its name says. */
#include "core_cases.h"
#include "core_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/memfd.h"

static void memory_that_did_not_come_back_is_lost_by_name(void **state)
{
    char prefix[STORE_NAME_MAX];
    (void)state;
    make_kept(&w, "gone", 64, 256);
    make_kept(&w, "here", 64, 256);
    fill(named(&w, "here"), 2);
    extent_store_name(named(&w, "gone")->arena->extent, prefix);
    world_crash(&w);
    world_lose(&w, prefix);
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "gone")->arena->extent->lost);
    assert_true(is_filled(named(&w, "here"), 2));
    const struct event *event = event_get(&w.core->events, w.core->events.next - 1);
    assert_string_equal(event->what, "arena.lost");
    assert_string_equal(event->name, "gone");
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "gone", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, question)->error, HBM_E_LOST);
    question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, named(&w, "gone")->id);
    assert_int_equal(error_of(&w, question), 0);
    world_check_books(&w);
}

static void what_was_encrypted_with_another_key_is_lost_by_name(void **state)
{
    (void)state;
    make_kept(&w, "spilled", 64, 256);
    make_kept(&w, "here", 64, 256);
    offload(&w, "spilled", HBM_TIER_DISK, true);
    assert_int_equal(world_restart(&w), 0);
    assert_false(named(&w, "spilled")->arena->extent->lost);
    world_crash(&w);
    w.spill_key++;
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "spilled")->arena->extent->lost);
    assert_false(named(&w, "here")->arena->extent->lost);
    assert_int_equal(w.device->used[HBM_TIER_DISK], 0);
    world_check_books(&w);
}

/* What is kept under that name is exchanged for fd. */
static void swap(const char *prefix, int fd)
{
    struct kept *kept = world_kept(&w, prefix);

    assert_non_null(kept);
    close(kept->fd);
    kept->fd = fd;
}

static void an_fd_that_is_not_what_its_name_says_is_lost_and_not_used(void **state)
{
    char name[STORE_NAME_MAX];
    const int wrong[] = {eventfd(0, EFD_CLOEXEC), memfd_fixed("too small", 4096), memfd_fixed("too large", MIB),
                         open("/dev/null", O_RDWR | O_CLOEXEC)};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make_kept(&w, "w", 64, 256);
        extent_store_name(named(&w, "w")->arena->extent, name);
        world_crash(&w);
        swap(name, wrong[i]);
        assert_int_equal(world_come_back(&w), 0);
        assert_true(named(&w, "w")->arena->extent->lost);
        assert_int_equal(w.core->counters.lost, 1);
        assert_null(world_kept(&w, name));
        world_check_books(&w);
        struct ask *question = ask(&w, alice, NULL);
        verb_free(w.core, &question->call, named(&w, "w")->id);
        assert_int_equal(error_of(&w, question), 0);
    }
}

static void a_session_whose_pidfd_or_page_is_something_else_is_given_up(void **state)
{
    static const char *const prefixes[] = {"p-", "s-"};
    (void)state;
    make_kept(&w, "w", 8, 8);
    for (unsigned i = 0; i < 2; i++) {
        attach(&w, client(&w, alice), "w", HBM_RO);
        world_crash(&w);
        swap(prefixes[i], memfd_fixed("too small", 512));
        assert_int_equal(world_come_back(&w), 0);
        assert_int_equal(w.core->n_sessions, 0);
        assert_int_equal(named(&w, "w")->n_leases, 0);
        world_check_books(&w);
    }
}

static void metadata_that_is_something_else_is_none(void **state)
{
    (void)state;
    make_model(&w, "m", 1);
    world_crash(&w);
    swap("m-", memfd_sealed("another", "shorter", 7));
    assert_int_equal(world_come_back(&w), 0);
    const struct model *model = names_find(&w.core->model_names, alice.owner, "m");
    assert_int_equal(model->metadata_bytes, 0);
    assert_int_equal(model->metadata_fd, -1);
}

static void fds_that_no_row_names_are_left_to_the_caller(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    world_crash(&w);
    struct kept *stray = calloc(1, sizeof(*stray));
    snprintf(stray->name, sizeof(stray->name), "x-0123456789abcdef-0-4096");
    stray->fd = openat(w.dir_fd, "ledger", O_RDONLY | O_CLOEXEC);
    list_append(&w.store, &stray->node);
    assert_int_equal(world_come_back(&w), 0);
    assert_null(world_kept(&w, "x-0123456789abcdef"));
    assert_non_null(world_kept(&w, "x-"));
    world_check_books(&w);
}

static void a_device_that_is_not_configured_any_more_loses_its_arenas(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    world_crash(&w);
    w.device_name = "another";
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(named(&w, "w")->arena->extent->lost);
    assert_int_equal(named(&w, "w")->arena->device->state, DEVICE_FAILED);
    /* When it is back, nothing was lost. */
    w.device_name = "host";
    assert_int_equal(world_restart(&w), 0);
    assert_false(named(&w, "w")->arena->extent->lost);
    assert_int_equal(w.core->counters.lost, 0);
}

static void a_session_without_its_pidfd_is_given_up(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RO);
    make_buffer(&w, session, "mine", 8, 8, 0); /* kept by its lease alone */
    world_crash(&w);
    world_lose(&w, "p-");
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->n_sessions, 0);
    assert_int_equal(w.core->n_leases, 0);
    assert_int_equal(w.core->n_buffers, 1);
    assert_int_equal(named(&w, "w")->n_leases, 0);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_store_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(memory_that_did_not_come_back_is_lost_by_name),
        CASE(what_was_encrypted_with_another_key_is_lost_by_name),
        CASE(an_fd_that_is_not_what_its_name_says_is_lost_and_not_used),
        CASE(a_session_whose_pidfd_or_page_is_something_else_is_given_up),
        CASE(metadata_that_is_something_else_is_none),
        CASE(fds_that_no_row_names_are_left_to_the_caller),
        CASE(a_device_that_is_not_configured_any_more_loses_its_arenas),
        CASE(a_session_without_its_pidfd_is_given_up),
    };

    return cmocka_run_group_tests_name("the store", tests, NULL, NULL);
}
