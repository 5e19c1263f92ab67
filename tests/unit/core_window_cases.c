/* What leaves behind a declared order, and what the daemon knows of the order. */
#include "core_cases.h"
#include "core_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/prefetch.h"

static uint32_t slots[LAYERS];
static struct lease *lease;

/* One that has attached all of "m", and holds no lock. */
static struct session *user_of(struct principal who, uint32_t *its_slots)
{
    struct attach_args args = {.name = "m", .access = HBM_RO, .timeout_ms = 1000};
    struct session *session = client(&w, who);
    struct ask *question = ask(&w, who, session);

    verb_attach_model(w.core, &question->call, &args);
    world_run(&w);
    assert_int_equal(question->error, 0);
    lease = lease_get(w.core, question->id);
    assert_int_equal(lease->n_mappings, LAYERS);
    for (unsigned i = 0; i < LAYERS; i++)
        its_slots[i] = lease->mappings[i]->slot;
    free(question);
    return session;
}

static struct session *user(void)
{
    make_model(&w, "m", LAYERS);
    return user_of(alice, slots);
}

/* Until nothing is left to do, clients letting go of what they are asked for. */
static void settle(struct session *one, struct session *other)
{
    for (unsigned i = 0; i < 8; i++) {
        client_lets_go(&w, one);
        if (other)
            client_lets_go(&w, other);
        world_run(&w);
    }
}

static void lock_from(struct session *session, uint32_t slot)
{
    struct ask *question = ask(&w, session->who, session);

    verb_lock(w.core, &question->call, &slot, 1, 1000);
    assert_int_equal(error_of(&w, question), 0);
    lockword_arrive(&session->words[slot], 0);
}

static void what_has_left_the_window_goes_to_the_host_tier(void **state)
{
    (void)state;
    struct session *session = user();
    uint64_t events = w.core->events.next;
    verb_behind(w.core, session, (uint32_t[]){slots[3], slots[1]}, 2);
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_RUNNING);
    settle(session, NULL);
    assert_string_equal(there(), "0-2-4");
    assert_int_equal(arena_tier(layer(1)->arena), HBM_TIER_HOST);
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_DONE);
    assert_int_equal(w.core->events.next, events); /* nobody waits for it */
    lock_from(session, slots[1]);
    assert_string_equal(there(), "012-4");
    assert_true(is_filled(layer(3), 7));
    world_check_books(&w);
}

/* FAULTS 13 */
static void what_is_locked_or_in_anothers_window_stays(void **state)
{
    (void)state;
    uint32_t others[LAYERS];
    struct session *session = user(), *other = user_of(alice, others);
    client_locks(session, slots[0]);
    client_locks(other, others[1]);
    atomic_fetch_or(&other->words[others[2]], LOCKWORD_WANTED);
    atomic_fetch_or(&session->words[slots[3]], LOCKWORD_WANTED); /* its own: it has come round by now */
    verb_behind(w.core, session, slots, LAYERS);
    settle(session, other);
    assert_string_equal(there(), "0123-");
    lockword_unlock(&other->words[others[1]]);
    atomic_fetch_and(&other->words[others[2]], ~LOCKWORD_WANTED);
    verb_behind(w.core, other, others + 1, 2); /* whoever is the last to leave it behind */
    settle(session, other);
    assert_string_equal(there(), "0--3-");
    world_check_books(&w);
}

static void what_the_window_comes_round_to_while_it_is_leaving_stays(void **state)
{
    (void)state;
    struct session *session = user();
    w.hold = true;
    verb_behind(w.core, session, slots, LAYERS);
    verb_ahead(w.core, session, slots, 1);                       /* on its way */
    atomic_fetch_or(&session->words[slots[4]], LOCKWORD_WANTED); /* and before its turn */
    w.hold = false;
    settle(session, NULL);
    assert_string_equal(there(), "0---4");
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static void what_is_locked_before_its_turn_stays(void **state)
{
    (void)state;
    struct session *session = user();
    verb_behind(w.core, session, slots, LAYERS); /* two at a time, which wait for the client */
    client_locks(session, slots[3]);
    settle(session, NULL);
    assert_string_equal(there(), "---3-");
    world_check_books(&w);
}

/* FAULTS 23 */
static void a_lock_calls_off_what_is_leaving(void **state)
{
    (void)state;
    struct session *session = user();
    w.hold = true;
    verb_behind(w.core, session, slots, 2);
    client_lets_go(&w, session);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, slots, 1, 1000);
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    settle(session, NULL);
    assert_string_equal(there(), "0-234");
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_DONE); /* that is no failure */
    assert_true(is_filled(layer(0), 1));
    world_check_books(&w);
}

static void what_is_locked_while_room_is_made_for_it_stays_and_is_not_waited_for(void **state)
{
    (void)state;
    struct session *session = user();
    w.hold = true;
    verb_behind(w.core, session, slots, LAYERS);
    client_locks(session, slots[0]); /* before it is asked to let go */
    client_locks(session, slots[1]);
    w.hold = false;
    settle(session, NULL); /* no time passes */
    assert_string_equal(there(), "01---");
    assert_false(session->words[slots[0]] & LOCKWORD_RECLAIM);
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

/* FAULTS 16 */
static void a_client_that_keeps_it_all_the_same_is_no_failure(void **state)
{
    (void)state;
    struct session *session = user();
    verb_behind(w.core, session, slots, 1);
    world_run(&w);
    world_pass(&w, w.core->limits.reclaim_ms + 1); /* it never lets go */
    assert_string_equal(there(), "01234");
    assert_int_equal(op_get(w.core, session->behind)->state, WIRE_OP_DONE);
    assert_false(session->words[slots[0]] & LOCKWORD_RECLAIM);
    world_check_books(&w);
}

static void who_may_not_write_sends_nothing_away(void **state)
{
    (void)state;
    struct session *session = user(), *other = client(&w, bob);
    verb_behind(w.core, other, slots, LAYERS); /* another session's slots */
    for (unsigned i = 0; i < LAYERS; i++)
        layer(i)->arena->mode = 0400;
    verb_behind(w.core, session, slots, LAYERS);
    settle(session, NULL);
    assert_string_equal(there(), "01234");
    struct ask *question = ask(&w, alice, session);
    verb_window(w.core, &question->call, lease->id, 1, true);
    assert_int_equal(error_of(&w, question), HBM_E_DENIED);
    verb_behind(w.core, session, (uint32_t[]){LOCKWORD_SLOTS, UINT32_MAX, LOCKWORD_SLOTS - 1}, 3);
    assert_int_equal(session->behind, 0);
    world_check_books(&w);
}

static void a_full_host_tier_keeps_it_where_it_is(void **state)
{
    (void)state;
    struct session *session = user();
    w.device->capacity[HBM_TIER_HOST] = layer(0)->arena->extent->size;
    verb_behind(w.core, session, slots, 3);
    settle(session, NULL);
    assert_string_equal(there(), "-1234");
    assert_true(list_empty(&w.core->memory_waiters));
    w.device->capacity[HBM_TIER_HOST] = 0;
    verb_behind(w.core, session, slots, LAYERS);
    settle(session, NULL);
    assert_string_equal(there(), "-1234");
    world_check_books(&w);
}

/* FAULTS 18: the model is larger than its share; what comes takes the room of what leaves. */
static void what_comes_next_waits_for_the_room_of_what_leaves(void **state)
{
    (void)state;
    struct session *session = user();
    verb_behind(w.core, session, slots + 2, 3);
    settle(session, NULL);
    assert_string_equal(there(), "01---");
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    w.hold = true;
    verb_behind(w.core, session, slots, 1);
    verb_ahead(w.core, session, slots + 2, 2); /* no room yet, and for one of them only then */
    assert_string_equal(there(), "01---");
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_RUNNING);
    w.hold = false;
    settle(session, NULL);
    assert_string_equal(there(), "-12--");
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_DONE);
    assert_true(list_empty(&w.core->memory_waiters));
    world_check_books(&w);
}

/* FAULTS 18 */
static void what_comes_next_waits_for_the_room_below_the_mark_too(void **state)
{
    (void)state;
    struct session *session = user();
    verb_behind(w.core, session, slots + 2, 3);
    settle(session, NULL);
    w.device->capacity[HBM_TIER_DEVICE] = 2 * w.device->used[HBM_TIER_DEVICE];
    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){.high = 50, .low = 50};
    verb_ahead(w.core, session, slots + 2, 1); /* nothing leaves */
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_DONE);
    w.hold = true;
    verb_behind(w.core, session, slots, 1);
    verb_ahead(w.core, session, slots + 2, 2);
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_RUNNING);
    w.hold = false;
    settle(session, NULL);
    assert_string_equal(there(), "-12--");
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

/* FAULTS 14 */
static void what_waits_for_room_ends_with_its_client_or_on_request(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct session *session = how ? user_of(alice, slots) : user();
        verb_behind(w.core, session, slots + 2, 3);
        settle(session, NULL);
        w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
        w.hold = true;
        verb_behind(w.core, session, slots, 1);
        verb_ahead(w.core, session, slots + 2, 1);
        uint64_t ahead = session->ahead;
        assert_int_equal(op_get(w.core, ahead)->state, WIRE_OP_RUNNING);
        struct ask *stop = ask(&w, alice, NULL);
        verb_op_cancel(w.core, &stop->call, how == 1 ? session->behind : ahead);
        op_of(&w, stop);
        if (how == 2)
            session_gone(session, true, "bye");
        w.hold = false;
        world_run(&w);
        assert_true(op_has_ended(op_get(w.core, ahead)));
        if (how != 2)
            session_gone(session, true, "bye");
        world_run(&w);
        assert_string_equal(there(), "01---");
        world_check_books(&w);
        w.device->capacity[HBM_TIER_DEVICE] *= 4; /* attaching brings all of it */
    }
}

/* FAULTS 9 */
static void a_flood_of_what_leaves_is_one_operation(void **state)
{
    (void)state;
    struct session *session = user();
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    for (unsigned round = 0; round < 100; round++)
        verb_behind(w.core, session, slots, LAYERS);
    assert_int_equal(account_of(w.core, alice.owner)->use[ACCOUNT_OPS], 1);
    w.hold = false;
    settle(session, NULL);
    assert_string_equal(there(), "-----");
    assert_int_equal(w.ran[JOB_COPY], copies + LAYERS); /* each once */
    world_check_books(&w);
}

/* FAULTS 24 */
static void a_worker_that_dies_leaves_it_where_it_was(void **state)
{
    (void)state;
    struct session *session = user();
    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    verb_behind(w.core, session, slots, 2);
    settle(session, NULL);
    const struct op *op = op_get(w.core, session->behind);
    assert_int_equal(op->state, WIRE_OP_FAILED);
    assert_non_null(strstr(op->detail, "1 of 2 arenas did not leave"));
    assert_string_equal(there(), "0-234");
    assert_true(is_filled(layer(0), 1));
    world_check_books(&w);
}

/* ---- The order, and the limit ---- */

static const char *by_use(const struct model *model)
{
    static char text[LAYERS + 1];
    struct arena **arenas = model_arenas_by_use(model);

    for (unsigned i = 0; i < LAYERS; i++)
        text[i] = arenas[i]->group[strlen("layer.")];
    free(arenas);
    return text;
}

static void the_order_is_kept_with_the_model(void **state)
{
    (void)state;
    struct session *session = user(), *other = client(&w, bob);
    struct model *model = lease->model;
    uint64_t id = lease->id;
    assert_string_equal(by_use(model), "01234");
    verb_order(w.core, other, id, 0, (uint32_t[]){slots[4]}, 1); /* not its lease */
    assert_string_equal(by_use(model), "01234");
    make_kept(&w, "loose", 64, 256);
    uint32_t loose = attach(&w, session, "loose", HBM_RO)->mappings[0]->slot; /* none of the model's */
    verb_order(w.core, session, id, 0, (uint32_t[]){slots[4], loose, slots[2]}, 3);
    assert_string_equal(by_use(model), "42013");
    verb_order(w.core, session, id, 2, (uint32_t[]){slots[0]}, 1); /* goes on */
    verb_order(w.core, session, id, 7, (uint32_t[]){slots[3]}, 1); /* does not */
    assert_string_equal(by_use(model), "42013");
    verb_order(w.core, session, id, 3, (uint32_t[]){slots[3], slots[3], slots[3], UINT32_MAX}, 4);
    assert_string_equal(by_use(model), "42031");
    session_gone(session, true, "bye");
    world_run(&w);
    assert_string_equal(by_use(model), "42031");
    session = user_of(alice, slots);
    verb_order(w.core, session, lease->id, 0, (uint32_t[]){UINT32_MAX}, 1);
    assert_string_equal(by_use(model), "01234");
}

static int window(struct session *session, uint32_t groups, bool force)
{
    struct ask *question = ask(&w, alice, session);

    verb_window(w.core, &question->call, lease->id, groups, force);
    return error_of(&w, question);
}

static void a_window_that_leaves_too_much_away_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct session *session = user();
    w.core->limits.offload_percent = 40;
    assert_int_equal(window(session, 3, false), 0);
    assert_int_equal(window(session, 99, false), 0);
    assert_int_equal(window(session, 2, false), HBM_E_OFFLOAD_LIMIT);
    assert_non_null(strstr(last_detail, "2 of its 5 groups"));
    assert_non_null(strstr(last_detail, "60.0 % where offload_limit is 40 %"));
    assert_null(strstr(last_detail, "GB/s")); /* nothing has come back yet */
    assert_null(strstr(last_detail, "between locks"));
    assert_int_equal(window(session, 2, true), 0);
    struct extent *small = layer(2)->arena->extent;
    small->size /= 2; /* 2 of 4.5 are away when it stays */
    assert_int_equal(window(session, 3, false), HBM_E_OFFLOAD_LIMIT);
    small->size *= 2;
    w.device->links[JOB_LINK_HOST_TO_DEVICE].measured = 50e9;
    assert_int_equal(window(session, 2, false), HBM_E_OFFLOAD_LIMIT);
    assert_non_null(strstr(last_detail, "at 50 GB/s"));
    lock_from(session, slots[0]);
    for (unsigned i = 1; i <= 4; i++) {
        world_pass(&w, 7);
        lock_from(session, slots[i]);
    }
    world_pass(&w, 60000); /* it does something else */
    lock_from(session, slots[0]);
    assert_int_equal(window(session, 2, false), HBM_E_OFFLOAD_LIMIT);
    assert_non_null(strstr(last_detail, "and 7 ms lie between locks"));
    struct ask *question = ask(&w, bob, client(&w, bob));
    verb_window(w.core, &question->call, lease->id, 2, true);
    assert_int_equal(error_of(&w, question), HBM_E_NOT_FOUND);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_window_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(what_has_left_the_window_goes_to_the_host_tier),
        CASE(what_is_locked_or_in_anothers_window_stays),
        CASE(what_the_window_comes_round_to_while_it_is_leaving_stays),
        CASE(what_is_locked_before_its_turn_stays),
        CASE(a_lock_calls_off_what_is_leaving),
        CASE(what_is_locked_while_room_is_made_for_it_stays_and_is_not_waited_for),
        CASE(a_client_that_keeps_it_all_the_same_is_no_failure),
        CASE(who_may_not_write_sends_nothing_away),
        CASE(a_full_host_tier_keeps_it_where_it_is),
        CASE(what_comes_next_waits_for_the_room_of_what_leaves),
        CASE(what_comes_next_waits_for_the_room_below_the_mark_too),
        CASE(what_waits_for_room_ends_with_its_client_or_on_request),
        CASE(a_flood_of_what_leaves_is_one_operation),
        CASE(a_worker_that_dies_leaves_it_where_it_was),
        CASE(the_order_is_kept_with_the_model),
        CASE(a_window_that_leaves_too_much_away_is_refused_with_the_reason),
    };

    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
