/* Want of room: what goes for it, what does not, and what those who wait are told. */
#include "core_cases.h"
#include "core_pressure.h"

static void who_waits_for_room_gets_that_of_what_was_used_longest_ago(void **state)
{
    (void)state;
    make_idle("abcd");
    detach(&w, attach(&w, client(&w, alice), "a", HBM_RO));
    assert_int_equal(alloc(2), 0);
    assert_string_equal(tiers("abcd"), "dhhd");
    assert_int_equal(w.core->counters.evictions, 2);
    assert_int_equal(w.core->counters.evicted_bytes, 2 * MIB);
    all_are_whole("abcd");
}

static void nothing_goes_where_there_is_room_or_no_marks_are_set(void **state)
{
    (void)state;
    make_idle("abc");
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("abc"), "ddd");
    w.core->limits.watermarks[HBM_TIER_DEVICE].high = 0;
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abc"), "ddd");
}

/* FAULTS 18: what is locked stays, however long somebody waits, and who waits is told what the tier is full of. */
static void what_is_locked_or_never_to_be_moved_stays(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    make_idle("abcd");
    for (const char *name = "abc"; *name; name++)
        hold(session, (char[]){*name, 0}, true);
    assert_int_equal(alloc(2), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "dddd"); /* d alone would not do: it does not go in vain */
    assert_non_null(strstr(last_detail, "3.0 MiB locked"));
    assert_non_null(strstr(last_detail, "1.0 MiB idle"));
    assert_int_equal(w.ran[JOB_COPY], 0);
    struct ask *question = ask(&w, alice, NULL);
    verb_priority(w.core, &question->call, "d", PRIORITY_NEVER);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_non_null(strstr(last_detail, "1.0 MiB never to be moved"));
    assert_string_equal(tiers("abcd"), "dddd");
}

/* Half of it, as fp16. */
static void what_is_parked_needs_room_for_its_encoded_form(void **state)
{
    const struct compress_args park = {.sel = "?", .encoding = {.codec = HBM_CODEC_FP16, .granularity = 0xff}, .mode = WIRE_MODE_PARK};

    (void)state;
    make_idle("abcd");
    w.device->capacity[HBM_TIER_HOST] = MIB;
    w.device->capacity[HBM_TIER_DISK] = 0;
    w.device->used[HBM_TIER_HOST] = MIB / 2; /* by something else */
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "dddd");
    struct ask *question = ask(&w, alice, NULL);
    verb_compress(w.core, &question->call, &park);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("abcd"), "hddd");
    w.device->used[HBM_TIER_HOST] -= MIB / 2;
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("abcd"), "hhdd");
    assert_int_equal(w.device->used[HBM_TIER_HOST], MIB);
    question = ask(&w, alice, NULL);
    verb_decompress(w.core, &question->call, "?"); /* of those that are here: raw again if they go */
    assert_int_equal(error_of(&w, question), 0);
    w.device->capacity[HBM_TIER_HOST] = MIB + MIB / 2;
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "hhdd");
    world_check_books(&w);
}

static void the_lowest_priority_goes_first(void **state)
{
    (void)state;
    make_idle("abcd");
    const unsigned priority[] = {9, 0, 5, 4};
    for (unsigned i = 0; i < 4; i++) {
        struct ask *question = ask(&w, alice, NULL);
        verb_priority(w.core, &question->call, (char[]){"abcd"[i], 0}, priority[i]);
        assert_int_equal(error_of(&w, question), 0);
    }
    static const char *const then[] = {"dhdd", "dhdh", "dhhh", "hhhh"};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(alloc(1), 0);
        assert_string_equal(tiers("abcd"), then[i]);
    }
    all_are_whole("abcd");
}

/* FAULTS 26. */
static void a_priority_is_for_who_may_write_and_survives_a_restart(void **state)
{
    (void)state;
    make_idle("ab");
    struct ask *question = ask(&w, bob, NULL);
    verb_priority(w.core, &question->call, "~1000/a", 3);
    assert_int_equal(error_of(&w, question), HBM_E_DENIED);
    question = ask(&w, alice, NULL);
    verb_priority(w.core, &question->call, "a", PRIORITIES);
    assert_int_equal(error_of(&w, question), HBM_E_INVALID);
    question = ask(&w, alice, NULL);
    verb_priority(w.core, &question->call, "a", PRIORITY_NEVER);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(named(&w, "a")->arena->priority, PRIORITY_NEVER);
    assert_int_equal(named(&w, "b")->arena->priority, PRIORITY_NORMAL);
    want_room(100, 90);
    w.device->capacity[HBM_TIER_DEVICE] = 2 * MIB;
    assert_int_equal(alloc(1), 0);
    assert_string_equal(tiers("ab"), "dh");
}

static void who_holds_it_unlocked_is_asked_and_then_it_goes(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    make_idle("ab");
    struct lease *a = hold(session, "a", false), *b = hold(session, "b", false);
    assert_int_equal(lockword_lock(word_of(a)), LOCKWORD_DONE); /* in a step, and out of it: used last */
    assert_int_equal(lockword_unlock(word_of(a)), LOCKWORD_DONE);
    struct ask *question = ask_alloc(client(&w, alice), 3 * MIB);
    assert_int_equal(question->answers, 0);
    assert_true(atomic_load(word_of(b)) & LOCKWORD_RECLAIM);
    assert_false(atomic_load(word_of(a)) & LOCKWORD_RECLAIM);
    client_lets_go(&w, session);
    assert_int_equal(error_of(&w, question), 0);
    assert_string_equal(tiers("ab"), "dh");
    all_are_whole("ab");
}

/* FAULTS 16 and 23. */
static void what_is_locked_as_it_is_asked_for_stays_and_another_goes(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    make_idle("ab");
    struct lease *a = hold(session, "a", false);
    assert_int_equal(alloc(2), 0);
    atomic_fetch_or(word_of(a), LOCKWORD_USED);
    lockword_was_used(word_of(a));
    w.core->limits.memory_wait_ms = 3000;
    struct lease *b = hold(client(&w, alice), "b", false);
    struct ask *question = ask_alloc(client(&w, alice), MIB);
    assert_true(atomic_load(word_of(a)) & LOCKWORD_RECLAIM);
    /* Between the request and its being heard of: the lock was there first. */
    atomic_fetch_add(word_of(a), 1);
    world_pass(&w, 20);
    assert_false(atomic_load(word_of(a)) & LOCKWORD_RECLAIM);
    assert_true(atomic_load(word_of(b)) & LOCKWORD_RECLAIM);
    client_lets_go(&w, b->session);
    assert_int_equal(error_of(&w, question), 0);
    assert_string_equal(tiers("ab"), "dh");
}

/* FAULTS 16: hostile, or stopped. */
static void who_never_lets_go_keeps_it_and_who_waits_hears_so(void **state)
{
    (void)state;
    make_idle("abcd");
    struct session *session = client(&w, alice);
    for (const char *name = "abcd"; *name; name++)
        hold(session, (char[]){*name, 0}, false);
    assert_int_equal(alloc(1), HBM_E_NO_MEMORY);
    assert_string_equal(tiers("abcd"), "dddd");
    for (unsigned i = 0; i < 100; i++)
        world_pass(&w, 20);
    list_for_each (node, &session->mappings)
        assert_false(list_entry(node, struct mapping, session_node)->reclaimed);
    assert_true(list_empty(&w.core->memory_waiters));
    world_check_books(&w);
}

/* A lock that comes while it is on its way calls it off, as it does an offload. */
static void a_lock_of_what_is_going_has_it_at_once(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    make_idle("abcd");
    struct lease *a = hold(session, "a", false);
    for (const char *name = "bcd"; *name; name++)
        hold(session, (char[]){*name, 0}, true);
    w.core->limits.memory_wait_ms = 1000;
    w.hold = true;
    struct ask *question = ask_alloc(client(&w, alice), MIB);
    world_run(&w);
    client_lets_go(&w, session);
    world_step(&w);
    world_run(&w);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &a->mappings[0]->slot, 1, 1000);
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    lockword_arrive(word_of(a), 1);
    assert_string_equal(tiers("abcd"), "dddd");
    for (unsigned i = 0; i < 100 && !question->answers; i++)
        world_pass(&w, 20);
    assert_int_equal(error_of(&w, question), HBM_E_NO_MEMORY);
    all_are_whole("abcd");
}

/* FAULTS 14 and 23. */
static void what_somebody_asks_for_is_not_refused_for_a_move_of_the_daemons_own(void **state)
{
    (void)state;
    static const char *const verbs[] = {"offload", "restore", "free"};

    for (unsigned i = 0; i < 3; i++) {
        make_idle("abcd");
        w.hold = true;
        struct ask *waits = ask_alloc(client(&w, alice), MIB);
        world_run(&w);
        assert_non_null(named(&w, "a")->arena->transition);
        struct ask *question = ask(&w, alice, NULL);
        if (i == 0)
            verb_offload(w.core, &question->call, "a", HBM_TIER_DISK, true);
        else if (i == 1)
            verb_compress(
                w.core, &question->call,
                &(struct compress_args){.sel = "a", .encoding = {.codec = HBM_CODEC_FP16, .granularity = 0xff}});
        else
            verb_free(w.core, &question->call, named(&w, "a")->id);
        w.hold = false;
        if (i < 2)
            assert_int_equal(op_of(&w, question)->error, 0);
        else
            assert_int_equal(error_of(&w, question), 0);
        for (unsigned j = 0; j < 100 && !waits->answers; j++)
            world_pass(&w, 20);
        if (error_of(&w, waits))
            fail_msg("%s: %s", verbs[i], last_detail);
        if (i == 0)
            assert_string_equal(tiers("a"), "k");
        world_check_books(&w);
        world_end(&w);
        begin(NULL);
    }
}

static void a_cancelled_operation_waits_for_nothing(void **state)
{
    (void)state;
    make_idle("abcd");
    w.hold = true;
    struct ask *waits = ask_alloc(client(&w, alice), MIB);
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "a", HBM_TIER_DISK, true);
    struct op *op = op_get(w.core, question->id);
    op_cancel(op, "not wanted");
    assert_int_equal(op->state, WIRE_OP_CANCELLED);
    free(question);
    w.hold = false;
    assert_int_equal(error_of(&w, waits), 0);
    all_are_whole("abcd");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, world_teardown)

int core_pressure_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(who_waits_for_room_gets_that_of_what_was_used_longest_ago),
        CASE(nothing_goes_where_there_is_room_or_no_marks_are_set),
        CASE(what_is_locked_or_never_to_be_moved_stays),
        CASE(what_is_parked_needs_room_for_its_encoded_form),
        CASE(the_lowest_priority_goes_first),
        CASE(a_priority_is_for_who_may_write_and_survives_a_restart),
        CASE(who_holds_it_unlocked_is_asked_and_then_it_goes),
        CASE(what_is_locked_as_it_is_asked_for_stays_and_another_goes),
        CASE(who_never_lets_go_keeps_it_and_who_waits_hears_so),
        CASE(a_lock_of_what_is_going_has_it_at_once),
        CASE(what_somebody_asks_for_is_not_refused_for_a_move_of_the_daemons_own),
        CASE(a_cancelled_operation_waits_for_nothing),
    };

    return cmocka_run_group_tests_name("pressure", tests, NULL, NULL);
}
