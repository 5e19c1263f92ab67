/* What is advised, and what trying takes and leaves. */
#include "core_cases.h"
#include "core_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Arithmetic ---- */

static unsigned candidate_of(const struct advice *advice, unsigned codec, unsigned granularity)
{
    for (unsigned i = 0; i < advice->n_candidates; i++)
        if (advice->candidates[i].codec == codec && advice->candidates[i].granularity == granularity)
            return i;
    fail_msg("codec %u has no granularity %u", codec, granularity);
    return 0;
}

static void found(struct advice *advice, size_t row, unsigned codec, unsigned granularity, uint64_t bytes, double db)
{
    *advice_tried(advice, row, candidate_of(advice, codec, granularity)) =
        (struct tried){.done = true, .bytes_after = bytes, .sqnr_db = db, .max_abs_error = 0.25};
}

/* Two F32 buffers of 40000 bytes in one group, that keep so much in int8 per channel; the rest as normal numbers do. */
static struct advice *an_advice(double first_db, double second_db)
{
    static const char *const names[] = {"a", "b"};
    struct advice *advice = advice_new(HBM_CODEC_RAW, 2, 1);

    assert_non_null(advice);
    advice->min_sqnr_db = ADVICE_MIN_SQNR_DB;
    advice->groups[0] = (struct advised_group){.n_rows = 2};
    for (size_t row = 0; row < 2; row++) {
        advice->rows[row] = (struct advised){.name = names[row], .bytes_before = 40000};
        found(advice, row, HBM_CODEC_FP16, HBM_PER_TENSOR, 20000, 74);
        found(advice, row, HBM_CODEC_BF16, HBM_PER_TENSOR, 20000, 55);
        found(advice, row, HBM_CODEC_INT8, HBM_PER_TENSOR, 10004, 39);
        found(advice, row, HBM_CODEC_INT8, HBM_PER_CHANNEL, 10100, row ? second_db : first_db);
        found(advice, row, HBM_CODEC_INT4, HBM_PER_GROUP, 5400, 19);
    }
    return advice;
}

static void of_encodings_as_small_the_better_one_is_advised(void **state)
{
    (void)state;
    struct advice *advice = an_advice(42, 41);
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_INT8);
    assert_int_equal(advice->groups[0].take.granularity, HBM_PER_CHANNEL);
    assert_int_equal(advice->groups[0].first.codec, HBM_CODEC_FP16);
    assert_string_equal(advice->groups[0].why, "41.00 dB at worst, in b; int4 per group of 128 has 19.00 dB in a");
    advice_free(advice);
}

static void one_buffer_that_keeps_too_little_decides_for_its_group(void **state)
{
    (void)state;
    struct advice *advice = an_advice(42, 41);
    found(advice, 1, HBM_CODEC_INT8, HBM_PER_CHANNEL, 10100, 14.3);
    found(advice, 1, HBM_CODEC_INT8, HBM_PER_TENSOR, 10004, 12);
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_FP16);
    assert_string_equal(advice->groups[0].why, "74.00 dB at worst, in a; int8 per channel 0 has 14.30 dB in b");
    assert_true(advice_tried(advice, 0, candidate_of(advice, HBM_CODEC_INT8, HBM_PER_CHANNEL))->holds);
    assert_false(advice_tried(advice, 1, candidate_of(advice, HBM_CODEC_INT8, HBM_PER_CHANNEL))->holds);
    advice_free(advice);
}

/* So loud that the signal is theirs. */
static void outliers_that_make_the_rest_0_are_no_less_caught(void **state)
{
    (void)state;
    struct advice *advice = an_advice(42, 60);
    found(advice, 1, HBM_CODEC_INT8, HBM_PER_TENSOR, 10004, 60);
    for (unsigned granularity = HBM_PER_TENSOR; granularity <= HBM_PER_CHANNEL; granularity++)
        advice_tried(advice, 1, candidate_of(advice, HBM_CODEC_INT8, granularity))->zeroed_fraction = 0.98;
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_FP16);
    assert_string_equal(advice->groups[0].why, "74.00 dB at worst, in a; int8 per channel 0 makes 98 % of b 0");
    advice_free(advice);
}

static void what_holds_nowhere_is_left_alone(void **state)
{
    (void)state;
    struct advice *advice = an_advice(42, 41);
    advice->min_sqnr_db = 90;
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_RAW);
    assert_int_equal(advice->groups[0].first.codec, HBM_CODEC_RAW);
    advice->min_sqnr_db = 0;
    advice->max_error = 0.2;
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_RAW);
    advice_free(advice);
}

static void what_is_not_finite_or_not_a_number_holds_in_no_integers(void **state)
{
    (void)state;
    struct advice *advice = an_advice(42, NAN);
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.granularity, HBM_PER_TENSOR);
    advice->rows[0].nonfinite = 1;
    advice_judge(advice, &advice->groups[0]);
    assert_int_equal(advice->groups[0].take.codec, HBM_CODEC_FP16);
    advice_free(advice);
}

/* ---- Trials ---- */

static struct ask *advise(const char *sel, bool apply)
{
    struct advise_args args = {.min_sqnr_db = ADVICE_MIN_SQNR_DB, .apply = apply};
    struct ask *question = ask(&w, alice, NULL);

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    verb_advise(w.core, &question->call, &args);
    return question;
}

static void trying_leaves_everything_as_it_was(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    char *before = world_picture(&w);
    uint64_t used = w.device->used[HBM_TIER_DEVICE];
    struct op *op = op_of(&w, advise("model:m", false));
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 6);
    assert_int_equal(op->bytes_done, op->bytes_total);
    assert_int_equal(op->advice->n_groups, 3);
    assert_int_equal(op->advice->groups[2].take.codec, HBM_CODEC_INT4);
    assert_string_equal(op->advice->groups[2].name, "m/layer.2");
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], used);
    free(before);
    free(after);
    world_check_books(&w);
}

static void a_trial_that_fails_ends_all_and_changes_nothing(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    char *before = world_picture(&w);
    for (unsigned n = 1; n <= 20; n += 6) {
        world_fail(&w, JOB_ENCODE, n, HBM_E_WORKER_DIED);
        assert_int_equal(op_of(&w, advise("model:m", true))->error, HBM_E_WORKER_DIED);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        world_check_books(&w);
    }
    free(before);
}

static void what_is_advised_can_be_applied(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    struct op *op = op_of(&w, advise("model:m", true));
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->rows[0].encoding.codec, HBM_CODEC_INT4);
    assert_int_equal(named(&w, "m/layer.1.w")->encoding.codec, HBM_CODEC_INT4);
    assert_true(named(&w, "m/layer.1.w")->has_receipt);
    world_check_books(&w);
}

static void what_cannot_be_tried_is_refused_alone_and_left_in_a_pattern(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    make_kept(&w, "coded", 64, 256);
    compress(&w, "coded", HBM_CODEC_INT8);
    assert_int_equal(error_of(&w, advise("coded", false)), HBM_E_UNSUPPORTED);
    assert_non_null(strstr(last_detail, "coded: it is compressed already"));
    struct op *op = op_of(&w, advise("*", false));
    assert_int_equal(op->n_rows, 2);
    assert_null(op->advice->rows[0].left);
    assert_string_equal(op->advice->rows[1].left, "it is compressed already: decompress it first");
    offload(&w, "w", HBM_TIER_HOST, true);
    assert_int_equal(error_of(&w, advise("*", false)), HBM_E_UNSUPPORTED);
}

static void without_room_it_is_refused_and_nobody_has_to_go(void **state)
{
    (void)state;
    make_kept(&w, "idle", 1024, 1024);
    make_kept(&w, "w", 1024, 1024);
    uint64_t capacity = w.device->capacity[HBM_TIER_DEVICE];
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE] + MIB;
    struct op *op = op_of(&w, advise("w", false));
    assert_int_equal(op->error, HBM_E_NO_MEMORY);
    assert_int_equal(arena_tier(named(&w, "idle")->arena), HBM_TIER_DEVICE);
    w.device->capacity[HBM_TIER_DEVICE] = capacity;
    world_check_books(&w);
}

static void it_is_cancelled_between_two_trials(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    w.hold = true;
    struct ask *question = advise("w", false);
    world_step(&w);
    world_step(&w);
    struct ask *stop = ask(&w, alice, NULL);
    verb_op_cancel(w.core, &stop->call, question->id);
    w.hold = false;
    assert_int_equal(error_of(&w, stop), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    world_check_books(&w);
}

static void what_is_freed_meanwhile_ends_it(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    w.hold = true;
    struct ask *question = advise("w", false);
    world_step(&w);
    struct ask *gone = ask(&w, alice, NULL);
    verb_free_sel(w.core, &gone->call, "w");
    w.hold = false;
    error_of(&w, gone);
    assert_int_equal(op_of(&w, question)->error, HBM_E_STALE);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_advise_cases(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_encodings_as_small_the_better_one_is_advised),
        cmocka_unit_test(one_buffer_that_keeps_too_little_decides_for_its_group),
        cmocka_unit_test(outliers_that_make_the_rest_0_are_no_less_caught),
        cmocka_unit_test(what_holds_nowhere_is_left_alone),
        cmocka_unit_test(what_is_not_finite_or_not_a_number_holds_in_no_integers),
        CASE(trying_leaves_everything_as_it_was),
        CASE(a_trial_that_fails_ends_all_and_changes_nothing),
        CASE(what_is_advised_can_be_applied),
        CASE(what_cannot_be_tried_is_refused_alone_and_left_in_a_pattern),
        CASE(without_room_it_is_refused_and_nobody_has_to_go),
        CASE(it_is_cancelled_between_two_trials),
        CASE(what_is_freed_meanwhile_ends_it),
    };

    return cmocka_run_group_tests_name("advice", tests, NULL, NULL);
}
