/* libhbm: what it asks for ahead of a model's declared order of use, and what it lets go of behind a window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/libhbm_test.h"
#include "tests/unit/no_system_call.h"

/* A decode loop with a declared order. */
static void *go_round_under_seccomp(void *model)
{
    char group[] = "g0";

    if (!trap_calls())
        return (void *)-1;
    for (unsigned i = 0; i < 10000; i++) {
        group[1] = (char)('0' + i % ARENAS);
        if (hbm_model_lock(model, group, 0) || hbm_model_unlock(model, group, NULL, 0))
            return (void *)-2;
    }
    return (void *)(intptr_t)trapped;
}

static hbm_model *ordered_model(hbm_session *session, const char *const *groups, unsigned n, unsigned depth)
{
    hbm_model *model;

    assert_int_equal(hbm_model_attach(session, "model", HBM_RO, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    assert_int_equal(hbm_model_order(model, groups, n, depth), 0);
    return model;
}

static void an_order_costs_no_system_call_while_all_is_resident(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, NULL, 0, 3);

    (void)state;
    enters_no_system_call(go_round_under_seccomp, model);
    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    assert_int_equal(fake.aheads, 0);
    hbm_close(session);
}

static void goes_away(unsigned arena)
{
    ask_back(arena);
    EVENTUALLY(fake.away[arena]);
}

/* Locks it for a moment; the groups that were asked for with it, as "23". */
static const char *asked_with(hbm_session *session, hbm_model *model, unsigned arena)
{
    static char text[ARENAS + 1];
    char group[] = {'g', (char)('0' + arena), 0};
    unsigned before = fake.aheads;

    assert_int_equal(hbm_model_lock(model, group, 1000), 0);
    assert_int_equal(hbm_model_unlock(model, group, NULL, 0), 0);
    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    uint32_t n = fake.aheads == before ? 0 : fake.ahead.n;
    for (uint32_t i = 0; i < n; i++)
        text[i] = (char)('0' + (fake.ahead.slots[i] - SLOT(0)));
    text[n] = 0;
    return text;
}

static void a_lock_asks_for_the_next_groups_that_are_away_once(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, NULL, 0, 3);

    (void)state;
    goes_away(2);
    goes_away(4);
    goes_away(5);
    assert_string_equal(asked_with(session, model, 1), "24");
    assert_string_equal(asked_with(session, model, 1), "");
    assert_string_equal(asked_with(session, model, 2), "5"); /* and that one is here now */
    goes_away(2);
    assert_string_equal(asked_with(session, model, 1), "2"); /* away anew */
    goes_away(0);
    goes_away(1);
    assert_string_equal(asked_with(session, model, 7), "01"); /* after the last comes the first */
    assert_int_equal(hbm_model_lock(model, NULL, 1000), 0);   /* all at once: nothing is next */
    assert_int_equal(fake.aheads, 4);
    assert_int_equal(hbm_model_detach(model), 0);
    hbm_close(session);
}

static void an_order_may_be_another_than_the_published_one(void **state)
{
    static const char *const order[] = {"g6", "g1", "g4"}, *const twice[] = {"g6", "g1", "g6"},
                             *const none[] = {"g1", "no"};
    hbm_session *session = open_with(0);
    hbm_model *model = ordered_model(session, order, 3, 100);

    (void)state;
    for (unsigned i = 0; i < ARENAS; i++)
        goes_away(i);
    assert_string_equal(asked_with(session, model, 0), ""); /* has no turn */
    assert_string_equal(asked_with(session, model, 1), "46");
    assert_int_equal(hbm_model_order(model, twice, 3, 1), HBM_E_INVALID);
    assert_non_null(strstr(hbm_last_error_detail(), "g6"));
    assert_int_equal(hbm_model_order(model, none, 2, 1), HBM_E_NOT_FOUND);
    assert_int_equal(hbm_model_order(model, order, 0, 1), HBM_E_INVALID);
    assert_int_equal(hbm_model_order(model, NULL, 2, 1), HBM_E_INVALID);
    assert_int_equal(hbm_model_order(model, order, 3, 0), 0); /* no more */
    goes_away(1);
    assert_string_equal(asked_with(session, model, 6), "");
    hbm_close(session);
}

static hbm_model *windowed_model(hbm_session *session, unsigned depth, unsigned behind)
{
    hbm_model *model = ordered_model(session, NULL, 0, depth);

    assert_int_equal(hbm_model_window(model, behind, 0), 0);
    memset(fake.behind, 0, sizeof(fake.behind));
    return model;
}

/* The groups that were let go of since, as "23". */
static const char *left(hbm_session *session)
{
    static char text[sizeof(fake.behind)];

    assert_int_equal(ask_device(session), 0); /* what was sent before has been read */
    strcpy(text, fake.behind);
    memset(fake.behind, 0, sizeof(fake.behind));
    return text;
}

static const char *left_with(hbm_session *session, hbm_model *model, unsigned arena)
{
    char group[] = {'g', (char)('0' + arena), 0};

    assert_int_equal(hbm_model_lock(model, group, 1000), 0);
    assert_int_equal(hbm_model_unlock(model, group, NULL, 0), 0);
    return left(session);
}

static bool is_wanted(unsigned arena)
{
    return fake.words[SLOT(arena)] & LOCKWORD_WANTED;
}

static void what_leaves_the_window_is_said_once(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 2, 1);

    (void)state;
    assert_string_equal(left_with(session, model, 3), "0167"); /* 2 to 5 stay */
    assert_true(is_wanted(2) && is_wanted(5) && !is_wanted(1) && !is_wanted(6));
    assert_string_equal(left_with(session, model, 3), "");
    assert_string_equal(left_with(session, model, 4), "2");
    goes_away(2);
    assert_string_equal(left_with(session, model, 5), "3");
    assert_string_equal(left_with(session, model, 7), "45"); /* 6 to 1: after the last comes the first */
    assert_true(is_wanted(6) && is_wanted(7) && is_wanted(0) && is_wanted(1) && !is_wanted(2));
    assert_string_equal(left_with(session, model, 2), "067"); /* and on: 1 to 4 */
    assert_int_equal(hbm_model_lock(model, NULL, 1000), 0);   /* all at once: it moves nowhere */
    assert_string_equal(left(session), "");
    assert_int_equal(hbm_model_detach(model), 0);
    for (unsigned i = 0; i < ARENAS; i++)
        assert_false(is_wanted(i));
    hbm_close(session);
}

static void what_is_locked_leaves_when_it_is_unlocked(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 0);

    (void)state;
    assert_int_equal(hbm_model_lock(model, "g0", 1000), 0);
    assert_string_equal(left(session), "234567");
    assert_int_equal(hbm_model_lock(model, "g1", 1000), 0);
    assert_string_equal(left(session), "");
    assert_int_equal(hbm_model_unlock(model, "g0", NULL, 0), 0);
    assert_string_equal(left(session), "0");
    assert_int_equal(hbm_model_unlock(model, "g1", NULL, 0), 0);
    assert_string_equal(left(session), "");
    hbm_close(session);
}

static void what_came_for_a_window_that_jumped_leaves_again(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 0);

    (void)state;
    goes_away(1);
    assert_string_equal(left_with(session, model, 0), "234567");
    assert_int_equal(fake.ahead.n, 1); /* 1 was asked for, and is never locked */
    assert_string_equal(left_with(session, model, 5), "01");
    assert_string_equal(left_with(session, model, 0), "56");
    assert_int_equal(fake.aheads, 2); /* it was asked for again */
    hbm_close(session);
}

static void a_ring_of_batches_has_one_arriving_and_one_leaving(void **state)
{
    static const char *const seen[] = {"23456", "7", "0", "1", "2", "3", "4", "5", "6", "7", "0"};
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 1, 1);

    (void)state;
    for (unsigned i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
        assert_string_equal(left_with(session, model, i % ARENAS), seen[i]);
    hbm_close(session);
}

static void a_window_is_off_until_it_is_asked_for_and_the_daemon_may_refuse_it(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model;

    (void)state;
    assert_int_equal(hbm_model_attach(session, "model", HBM_RO, 0, 1000, &model), 0);
    assert_int_equal(hbm_model_unlock(model, NULL, NULL, 0), 0);
    assert_int_equal(hbm_model_window(model, 1, 0), HBM_E_INVALID); /* of no order */
    assert_int_equal(hbm_model_order(model, NULL, 0, 1), 0);
    assert_int_equal(ask_device(session), 0);
    assert_string_equal(fake.order, "01234567");
    assert_int_equal(hbm_model_window(model, 1, HBM_WAIT), HBM_E_INVALID);
    memset(fake.behind, 0, sizeof(fake.behind));
    assert_string_equal(left_with(session, model, 3), "");
    fake.refuse_window = HBM_E_OFFLOAD_LIMIT;
    assert_int_equal(hbm_model_window(model, 1, 0), HBM_E_OFFLOAD_LIMIT);
    fake.refuse_window = 0;
    assert_string_equal(left_with(session, model, 4), "");
    assert_int_equal(hbm_model_window(model, 1, 0), 0);
    assert_string_equal(left_with(session, model, 4), "01267");
    assert_int_equal(hbm_model_window(model, HBM_FOREVER, 0), 0);
    assert_false(is_wanted(4));
    assert_string_equal(left_with(session, model, 0), "");
    assert_int_equal(hbm_model_window(model, 6, 0), 0); /* all of it */
    assert_string_equal(left_with(session, model, 0), "");
    assert_int_equal(hbm_model_window(NULL, 6, 0), HBM_E_INVALID);
    hbm_close(session);
}

static void a_window_costs_no_system_call_while_all_is_inside(void **state)
{
    hbm_session *session = open_with(0);
    hbm_model *model = windowed_model(session, 3, 4);

    (void)state;
    enters_no_system_call(go_round_under_seccomp, model);
    assert_string_equal(left(session), "");
    hbm_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_order_costs_no_system_call_while_all_is_resident),
        TEST(a_lock_asks_for_the_next_groups_that_are_away_once),
        TEST(an_order_may_be_another_than_the_published_one),
        TEST(what_leaves_the_window_is_said_once),
        TEST(what_is_locked_leaves_when_it_is_unlocked),
        TEST(what_came_for_a_window_that_jumped_leaves_again),
        TEST(a_ring_of_batches_has_one_arriving_and_one_leaving),
        TEST(a_window_is_off_until_it_is_asked_for_and_the_daemon_may_refuse_it),
        TEST(a_window_costs_no_system_call_while_all_is_inside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
