/* What a link's traffic says of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/base/traffic.h"

#define MIB ((uint64_t)1 << 20)
#define SECOND ((uint64_t)1000000000)

static void nothing_is_measured_before_enough_has_gone_over_it(void **state)
{
    struct traffic t = {0};

    (void)state;
    traffic_begin(&t, 32 * MIB, SECOND);
    assert_int_equal(t.jobs, 1);
    assert_int_equal(t.queued_bytes, 32 * MIB);
    traffic_move(&t, 32 * MIB, 2 * SECOND);
    traffic_end(&t, 0, 2 * SECOND);
    assert_true(t.measured == 0 && t.jobs == 0 && t.queued_bytes == 0);
    assert_int_equal(t.moved_bytes, 32 * MIB);
    assert_int_equal(t.busy_ns, SECOND);
}

static void small_moves_add_up_and_the_time_between_them_does_not_count(void **state)
{
    struct traffic t = {0};

    (void)state;
    for (uint64_t i = 0; i < 64; i++) {
        traffic_begin(&t, MIB, 100 * i * SECOND);
        traffic_move(&t, MIB, (100 * i + 1) * SECOND);
        traffic_end(&t, 0, (100 * i + 1) * SECOND);
    }
    assert_true(t.measured == (double)MIB);
    assert_int_equal(t.busy_ns, 64 * SECOND);
}

static void two_jobs_side_by_side_are_busy_once(void **state)
{
    struct traffic t = {0};

    (void)state;
    traffic_begin(&t, 64 * MIB, 0);
    traffic_begin(&t, 64 * MIB, 0);
    traffic_move(&t, 64 * MIB, SECOND);
    traffic_end(&t, 0, SECOND);
    traffic_move(&t, 64 * MIB, SECOND);
    traffic_end(&t, 0, SECOND);
    assert_int_equal(t.busy_ns, SECOND);
    assert_int_equal(t.moved_bytes, 128 * MIB);
}

static void move(struct traffic *t, uint64_t bytes, uint64_t *now)
{
    traffic_begin(t, bytes, *now);
    *now += SECOND;
    traffic_move(t, bytes, *now);
    traffic_end(t, 0, *now);
}

static void the_best_of_late_is_what_it_can_do(void **state)
{
    struct traffic t = {0};
    uint64_t now = 0;

    (void)state;
    move(&t, 512 * MIB, &now);
    assert_true(t.measured == (double)(512 * MIB));
    move(&t, 64 * MIB, &now);
    assert_true(t.measured < (double)(512 * MIB) && t.measured > (double)(480 * MIB));
    for (unsigned i = 0; i < 500; i++)
        move(&t, 64 * MIB, &now);
    assert_true(t.measured < (double)(65 * MIB)); /* a disk that has become slow */
    move(&t, 128 * MIB, &now);
    assert_true(t.measured == (double)(128 * MIB));
}

static void a_link_that_is_held_back_keeps_what_it_was_seen_to_do(void **state)
{
    struct traffic t = {0};
    uint64_t now = 0;

    (void)state;
    move(&t, 512 * MIB, &now);
    t.limit = 64 * MIB;
    for (unsigned i = 0; i < 500; i++)
        move(&t, 64 * MIB, &now);
    assert_true(t.measured == (double)(512 * MIB));
}

static void what_never_moved_is_queued_no_more(void **state)
{
    struct traffic t = {0};

    (void)state;
    traffic_begin(&t, 64 * MIB, 0);
    traffic_move(&t, 16 * MIB, SECOND);
    traffic_end(&t, 48 * MIB, 2 * SECOND);
    assert_true(t.queued_bytes == 0 && t.moved_bytes == 16 * MIB);
}

static void the_rate_is_of_the_last_moments_and_ends_with_them(void **state)
{
    struct traffic t = {0};

    (void)state;
    traffic_begin(&t, 1024 * MIB, 0);
    traffic_move(&t, 100 * MIB, 5 * SECOND + SECOND / 2);
    traffic_move(&t, 50 * MIB, 6 * SECOND);
    assert_true(traffic_rate(&t, 6 * SECOND) == (double)(150 * MIB));
    assert_true(traffic_rate(&t, 7 * SECOND) == (double)(50 * MIB));
    assert_true(traffic_rate(&t, 60 * SECOND) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_measured_before_enough_has_gone_over_it),
        cmocka_unit_test(small_moves_add_up_and_the_time_between_them_does_not_count),
        cmocka_unit_test(two_jobs_side_by_side_are_busy_once),
        cmocka_unit_test(the_best_of_late_is_what_it_can_do),
        cmocka_unit_test(a_link_that_is_held_back_keeps_what_it_was_seen_to_do),
        cmocka_unit_test(what_never_moved_is_queued_no_more),
        cmocka_unit_test(the_rate_is_of_the_last_moments_and_ends_with_them),
    };

    return cmocka_run_group_tests_name("traffic", tests, NULL, NULL);
}
