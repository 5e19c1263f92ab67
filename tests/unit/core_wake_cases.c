/* A model wakes group by group in the order of its use, and room for all of it comes first. */
#include "core_cases.h"
#include "core_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t slots[LAYERS];

static void put_to_sleep(enum hbm_tier tier)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_sleep(w.core, &question->call, "m", tier, NULL);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_string_equal(there(), "-----");
}

static void asleep(enum hbm_tier tier)
{
    make_model(&w, "m", LAYERS);
    put_to_sleep(tier);
}

static struct ask *begin(void)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_wake(w.core, &question->call, "m");
    return question;
}

static struct op *wake(void)
{
    return op_of(&w, begin());
}

/* One that has it attached, and nothing of it mapped. */
static struct session *user(struct lease **lease)
{
    struct attach_args args = {.name = "m", .access = HBM_RO, .flags = WIRE_UNLOCKED};
    struct session *session = client(&w, alice);
    struct ask *question = ask(&w, alice, session);

    verb_attach_model(w.core, &question->call, &args);
    world_run(&w);
    assert_int_equal(question->error, 0);
    *lease = lease_get(w.core, question->id);
    for (unsigned i = 0; i < LAYERS; i++)
        slots[i] = (*lease)->mappings[i]->slot;
    free(question);
    return session;
}

static void all_is_well(void)
{
    for (unsigned i = 0; i < LAYERS; i++) {
        assert_true(is_filled(layer(i), 2 * i + 1));
        assert_null(layer(i)->arena->transition);
    }
    world_check_books(&w);
}

static void the_first_group_is_usable_before_the_last_has_come(void **state)
{
    (void)state;
    struct lease *lease;
    asleep(HBM_TIER_HOST);
    struct session *session = user(&lease);
    w.hold = true;
    struct ask *question = begin(), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, slots, 1, 1000);
    assert_int_equal(locking->answers, 0);
    assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1);
    assert_string_equal(there(), "0----");
    const struct op *op = op_get(w.core, question->id);
    assert_int_equal(op->state, WIRE_OP_RUNNING);
    assert_string_equal(op->detail, "1 of 5 groups are there");
    assert_true(world_step(&w));
    assert_string_equal(there(), "01---");
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->detail, "");
    assert_int_equal(op->bytes_done, op->bytes_total);
    assert_int_equal(op->n_rows, 2 * LAYERS);
    assert_string_equal(there(), "01234");
    all_is_well();
}

static void it_wakes_in_the_declared_order(void **state)
{
    (void)state;
    struct lease *lease;
    asleep(HBM_TIER_HOST);
    struct session *session = user(&lease);
    verb_order(w.core, session, lease->id, 0, (uint32_t[]){slots[3], slots[1]}, 2);
    static const char *const seen[] = {"---3-", "-1-3-", "01-3-", "0123-", "01234"};
    w.hold = true;
    struct ask *question = begin();
    for (unsigned i = 0; i < LAYERS; i++) {
        assert_true(world_step(&w));
        assert_string_equal(there(), seen[i]);
    }
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    all_is_well();
}

static void a_group_that_a_lock_waits_for_comes_first(void **state)
{
    (void)state;
    struct lease *lease;
    asleep(HBM_TIER_HOST);
    struct session *session = user(&lease);
    w.hold = true;
    struct ask *question = begin(), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, slots + 4, 1, 1000);
    static const char *const seen[] = {"0----", "01---", "01--4"}; /* after the two that are on their way */
    for (unsigned i = 0; i < 3; i++) {
        assert_true(world_step(&w));
        assert_string_equal(there(), seen[i]);
    }
    assert_int_equal(locking->answers, 1);
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    all_is_well();
}

/* FAULTS 22 */
static void without_room_for_all_of_it_none_comes(void **state)
{
    (void)state;
    asleep(HBM_TIER_DISK);
    w.device->capacity[HBM_TIER_DEVICE] = 4 * layer(0)->arena->extent->size;
    struct ask *question = begin();
    world_pass(&w, w.core->limits.memory_wait_ms + 1);
    const struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_NO_MEMORY);
    assert_string_equal(there(), "-----");
    assert_int_equal(op->rows[0].error, HBM_E_NO_MEMORY);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    w.device->capacity[HBM_TIER_DEVICE] *= 2;
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    all_is_well();
}

/* FAULTS 24 */
static void a_worker_that_dies_leaves_what_has_come_and_the_rest_where_it_was(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth <= LAYERS; nth++) {
        if (nth == 1)
            asleep(HBM_TIER_HOST);
        else
            put_to_sleep(nth % 2 ? HBM_TIER_HOST : HBM_TIER_DISK);
        world_fail(&w, JOB_COPY, nth, HBM_E_WORKER_DIED);
        const struct op *op = wake();
        assert_int_equal(op->state, WIRE_OP_FAILED);
        assert_int_equal(op->error, HBM_E_WORKER_DIED);
        for (unsigned i = 0; i < LAYERS; i++) {
            bool came = arena_tier(layer(i)->arena) == HBM_TIER_DEVICE;
            assert_true(i + 1 >= nth || came);
            assert_true(i + 1 != nth || !came);
            assert_int_equal(op->rows[2 * i].error, came ? 0 : HBM_E_WORKER_DIED);
        }
        if (nth > 1)
            assert_non_null(strstr(op->detail, "of 5 groups are back: "));
        assert_int_equal(wake()->state, WIRE_OP_DONE);
        assert_string_equal(there(), "01234");
        all_is_well();
    }
}

/* FAULTS 21 */
static void a_damaged_group_is_named_and_those_before_it_are_usable(void **state)
{
    (void)state;
    asleep(HBM_TIER_DISK);
    assert_int_equal(pwrite(layer(2)->arena->extent->fd, "x", 1, 100), 1);
    const struct op *op = wake();
    assert_int_equal(op->error, HBM_E_CHECKSUM);
    assert_non_null(strstr(op->detail, "m/layer.2.w"));
    assert_int_equal(strncmp(there(), "01-", 3), 0);
    assert_int_equal(op->rows[4].error, HBM_E_CHECKSUM);
    assert_int_equal(op->rows[0].error, 0);
    world_check_books(&w);
}

/* FAULTS 14 */
static void a_cancelled_wake_keeps_what_has_come(void **state)
{
    (void)state;
    for (unsigned steps = 0; steps <= LAYERS; steps++) {
        if (!steps)
            asleep(HBM_TIER_HOST);
        else
            put_to_sleep(HBM_TIER_HOST);
        w.hold = true;
        struct ask *question = begin(), *stop = ask(&w, alice, NULL);
        for (unsigned i = 0; i < steps; i++)
            assert_true(world_step(&w));
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        const struct op *op = op_of(&w, question);
        assert_int_equal(op->state, steps == LAYERS ? WIRE_OP_DONE : WIRE_OP_CANCELLED);
        for (unsigned i = 0; i < LAYERS; i++) {
            assert_int_equal(arena_tier(layer(i)->arena), i < steps ? HBM_TIER_DEVICE : HBM_TIER_HOST);
            assert_int_equal(op->rows[2 * i].error, i < steps ? 0 : HBM_E_CANCELLED);
        }
        assert_int_equal(wake()->state, WIRE_OP_DONE);
        all_is_well();
    }
}

/* FAULTS 14 */
static void a_cancelled_sleep_leaves_all_of_it_awake(void **state)
{
    (void)state;
    make_model(&w, "m", LAYERS);
    bool done = false;
    for (unsigned steps = 0; !done; steps++) {
        struct ask *question = ask(&w, alice, NULL), *stop = ask(&w, alice, NULL);
        w.hold = true;
        verb_sleep(w.core, &question->call, "m", HBM_TIER_DISK, NULL);
        for (unsigned i = 0; i < steps && world_step(&w); i++)
            ;
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        done = op_of(&w, question)->state == WIRE_OP_DONE;
        assert_string_equal(there(), done ? "-----" : "01234");
        all_is_well();
        assert_true(steps < 4 * LAYERS);
    }
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    all_is_well();
}

/* FAULTS 14, 23 */
static void while_it_wakes_a_second_wake_and_a_sleep_are_told_so(void **state)
{
    (void)state;
    asleep(HBM_TIER_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    put_to_sleep(HBM_TIER_HOST); /* twice is once */
    w.hold = true;
    struct ask *first = begin(), *second = begin(), *sleeping = ask(&w, alice, NULL);
    verb_sleep(w.core, &sleeping->call, "m", HBM_TIER_DISK, NULL);
    assert_int_equal(op_get(w.core, second->id)->error, HBM_E_BUSY);
    assert_int_equal(op_get(w.core, sleeping->id)->error, HBM_E_BUSY);
    assert_non_null(strstr(op_get(w.core, sleeping->id)->detail, "(wake) has the arena"));
    struct ask *removing = ask(&w, alice, NULL);
    verb_rm(w.core, &removing->call, "m");
    assert_int_equal(removing->error, HBM_E_BUSY);
    assert_non_null(strstr(last_detail, "(wake) has the arena"));
    free(removing);
    w.hold = false;
    assert_int_equal(op_of(&w, first)->state, WIRE_OP_DONE);
    free(second);
    free(sleeping);
    assert_int_equal(wake()->state, WIRE_OP_DONE); /* it is awake */
    all_is_well();
}

/* FAULTS 13 */
static void a_model_that_is_locked_does_not_sleep_and_says_who_has_it(void **state)
{
    (void)state;
    struct lease *lease;
    char pid[32];
    asleep(HBM_TIER_HOST);
    struct session *innocent = user(&lease), *session = user(&lease);
    innocent->pid = 77; /* which has it attached, and let go of it */
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    struct ask *locking = ask(&w, alice, session), *question = ask(&w, alice, NULL);
    verb_lock(w.core, &locking->call, slots + 2, 1, 1000);
    assert_int_equal(error_of(&w, locking), 0);
    lockword_arrive(&session->words[slots[2]], 1);
    verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, NULL);
    world_run(&w);
    assert_int_equal(op_get(w.core, question->id)->state, WIRE_OP_RUNNING);
    world_pass(&w, w.core->limits.reclaim_ms + 1);
    const struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_BUSY);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_non_null(strstr(op->detail, pid));
    assert_null(strstr(op->detail, "pid 77"));
    assert_string_equal(there(), "01234"); /* all or nothing */
    all_is_well();
}

/* FAULTS 26 */
static void an_owner_that_dies_in_a_wake_leaves_each_group_where_it_is(void **state)
{
    (void)state;
    asleep(HBM_TIER_HOST);
    w.hold = true;
    free(begin());
    assert_true(world_step(&w));
    assert_true(world_step(&w));
    w.hold = false;
    assert_int_equal(world_restart(&w), 0);
    world_run(&w);
    assert_string_equal(there(), "01---");
    all_is_well();
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    assert_string_equal(there(), "01234");
    all_is_well();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_wake_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(the_first_group_is_usable_before_the_last_has_come),
        CASE(it_wakes_in_the_declared_order),
        CASE(a_group_that_a_lock_waits_for_comes_first),
        CASE(without_room_for_all_of_it_none_comes),
        CASE(a_worker_that_dies_leaves_what_has_come_and_the_rest_where_it_was),
        CASE(a_damaged_group_is_named_and_those_before_it_are_usable),
        CASE(a_cancelled_wake_keeps_what_has_come),
        CASE(a_cancelled_sleep_leaves_all_of_it_awake),
        CASE(while_it_wakes_a_second_wake_and_a_sleep_are_told_so),
        CASE(a_model_that_is_locked_does_not_sleep_and_says_who_has_it),
        CASE(an_owner_that_dies_in_a_wake_leaves_each_group_where_it_is),
    };

    return cmocka_run_group_tests_name("wake", tests, NULL, NULL);
}
