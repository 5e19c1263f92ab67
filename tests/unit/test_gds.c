/* The choice between staging and GPUDirect Storage by itself: measurements go in, a way comes out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#undef fail

#include "daemon/worker/gds.h"
#include "daemon/worker/job.h"

#define BYTES ((uint64_t)128 << 20)

uint64_t monotonic_ns(void)
{
    return 0;
}

static int with_library(void **state)
{
    (void)state;
    setenv("HBM_WORKER_CUFILE", "/no/such/library.so", 1);
    gds_start(true, true);
    gds_measured(GDS_READ, 0, 1, 1);
    gds_measured(GDS_WRITE, 0, 1, 1);
    return 0;
}

static struct job_query_reply report(void)
{
    struct job_query_reply reply = {0};

    gds_report(&reply);
    return reply;
}

static void each_direction_keeps_the_way_that_was_faster(void **state)
{
    (void)state;
    assert_int_equal(gds_way(GDS_READ), GDS_UNMEASURED);
    assert_int_equal(gds_way(GDS_WRITE), GDS_UNMEASURED);
    gds_measured(GDS_READ, BYTES, 2000000, 1000000);
    assert_int_equal(gds_way(GDS_READ), GDS_STRAIGHT);
    assert_int_equal(gds_way(GDS_WRITE), GDS_UNMEASURED);
    gds_measured(GDS_WRITE, BYTES, 1000000, 2000000);
    assert_int_equal(gds_way(GDS_READ), GDS_STRAIGHT);
    assert_int_equal(gds_way(GDS_WRITE), GDS_STAGED);
}

static void a_tie_stays_staged(void **state)
{
    (void)state;
    gds_measured(GDS_READ, BYTES, 1000000, 1000000);
    assert_int_equal(gds_way(GDS_READ), GDS_STAGED);
}

static void both_figures_are_told(void **state)
{
    (void)state;
    gds_measured(GDS_WRITE, BYTES, 1000000000, 500000000);
    struct job_query_reply reply = report();
    assert_int_equal(reply.gpudirect, JOB_GPUDIRECT_THERE);
    assert_true(!reply.staged_rates[GDS_READ] && !reply.straight_rates[GDS_READ]);
    assert_int_equal(reply.staged_rates[GDS_WRITE], BYTES);
    assert_int_equal(reply.straight_rates[GDS_WRITE], 2 * BYTES);
}

static void what_failed_once_is_not_used_any_more(void **state)
{
    struct failure failure = {.error = HBM_E_IO, .detail = "made up"};

    (void)state;
    gds_measured(GDS_READ, BYTES, 2, 1);
    gds_failed(&failure);
    gds_measured(GDS_WRITE, BYTES, 2, 1);
    assert_int_equal(gds_way(GDS_READ), GDS_STAGED);
    assert_int_equal(gds_way(GDS_WRITE), GDS_STAGED);
    assert_int_equal(report().gpudirect, JOB_GPUDIRECT_FAILED);
}

static void it_is_off_where_it_is_not_wanted_and_absent_where_nobody_offers_it(void **state)
{
    (void)state;
    gds_start(false, true);
    assert_int_equal(gds_way(GDS_READ), GDS_STAGED);
    assert_int_equal(report().gpudirect, JOB_GPUDIRECT_OFF);
    unsetenv("HBM_WORKER_CUFILE");
    gds_start(true, false);
    assert_int_equal(gds_way(GDS_READ), GDS_STAGED);
    assert_int_equal(report().gpudirect, JOB_GPUDIRECT_ABSENT);
}

int main(void)
{
#define WITH_LIBRARY(test) cmocka_unit_test_setup(test, with_library)
    const struct CMUnitTest tests[] = {
        WITH_LIBRARY(each_direction_keeps_the_way_that_was_faster),
        WITH_LIBRARY(a_tie_stays_staged),
        WITH_LIBRARY(both_figures_are_told),
        WITH_LIBRARY(what_failed_once_is_not_used_any_more),
        WITH_LIBRARY(it_is_off_where_it_is_not_wanted_and_absent_where_nobody_offers_it),
    };

    return cmocka_run_group_tests_name("gds", tests, NULL, NULL);
}
