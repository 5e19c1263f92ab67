/* A daemon that lacks something refuses what is new, lets the rest go on, and recovers by itself. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core_cases.h"
#include "core_world.h"

static struct rlimit old;

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    signal(SIGXFSZ, SIG_IGN);
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_end(&w);
    return 0;
}

static void limit(__rlimit_resource_t resource, rlim_t now)
{
    getrlimit(resource, &old);
    assert_int_equal(setrlimit(resource, &(struct rlimit){now, old.rlim_max}), 0);
}

static void lift(__rlimit_resource_t resource)
{
    assert_int_equal(setrlimit(resource, &old), 0);
}

static int allocate(struct session *session, const char *name)
{
    struct alloc_args args = {.size = 4096, .mode = 0600, .dtype = HBM_U8};
    struct ask *one = ask(&w, alice, session);

    strcpy(args.name, name);
    verb_alloc(w.core, &one->call, &args);
    return error_of(&w, one);
}

static int attach_to(struct session *session, const char *name)
{
    struct attach_args args = {.access = HBM_RO};
    struct ask *one = ask(&w, alice, session);

    strcpy(args.name, name);
    verb_attach(w.core, &one->call, &args);
    return error_of(&w, one);
}

static int free_it(const char *name)
{
    struct ask *one = ask(&w, alice, NULL);

    verb_free(w.core, &one->call, named(&w, name)->id);
    return error_of(&w, one);
}

static void the_very_grant_whose_row_cannot_be_written_is_refused_and_frees_go_on(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);

    make_kept(&w, "w", 8, 8);
    make_kept(&w, "x", 8, 8);
    limit(RLIMIT_FSIZE, 0);
    assert_int_equal(attach_to(session, "w"), HBM_E_DEGRADED);
    assert_true(list_empty(&session->leases) && list_empty(&session->mappings));
    assert_int_equal(named(&w, "w")->n_leases, 0);
    assert_int_equal(allocate(session, "new"), HBM_E_DEGRADED);
    assert_non_null(strstr(last_detail, "File too large"));
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, true)->error, HBM_E_DEGRADED);
    assert_int_equal(free_it("x"), 0);
    assert_int_equal(w.core->counters.degraded, 1);
    lift(RLIMIT_FSIZE);
    world_pass(&w, 1000); /* by itself */
    assert_int_equal(w.core->ailing[AILMENT_LEDGER].since_ms, 0);
    assert_int_equal(allocate(session, "new"), 0);
    world_check_books(&w);
    assert_int_equal(world_restart(&w), 0);
    assert_non_null(named(&w, "w"));
    assert_non_null(named(&w, "new"));
    assert_null(names_find(&w.core->buffer_names, alice.owner, "x"));
}

static void an_allocation_under_way_when_the_ledger_fails_leaves_nothing(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct alloc_args args = {.size = 4096, .mode = 0600, .dtype = HBM_U8};
    struct ask *one = ask(&w, alice, session);
    char name[8];

    for (int i = 0; i < 64; i++) { /* a ledger that is longer than the memory which is asked for, compacted or not */
        snprintf(name, sizeof(name), "w%d", i);
        make_kept(&w, name, 8, 8);
    }
    uint64_t used = w.device->used[HBM_TIER_DEVICE];
    w.hold = true;
    verb_alloc(w.core, &one->call, &args);
    limit(RLIMIT_FSIZE, 4096);
    w.hold = false;
    assert_int_equal(error_of(&w, one), HBM_E_DEGRADED);
    lift(RLIMIT_FSIZE);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], used);
    assert_int_equal(w.core->n_buffers, 64);
    world_check_books(&w);
}

static void a_daemon_short_of_fds_says_which_limit_to_raise(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);

    make_kept(&w, "w", 8, 8);
    limit(RLIMIT_NOFILE, w.fds_at_start + 12);
    world_pass(&w, 20);
    assert_int_equal(allocate(session, "new"), HBM_E_DEGRADED);
    assert_non_null(strstr(last_detail, "LimitNOFILE"));
    assert_int_equal(free_it("w"), 0);
    lift(RLIMIT_NOFILE);
    assert_int_equal(allocate(session, "new"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int core_health_cases(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_very_grant_whose_row_cannot_be_written_is_refused_and_frees_go_on),
        TEST(an_allocation_under_way_when_the_ledger_fails_leaves_nothing),
        TEST(a_daemon_short_of_fds_says_which_limit_to_raise),
    };
    return cmocka_run_group_tests_name("health", tests, NULL, NULL);
}
