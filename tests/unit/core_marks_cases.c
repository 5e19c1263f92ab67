/* Want of room: the marks of tiers, and what comes back. */
#include "core_cases.h"
#include "core_pressure.h"

#include "daemon/core/pressure.h"
#include "daemon/core/recency.h"

/* ---- The marks ---- */

static void over_the_high_mark_what_was_not_used_goes_until_the_low_one(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    make_idle("abcd");
    struct lease *a = hold(session, "a", false);
    assert_int_equal(lockword_lock(word_of(a)), LOCKWORD_DONE);
    assert_int_equal(lockword_unlock(word_of(a)), LOCKWORD_DONE);
    want_room(75, 50); /* as by a reload */
    pressure_wake(w.device, HBM_TIER_DEVICE);
    world_run(&w);
    world_pass(&w, 1000);
    assert_string_equal(tiers("abcd"), "dhhd");
    for (unsigned i = 0; i < 5; i++) /* that is enough */
        world_pass(&w, 1000);
    assert_string_equal(tiers("abcd"), "dhhd");
    all_are_whole("abcd");
}

static void host_memory_over_its_mark_goes_on_to_disk(void **state)
{
    (void)state;
    w.core->limits.watermarks[HBM_TIER_HOST] = (struct watermarks){75, 50};
    w.device->capacity[HBM_TIER_HOST] = 4 * MIB;
    make_idle("abcd");
    for (const char *name = "abcd"; *name; name++)
        assert_int_equal(offload(&w, (char[]){*name, 0}, HBM_TIER_HOST, true)->error, 0);
    world_pass(&w, 1000);
    assert_string_equal(tiers("abcd"), "kkhh");
    assert_int_equal(restore(&w, "*")->error, 0);
    all_are_whole("abcd");
}

static void what_finds_host_memory_at_its_mark_goes_to_disk(void **state)
{
    (void)state;
    w.core->limits.watermarks[HBM_TIER_HOST] = (struct watermarks){50, 50};
    w.device->capacity[HBM_TIER_HOST] = 4 * MIB;
    make_idle("abcd");
    assert_int_equal(alloc(4), 0);
    assert_string_equal(tiers("abcd"), "hhkk");
    all_are_whole("abcd");
}

static void whose_owner_may_have_no_more_host_memory_goes_to_disk(void **state)
{
    (void)state;
    w.core->limits.account[HBM_TIER_HOST] = 2 * MIB;
    make_idle("abcd");
    assert_int_equal(alloc(3), 0);
    assert_string_equal(tiers("abcd"), "hhkd");
    w.core->limits.account[HBM_TIER_DISK] = MIB;
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "hhkd");
    all_are_whole("abcd");
}

/* An offload that finds no host memory has that of what has lain there longest. */
static void who_waits_for_host_memory_gets_that_of_what_lies_there(void **state)
{
    (void)state;
    w.device->capacity[HBM_TIER_HOST] = 2 * MIB;
    make_idle("abcd");
    static const char *const then[] = {"hddd", "hhdd", "khhd", "kkhh"};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(offload(&w, (char[]){"abcd"[i], 0}, HBM_TIER_HOST, true)->error, 0);
        assert_string_equal(tiers("abcd"), then[i]);
    }
    all_are_whole("abcd");
}

/* FAULTS 18 and 20: no room anywhere. */
static void where_no_tier_has_room_all_stays_and_who_waits_is_told(void **state)
{
    (void)state;
    w.device->capacity[HBM_TIER_HOST] = w.device->capacity[HBM_TIER_DISK] = 0;
    make_idle("abcd");
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_non_null(strstr(last_detail, "no room elsewhere"));
    w.device->capacity[HBM_TIER_DISK] = 4 * MIB;
    world_fail(&w, JOB_COPY, 1, HBM_E_NO_SPACE);
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "dddd");
    world_pass(&w, 10000);
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("abcd"), "kddd");
    all_are_whole("abcd");
}

/* FAULTS 24. */
static void a_worker_that_dies_in_such_a_move_leaves_all_as_it_was(void **state)
{
    (void)state;
    make_idle("abcd");
    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("abcd"), "dhdd"); /* a could not go: another did */
    all_are_whole("abcd");
}

/* FAULTS 26. */
static void a_restart_in_the_midst_of_such_a_move_finds_all_as_it_was(void **state)
{
    (void)state;
    make_idle("abcd");
    char *before = world_picture(&w);
    w.hold = true;
    struct session *session = client(&w, alice);
    struct ask *question = ask_alloc(session, MIB);
    world_step(&w);
    session_gone(session, true, "bye");
    assert_int_equal(world_restart(&w), 0);
    free(question);
    w.hold = false;
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    all_are_whole("abcd");
}

/* ---- What comes back ---- */

/* FAULTS 22. */
static void a_lock_of_two_does_not_drive_out_the_one_for_the_other(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    uint32_t slots[2];
    make_idle("abcd");
    struct lease *a = hold(session, "a", false), *b = hold(session, "b", false);
    slots[0] = a->mappings[0]->slot;
    slots[1] = b->mappings[0]->slot;
    assert_int_equal(offload(&w, "c", HBM_TIER_HOST, true)->error, 0);
    struct ask *off = ask(&w, alice, NULL);
    verb_offload(w.core, &off->call, "b", HBM_TIER_HOST, true);
    world_run(&w);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, off)->error, 0);
    assert_int_equal(alloc(2), 0);
    assert_string_equal(tiers("abcd"), "dhhd");
    detach(&w, attach(&w, client(&w, alice), "d", HBM_RO)); /* else it would be d's turn in any case */
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, slots, 2, 5000);
    world_run(&w);
    assert_int_equal(error_of(&w, locking), 0);
    assert_string_equal(tiers("abcd"), "ddhh");
    all_are_whole("abcd");
}

static void a_hint_drives_nothing_out(void **state)
{
    (void)state;
    make_idle("abcd");
    assert_int_equal(alloc(1), 0);
    struct ask *question = ask(&w, alice, NULL);
    verb_prefetch(w.core, &question->call, "a");
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, 0);
    assert_string_equal(op->rows[0].skipped, "the device has no room for it");
    assert_string_equal(tiers("abcd"), "hddd");
}

static void a_hint_stays_below_the_high_mark(void **state)
{
    (void)state;
    want_room(75, 50);
    make_idle("abc");
    assert_int_equal(offload(&w, "a", HBM_TIER_HOST, true)->error, 0);
    make_idle("d");
    struct ask *question = ask(&w, alice, NULL);
    verb_prefetch(w.core, &question->call, "a");
    assert_string_equal(op_of(&w, question)->rows[0].skipped, "its device is at its high mark");
    assert_string_equal(tiers("abcd"), "hddd");
}

/* Five that are used in turn where four fit: the one that was used longest ago is always the next. */
static void what_bounces_is_told_of_and_left_alone(void **state)
{
    (void)state;
    unsigned turn = 0;
    struct session *session = client(&w, alice);
    make_idle("abcd");
    make_idle("e");
    struct attach_args args = {.access = HBM_RO, .timeout_ms = 5000};
    int error = 0;
    for (; turn < 100 && !error; turn++) {
        snprintf(args.name, sizeof(args.name), "%c", "abcde"[turn % 5]);
        struct ask *question = ask(&w, alice, session);
        verb_attach(w.core, &question->call, &args);
        for (unsigned i = 0; i < 100 && !question->answers; i++)
            world_pass(&w, 20);
        uint64_t id = question->id;
        error = error_of(&w, question);
        if (!error)
            detach(&w, lease_get(w.core, id));
    }
    assert_int_equal(error, HBM_E_NO_MEMORY);
    assert_in_range(turn, 5 * 3, 5 * 5);
    assert_non_null(strstr(last_detail, "4.0 MiB left alone since they bounced"));
    assert_non_null(strstr(last_detail, "5.0 MiB of 4.0 were used within 10 s"));
    assert_int_equal(w.core->counters.spared, 4);
    assert_true(w.core->counters.bounces >= 12);
    world_pass(&w, 31000); /* for a while, not for good */
    assert_int_equal(alloc(1), 0);
    assert_int_equal(restore(&w, args.name)->error, 0);
    world_check_books(&w);
}

static void what_comes_back_later_bounces_not(void **state)
{
    (void)state;
    make_idle("abcd");
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(alloc(1), 0);
        list_for_each_safe (node, &w.core->sessions)
            session_gone(list_entry(node, struct session, node), true, "bye");
        world_pass(&w, 11000);
        assert_int_equal(restore(&w, "*")->error, 0);
    }
    assert_int_equal(w.core->counters.evictions, 8);
    assert_int_equal(w.core->counters.bounces, 0);
}

static void of_a_model_that_is_leased_no_more_goes_than_offload_limit(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 10); /* 68 KiB each */
    struct attach_args args = {.name = "m", .access = HBM_RO, .flags = WIRE_UNLOCKED, .timeout_ms = 1000};
    struct ask *question = ask(&w, alice, client(&w, alice));
    verb_attach_model(w.core, &question->call, &args);
    assert_int_equal(error_of(&w, question), 0);
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    struct session *taker = client(&w, alice);
    for (unsigned i = 0; i < 4; i++) {
        question = ask_alloc(taker, 65536);
        for (unsigned j = 0; j < 100 && !question->answers; j++)
            world_pass(&w, 20);
        assert_int_equal(error_of(&w, question), i < 3 ? 0 : HBM_E_NO_MEMORY);
    }
    assert_non_null(strstr(last_detail, "kept by offload_limit"));
    uint64_t bytes[HBM_PLACES];
    model_bytes(model, bytes);
    assert_true(bytes[HBM_TIER_HOST] * 10 <= 3 * (bytes[HBM_TIER_HOST] + bytes[HBM_TIER_DEVICE]));
    list_for_each_safe (node, &w.core->sessions)
        session_gone(list_entry(node, struct session, node), true, "bye");
    world_run(&w);
    for (unsigned i = 0; i < 10; i++) { /* leased by nobody, it may go whole */
        question = ask_alloc(i ? taker : (taker = client(&w, alice)), 65536);
        for (unsigned j = 0; j < 100 && !question->answers; j++)
            world_pass(&w, 20);
        assert_int_equal(error_of(&w, question), 0);
    }
    world_check_books(&w);
}

static void the_working_set_is_what_was_used_of_late(void **state)
{
    (void)state;
    make_idle("ab");
    assert_int_equal(working_set(w.device), 2 * MIB);
    world_pass(&w, 2 * WORKING_SET_MS);
    assert_int_equal(working_set(w.device), 0);
    for (unsigned i = 0; i < 3; i++)
        detach(&w, attach(&w, client(&w, alice), "a", HBM_RO));
    assert_int_equal(working_set(w.device), MIB);
    world_pass(&w, WORKING_SET_MS);
    assert_int_equal(working_set(w.device), MIB);
    struct ask *question = ask(&w, alice, NULL);
    detach(&w, attach(&w, client(&w, alice), "b", HBM_RO));
    verb_free(w.core, &question->call, named(&w, "b")->id);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(working_set(w.device), MIB);
    world_pass(&w, WORKING_SET_MS);
    assert_int_equal(working_set(w.device), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)

int core_marks_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(over_the_high_mark_what_was_not_used_goes_until_the_low_one),
        CASE(host_memory_over_its_mark_goes_on_to_disk),
        CASE(what_finds_host_memory_at_its_mark_goes_to_disk),
        CASE(whose_owner_may_have_no_more_host_memory_goes_to_disk),
        CASE(who_waits_for_host_memory_gets_that_of_what_lies_there),
        CASE(where_no_tier_has_room_all_stays_and_who_waits_is_told),
        CASE(a_worker_that_dies_in_such_a_move_leaves_all_as_it_was),
        CASE(a_restart_in_the_midst_of_such_a_move_finds_all_as_it_was),
        CASE(a_lock_of_two_does_not_drive_out_the_one_for_the_other),
        CASE(a_hint_drives_nothing_out),
        CASE(a_hint_stays_below_the_high_mark),
        CASE(what_bounces_is_told_of_and_left_alone),
        CASE(what_comes_back_later_bounces_not),
        CASE(of_a_model_that_is_leased_no_more_goes_than_offload_limit),
        CASE(the_working_set_is_what_was_used_of_late),
    };

    return cmocka_run_group_tests_name("marks", tests, NULL, NULL);
}
