#include "core_cases.h"
#include "core_prefetch.h"

static void lock(struct session *session, const uint32_t *slots, unsigned n, uint64_t takes_ms)
{
    struct ask *locking = ask(&w, alice, session);

    w.hold = true;
    verb_lock(w.core, &locking->call, slots, n, 5000);
    w.now += takes_ms;
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
}

static void counted(const struct lock_waits *waits, uint64_t n, uint64_t ms, uint64_t prefetched)
{
    assert_int_equal(waits->n, n);
    assert_int_equal(waits->ms, ms);
    assert_int_equal(waits->prefetched, prefetched);
}

static void a_lock_that_waits_is_counted_with_its_time(void **state)
{
    (void)state;
    uint32_t slots[3];
    struct model *model = away_model(3);
    struct session *session = reader(3, slots);
    lock(session, slots, 1, 30);
    counted(&layer(0)->arena->lock_waits, 1, 30, 0);
    counted(&layer(1)->arena->lock_waits, 0, 0, 0);
    lock(session, slots, 1, 5); /* is there: a client that had unmapped it would find it so */
    counted(&w.core->lock_waits, 1, 30, 0);
    lock(session, slots, 3, 40); /* two wait for one another, once */
    counted(&layer(1)->arena->lock_waits, 1, 40, 0);
    counted(&layer(2)->arena->lock_waits, 1, 40, 0);
    counted(&layer(0)->arena->lock_waits, 1, 30, 0);
    counted(&model->lock_waits, 2, 70, 0);
    counted(&w.core->lock_waits, 2, 70, 0);
    world_check_books(&w);
}

static void a_lock_that_a_prefetch_has_helped_is_counted(void **state)
{
    (void)state;
    uint32_t slots[3];
    struct model *model = away_model(3);
    struct session *session = reader(3, slots);
    verb_ahead(w.core, session, slots, 1);
    world_run(&w);
    lock(session, slots, 1, 9); /* is back */
    counted(&layer(0)->arena->lock_waits, 0, 0, 1);
    w.hold = true;
    verb_ahead(w.core, session, slots + 1, 1);
    lock(session, slots + 1, 1, 9); /* is on its way */
    counted(&layer(1)->arena->lock_waits, 1, 9, 1);
    world_fail(&w, JOB_COPY, 1, HBM_E_IO);
    verb_ahead(w.core, session, slots + 2, 1);
    world_run(&w);
    lock(session, slots + 2, 1, 9); /* has not come */
    counted(&layer(2)->arena->lock_waits, 1, 9, 0);
    counted(&model->lock_waits, 2, 18, 2);
    session_gone(session, true, "bye");
    offload(&w, "model:m", HBM_TIER_HOST, true);
    session = reader(3, slots);
    lock(session, slots, 1, 2); /* that it came by a prefetch once is past */
    counted(&layer(0)->arena->lock_waits, 1, 2, 1);
    counted(&w.core->lock_waits, 3, 20, 2);
    world_check_books(&w);
}

static void a_lock_in_vain_is_counted_too(void **state)
{
    (void)state;
    uint32_t slots[1];
    away_model(1);
    struct session *session = reader(1, slots);
    w.core->limits.memory_wait_ms = 60000;
    struct ask *locking = ask(&w, alice, session);
    w.device->capacity[HBM_TIER_DEVICE] = layer(0)->arena->extent->size;
    w.device->used[HBM_TIER_DEVICE] += 1; /* somebody has it */
    verb_lock(w.core, &locking->call, slots, 1, 50);
    world_run(&w);
    world_pass(&w, 50);
    assert_int_equal(error_of(&w, locking), HBM_E_TIMEOUT);
    counted(&w.core->lock_waits, 1, 50, 0);
    w.device->used[HBM_TIER_DEVICE] -= 1;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_lock_wait_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_lock_that_waits_is_counted_with_its_time),
        CASE(a_lock_that_a_prefetch_has_helped_is_counted),
        CASE(a_lock_in_vain_is_counted_too),
    };

    return cmocka_run_group_tests_name("what locks wait", tests, NULL, NULL);
}
