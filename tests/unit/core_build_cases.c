/* A model of many buffers is made in several turns of the loop: all of it or nothing, whoever goes in between. */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"

#define MANY 5000u /* three turns */

static int table_of_many(void)
{
    struct table_builder builder = {0};
    char name[32];

    assert_int_equal(table_add_arena(&builder, &(struct table_arena){0}, "g"), 0);
    for (unsigned i = 0; i < MANY; i++) {
        struct table_buffer row = {.dims = {1}, .rank = 1, .dtype = HBM_F32, .size = 4};
        snprintf(name, sizeof(name), "t%u", i);
        assert_int_equal(table_add_buffer(&builder, &row, name), 0);
    }
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    return fd;
}

/* One turn of it is over. */
static struct ask *begin_building(struct session *session)
{
    struct publish_args args = {.name = "m", .mode = 0644, .timeout_ms = 1000};
    const char *why = NULL;
    size_t size;
    int fd = table_of_many();
    void *bytes = memfd_map_sealed(fd, MIB, &size);

    assert_true(table_open(&args.table, bytes, size, &why));
    struct ask *question = ask(&w, alice, session);
    verb_publish(w.core, &question->call, &args);
    munmap(bytes, size);
    close(fd);
    assert_true(world_step(&w));
    assert_int_equal(question->answers, 0);
    assert_in_range(w.core->n_buffers, 1, MANY - 1);
    return question;
}

static void nothing_is_left(void)
{
    assert_int_equal(w.core->n_buffers, 0);
    assert_int_equal(w.core->n_models, 0);
    assert_true(list_empty(&w.core->arenas));
    world_check_books(&w);
}

static void pass_turns(void)
{
    for (unsigned i = 0; i < 5; i++)
        world_pass(&w, 1);
}

static uint64_t build_many(struct session *session)
{
    struct ask *question = begin_building(session);

    pass_turns();
    return id_of(&w, question);
}

static void a_large_model_is_made_in_turns_and_comes_back_whole(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct ask *question = begin_building(session);
    assert_non_null(named(&w, "m/t0")->arena->transition); /* what looks for room leaves it alone */
    struct ask *early = ask(&w, alice, NULL);
    verb_offload(w.core, &early->call, "m/t0", HBM_TIER_HOST, 0);
    assert_int_equal(error_of(&w, early), HBM_E_NOT_READY);
    pass_turns();
    uint64_t lease = id_of(&w, question);
    assert_int_equal(w.core->n_buffers, MANY);
    assert_null(named(&w, "m/t0")->arena->transition);
    struct ask *commit = ask(&w, alice, session);
    verb_commit(w.core, &commit->call, lease, true);
    assert_int_equal(error_of(&w, commit), 0);
    session_gone(session, true, "bye");
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->n_buffers, MANY);
    assert_int_equal(named(&w, "m/t4999")->model->n_buffers, MANY);
    struct ask *removed = ask(&w, alice, NULL);
    verb_rm(w.core, &removed->call, "m");
    assert_int_equal(error_of(&w, removed), 0);
    assert_int_equal(world_restart(&w), 0);
    nothing_is_left();
}

static void a_builder_that_goes_in_between_leaves_nothing(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct ask *question = begin_building(session);
    session_gone(session, true, "bye");
    pass_turns();
    assert_int_equal(error_of(&w, question), HBM_E_DISCONNECTED);
    nothing_is_left();
    assert_int_equal(world_restart(&w), 0);
    nothing_is_left();
}

static unsigned unsent;

static void no_room_to_send(struct call *call, int error, void *lease)
{
    (void)call;
    assert_int_equal(error, 0);
    unsent++;
    lease_free(lease);
}

static void a_builder_that_cannot_be_answered_leaves_nothing_and_is_not_answered_again(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct ask *question = begin_building(session);
    question->call.done = no_room_to_send;
    unsent = 0;
    pass_turns();
    assert_int_equal(unsent, 1);
    free(question);
    session_gone(session, true, "bye");
    nothing_is_left();
}

static void a_crash_before_the_commit_leaves_nothing(void **state)
{
    (void)state;
    struct ask *question = begin_building(client(&w, alice));
    world_crash(&w);
    assert_int_equal(question->answers, 1);
    assert_int_not_equal(question->error, 0);
    free(question);
    assert_int_equal(world_come_back(&w), 0);
    assert_int_equal(w.core->n_buffers, 0);
    assert_int_equal(w.core->n_models, 0);
    build_many(client(&w, alice));
    assert_int_equal(w.core->n_buffers, MANY);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->n_buffers, 0);
    assert_int_equal(w.core->n_models, 0);
}

static void a_name_that_is_taken_in_between_refuses_the_whole_model(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct ask *question = begin_building(session);
    make_kept(&w, "m/t4999", 1, 1);
    pass_turns();
    assert_int_equal(error_of(&w, question), HBM_E_EXISTS);
    assert_int_equal(w.core->n_buffers, 1);
    assert_int_equal(w.core->n_models, 0);
    world_check_books(&w);
}

static void a_replacement_has_its_names_after_a_restart(void **state)
{
    (void)state;
    uint64_t lease;
    struct model *old = make_model(&w, "m", 1);
    uint64_t id = old->id;
    struct session *session = build_model(&w, "m", 2, WIRE_REPLACE, &lease);
    struct ask *commit = ask(&w, alice, session);
    verb_commit(w.core, &commit->call, lease, true);
    assert_int_equal(error_of(&w, commit), 0);
    session_gone(session, true, "bye");
    assert_int_equal(world_restart(&w), 0);
    assert_int_not_equal(named(&w, "m/layer.0.w")->model->id, id);
    assert_int_equal(named(&w, "m/layer.1.w")->model->n_buffers, 4);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_build_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_large_model_is_made_in_turns_and_comes_back_whole),
        CASE(a_builder_that_goes_in_between_leaves_nothing),
        CASE(a_builder_that_cannot_be_answered_leaves_nothing_and_is_not_answered_again),
        CASE(a_crash_before_the_commit_leaves_nothing),
        CASE(a_name_that_is_taken_in_between_refuses_the_whole_model),
        CASE(a_replacement_has_its_names_after_a_restart),
    };

    return cmocka_run_group_tests_name("models of many buffers", tests, NULL, NULL);
}
