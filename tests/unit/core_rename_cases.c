#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"

static int rename_to(const char *name, const char *to)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_rename(w.core, &question->call, name, to);
    return error_of(&w, question);
}

static void a_rename_takes_the_scales_along_or_does_nothing(void **state)
{
    (void)state;
    char longest[HBM_NAME_MAX];
    make_kept(&w, "w", 32, 1024);
    make_kept(&w, "taken.scale", 32, 32);
    assert_int_equal(compress(&w, "w", HBM_CODEC_INT8)->error, 0);
    struct buffer *buffer = named(&w, "w");

    assert_int_equal(rename_to("w", "taken"), HBM_E_EXISTS);
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(rename_to("w", longest), HBM_E_INVALID);
    assert_ptr_equal(named(&w, "w"), buffer);
    assert_ptr_equal(named(&w, "w.scale"), buffer->parts[PART_SCALE]);
    assert_int_equal(rename_to("w", "v"), 0);
    assert_ptr_equal(named(&w, "v"), buffer);
    assert_ptr_equal(named(&w, "v.scale"), buffer->parts[PART_SCALE]);
}

/* A lease of it, from a builder; or what else comes. */
static struct ask *publish(struct session *session, const char *name)
{
    struct table_builder builder = {0};
    struct table_buffer row = {.dims = {256}, .rank = 1, .dtype = HBM_F32, .size = 1024};
    struct publish_args args = {.mode = 0644, .timeout_ms = 1000, .flags = WIRE_WAIT};
    const char *why = NULL;
    size_t size;

    snprintf(args.name, sizeof(args.name), "%s", name);
    assert_int_equal(table_add_arena(&builder, &(struct table_arena){0}, "g"), 0);
    assert_int_equal(table_add_buffer(&builder, &row, "t"), 0);
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    void *bytes = memfd_map_sealed(fd, MIB, &size);
    assert_true(table_open(&args.table, bytes, size, &why));
    struct ask *question = ask(&w, alice, session);
    verb_publish(w.core, &question->call, &args);
    munmap(bytes, size);
    close(fd);
    world_run(&w);
    return question;
}

static void a_model_is_renamed_with_its_scales_or_not_at_all(void **state)
{
    (void)state;
    make_model(&w, "m", 1);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    make_kept(&w, "n/layer.0.w.scale", 1, 64);
    assert_int_equal(rename_to("m", "n"), HBM_E_EXISTS);
    assert_non_null(names_find(&w.core->model_names, alice.owner, "m"));
    assert_non_null(named(&w, "m/layer.0.w.scale"));
    assert_int_equal(rename_to("m", "o"), 0);
    assert_non_null(named(&w, "o/layer.0.w.scale"));
}

static void what_is_being_built_keeps_its_name_and_few_wait_for_it(void **state)
{
    (void)state;
    struct session *builder = client(&w, alice), *waiter = client(&w, alice), *other = client(&w, alice);
    struct ask *waiting[5];
    struct ask *built = publish(builder, "m");
    uint64_t lease = built->id;

    assert_int_equal(error_of(&w, built), 0);
    assert_int_equal(rename_to("m", "n"), HBM_E_NOT_READY);
    for (unsigned i = 0; i < 4; i++)
        waiting[i] = publish(waiter, "m");
    assert_int_equal(error_of(&w, publish(waiter, "m")), HBM_E_LIMIT);
    waiting[4] = publish(other, "m");
    struct ask *question = ask(&w, alice, builder);
    verb_commit(w.core, &question->call, lease, true);
    assert_int_equal(error_of(&w, question), 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(error_of(&w, waiting[i]), 0);
    assert_int_equal(rename_to("m", "n"), 0);
    world_check_books(&w);
}

/* FAULTS 14: of those who build it one has the name, and keeps it to the end of that. */
static void a_name_that_is_built_anew_is_no_more_anothers_to_replace(void **state)
{
    (void)state;
    uint64_t lease;
    make_model(&w, "m", 1);
    struct session *replacing = build_model(&w, "m", 1, WIRE_REPLACE, &lease), *builder = client(&w, alice);
    assert_int_equal(rename_to("m", "n"), 0);
    w.hold = true; /* it has no lease yet */
    struct ask *anew = ask_to_build(&w, builder, "m", 1, 0), *commit = ask(&w, alice, replacing);
    verb_commit(w.core, &commit->call, lease, true);
    w.hold = false;
    assert_int_equal(error_of(&w, commit), HBM_E_NOT_READY);
    world_run(&w);
    lease = anew->id;
    assert_int_equal(error_of(&w, anew), 0);
    commit = ask(&w, alice, builder);
    verb_commit(w.core, &commit->call, lease, true);
    assert_int_equal(error_of(&w, commit), 0);
    assert_non_null(names_find(&w.core->model_names, alice.owner, "m"));
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_rename_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_rename_takes_the_scales_along_or_does_nothing),
        CASE(a_model_is_renamed_with_its_scales_or_not_at_all),
        CASE(what_is_being_built_keeps_its_name_and_few_wait_for_it),
        CASE(a_name_that_is_built_anew_is_no_more_anothers_to_replace),
    };

    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
