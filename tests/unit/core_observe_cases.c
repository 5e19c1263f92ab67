/* What is observed of buffers, and ranges that come of it. */
#include "core_cases.h"
#include "core_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/calibration.h"
#include "daemon/core/observation.h"

static int observe_as(struct principal who, const char *sel, double momentum)
{
    struct ask *question = ask(&w, who, NULL);

    verb_observe(w.core, &question->call, sel, momentum);
    return error_of(&w, question);
}

static struct op *observe(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_observe(w.core, &question->call, sel, 0.75);
    return op_of(&w, question);
}

static int forget(struct principal who, const char *sel)
{
    struct ask *question = ask(&w, who, NULL);

    verb_forget(w.core, &question->call, sel);
    return error_of(&w, question);
}

static int told(struct principal who, const char *name)
{
    struct ask *question = ask(&w, who, NULL);

    verb_observed(w.core, &question->call, 0, name);
    return error_of(&w, question);
}

/* The numbers lo to hi, evenly. */
static void write_batch(const struct buffer *buffer, float lo, float hi)
{
    uint64_t n = buffer->size / sizeof(float);
    float *x = malloc(buffer->size);

    for (uint64_t i = 0; i < n; i++)
        x[i] = lo + (hi - lo) * (float)i / (float)(n - 1);
    assert_int_equal(pwrite(buffer->arena->extent->fd, x, buffer->size, (off_t)buffer->offset), buffer->size);
    free(x);
}

static struct op *compress_by(const char *sel, const char *calibrate, const char *observed)
{
    struct compress_args args = {.encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff},
                                 .mode = WIRE_MODE_COPY};
    struct ask *question = ask(&w, alice, NULL);
    const char *why = NULL;

    if (!calibration_parse(calibrate, &args.encoding, &args.calibration, &why))
        fail_msg("%s: %s", calibrate, why);
    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    snprintf(args.observed, sizeof(args.observed), "%s", observed ? observed : "");
    verb_compress(w.core, &question->call, &args);
    struct op *op = question->error ? NULL : op_of(&w, question);
    if (!op)
        assert_int_not_equal(error_of(&w, question), 0);
    return op;
}

static void batches_add_up_to_a_range_and_move_an_average(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    write_batch(buffer, -1, 4);
    assert_int_equal(observe("w")->state, WIRE_OP_DONE);
    write_batch(buffer, -3, 2);
    assert_int_equal(observe("w")->state, WIRE_OP_DONE);
    const struct hbm_observation *seen = &buffer->observation->seen;
    assert_true(seen->lo == -3 && seen->hi == 4 && seen->last_lo == -3 && seen->last_hi == 2);
    assert_true(seen->average_lo == -1.5f && seen->average_hi == 3.5f);
    assert_true(seen->batches == 2 && seen->elements == 2 * 64 * 256 && seen->nonfinite == 0 && !seen->imported);
    world_check_books(&w);
}

static void what_is_not_finite_is_counted_and_moves_nothing(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 1, 64);
    const struct hbm_observation *seen;
    write_batch(buffer, NAN, NAN);
    observe("w");
    seen = &buffer->observation->seen;
    assert_true(seen->batches == 1 && seen->nonfinite == 64 && seen->lo == 0 && seen->hi == 0);
    assert_null(compress_by("w", "observed", NULL));
    write_batch(buffer, 5, 6);
    observe("w");
    write_batch(buffer, NAN, NAN);
    observe("w");
    assert_true(seen->lo == 5 && seen->hi == 6 && seen->average_lo == 5 && seen->last_hi == 6 &&
                seen->nonfinite == 128);
}

static void a_range_that_was_observed_is_used_for_that_or_another_buffer(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    make_kept(&w, "x", 64, 256);
    write_batch(buffer, 1, 4);
    observe("w");
    write_batch(buffer, 1, 8);
    observe("w");
    assert_int_equal(compress_by("w", "observed", NULL)->state, WIRE_OP_DONE);
    assert_true(w.calibration.lo == 0 && w.calibration.hi == 8); /* 0 is among what is coded */
    assert_int_equal(compress_by("x", "observed:average", "w")->state, WIRE_OP_DONE);
    assert_true(w.calibration.lo == 0 && w.calibration.hi == 5);
    forget(alice, "w@int8.tensor");
    assert_int_equal(w.calibration.method, HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_AVERAGE);
    struct ask *question = ask(&w, alice, NULL);
    verb_free_sel(w.core, &question->call, "*@*");
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(compress_by("x", "observed:percentile:99", "w")->state, WIRE_OP_DONE);
    assert_int_equal(w.observed, 2 * 64 * 256);
    assert_int_equal(w.calibration.dtype, HBM_F32);
    world_check_books(&w);
}

static void what_was_observed_of_anothers_is_of_use_to_who_may_see_it(void **state)
{
    (void)state;
    const struct compress_args args = {.calibration.method = HBM_CALIBRATE_OBSERVED, .observed = "~1000/w"};
    struct buffer *buffer = make_kept(&w, "w", 64, 256), *own = make_kept(&w, "x", 64, 256);
    struct recode recode = {0};
    const char *why;
    write_batch(buffer, 1, 4);
    observe("w");
    assert_int_equal(calibration_for(own, &bob, &args, &recode, &why), 0);
    assert_true(recode.calibration.hi == 4);
    buffer->arena->mode = 0600;
    assert_int_equal(calibration_for(own, &bob, &args, &recode, &why), HBM_E_NOT_FOUND);
    world_check_books(&w);
}

static void where_nothing_was_observed_there_is_no_range(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    make_kept(&w, "x", 64, 256);
    assert_null(compress_by("w", "observed", NULL));
    assert_non_null(strstr(last_detail, "nothing was observed"));
    assert_null(compress_by("w", "observed", "nobody"));
    write_batch(buffer, 0, 0);
    observe("w");
    assert_null(compress_by("w", "observed:mse", NULL));
    assert_non_null(strstr(last_detail, "nothing but zeros"));
    write_batch(buffer, 0, 1);
    observe("w");
    observation_import(buffer->observation, -1, 2);
    assert_null(compress_by("x", "observed:entropy", "w"));
    assert_non_null(strstr(last_detail, "imported"));
    assert_int_equal(compress_by("x", "observed", "w")->state, WIRE_OP_DONE);
    assert_true(w.calibration.lo == -1 && w.calibration.hi == 2);
    observe("w"); /* takes the import's place */
    assert_true(buffer->observation->seen.lo == 0 && !buffer->observation->seen.imported);
}

static void an_asymmetric_range_keeps_both_ends_and_needs_signs_only_where_there_are_two(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    write_batch(buffer, -1, 4);
    observe("w");
    struct compress_args args = {.encoding = {.codec = HBM_CODEC_INT8_ASYM, .granularity = HBM_PER_TENSOR}};
    const char *ways[] = {"observed", "observed:average", "observed:entropy"}, *signs[] = {"observed:mse", "observed:percentile:99"}, *why;
    struct recode recode = {0};
    for (unsigned i = 0; i < 3; i++) {
        assert_true(calibration_parse(ways[i], &args.encoding, &args.calibration, &why));
        assert_int_equal(calibration_for(buffer, &alice, &args, &recode, &why), 0);
        assert_true(recode.calibration.lo == -1 && recode.calibration.hi == 4);
    }
    for (unsigned i = 0; i < 2; i++) {
        assert_true(calibration_parse(signs[i], &args.encoding, &args.calibration, &why));
        assert_int_equal(calibration_for(buffer, &alice, &args, &recode, &why), HBM_E_INVALID);
        assert_non_null(strstr(why, "signs"));
        buffer->observation->seen.lo = 0.5f;
        assert_int_equal(calibration_for(buffer, &alice, &args, &recode, &why), 0);
        buffer->observation->seen.lo = -1;
    }
    args.encoding.granularity = HBM_PER_CHANNEL;
    assert_false(calibration_parse("mse", &args.encoding, &args.calibration, &why));
}

static void what_is_forgotten_while_it_is_needed_ends_the_compression(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    write_batch(buffer, -1, 1);
    observe("w");
    struct compress_args args = {.sel = "w", .encoding = {.codec = HBM_CODEC_INT8}};
    struct ask *question = ask(&w, alice, NULL);
    const char *why;
    assert_true(calibration_parse("observed:mse", &args.encoding, &args.calibration, &why));
    w.hold = true;
    verb_compress(w.core, &question->call, &args);
    observation_free(buffer->observation);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_STALE);
    assert_int_equal(buffer->encoding.codec, HBM_CODEC_RAW);
    world_check_books(&w);
}

static void what_can_not_be_observed_is_refused_or_skipped_with_the_reason(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    make_kept(&w, "coded", 64, 256);
    make_kept(&w, "away", 64, 256);
    make_kept(&w, "disk", 64, 256);
    make_kept(&w, "parked", 64, 256);
    make_kept(&w, "ints", 64, 256)->dtype = HBM_I32;
    compress(&w, "coded", HBM_CODEC_INT8);
    offload(&w, "disk", HBM_TIER_DISK, true);
    park(&w, "parked", HBM_CODEC_INT8);
    offload(&w, "parked", HBM_TIER_HOST, true);
    assert_int_equal(observe_as(alice, "parked", 0.5), HBM_E_UNSUPPORTED);
    assert_int_equal(observe_as(alice, "coded", 0.5), HBM_E_UNSUPPORTED);
    assert_int_equal(observe_as(alice, "coded.scale", 0.5), HBM_E_UNSUPPORTED);
    assert_int_equal(observe_as(alice, "ints", 0.5), HBM_E_UNSUPPORTED);
    assert_int_equal(observe_as(alice, "disk", 0.5), HBM_E_UNSUPPORTED);
    assert_non_null(strstr(last_detail, "restore it first"));
    assert_int_equal(observe_as(alice, "nothing", 0.5), HBM_E_NOT_FOUND);
    assert_int_equal(observe_as(bob, "~1000/w", 0.5), HBM_E_DENIED);
    assert_int_equal(observe_as(alice, "w", 1), HBM_E_INVALID);
    assert_int_equal(observe_as(alice, "w", NAN), HBM_E_INVALID);
    assert_int_equal(forget(bob, "~1000/w"), HBM_E_DENIED);
    assert_null(named(&w, "w")->observation);
    const struct op *op = observe("*");
    assert_int_equal(op->state, WIRE_OP_DONE);
    for (size_t i = 0; i < op->n_rows; i++)
        assert_int_equal(!op->rows[i].skipped, !strcmp(op->rows[i].name, "w") || !strcmp(op->rows[i].name, "away"));
    assert_non_null(named(&w, "w")->observation);
    assert_int_equal(told(alice, "w"), 0);
    assert_int_equal(told(bob, "~1000/w"), 0);
    named(&w, "w")->arena->mode = 0600;
    assert_int_equal(told(bob, "~1000/w"), HBM_E_NOT_FOUND);
}

static void a_failure_adds_nothing_and_says_how_many_were_added_before(void **state)
{
    (void)state;
    make_kept(&w, "a", 64, 256);
    make_kept(&w, "b", 64, 256);
    world_fail(&w, JOB_OBSERVE, 2, HBM_E_WORKER_DIED);
    const struct op *op = observe("*");
    assert_int_equal(op->error, HBM_E_WORKER_DIED);
    assert_non_null(strstr(op->detail, "b: "));
    assert_non_null(strstr(op->detail, "1 before it"));
    assert_int_equal(named(&w, "a")->observation->seen.batches, 1);
    assert_null(named(&w, "b")->observation);
    world_check_books(&w);
}

static void a_buffer_that_is_freed_meanwhile_is_said(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_observe(w.core, &question->call, "w", 0.5);
    buffer_free(buffer);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_STALE);
    world_check_books(&w);
}

static void a_cancelled_observation_adds_nothing(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    struct ask *question = ask(&w, alice, NULL), *cancelling = ask(&w, alice, NULL);
    w.hold = true;
    verb_observe(w.core, &question->call, "w", 0.5);
    struct op *op = list_entry(w.core->ops.prev, struct op, node);
    verb_op_cancel(w.core, &cancelling->call, op->id);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_CANCELLED);
    error_of(&w, cancelling);
    assert_null(buffer->observation);
    world_check_books(&w);
}

static void an_account_has_no_more_observed_buffers_than_it_may(void **state)
{
    (void)state;
    w.core->limits.account[ACCOUNT_OBSERVATIONS] = 1;
    make_kept(&w, "a", 64, 256);
    make_kept(&w, "b", 64, 256);
    assert_int_equal(observe("a")->state, WIRE_OP_DONE);
    assert_int_equal(observe("b")->error, HBM_E_LIMIT);
    assert_int_equal(observe("a")->state, WIRE_OP_DONE);
    buffer_free(named(&w, "a"));
    assert_int_equal(observe("b")->state, WIRE_OP_DONE);
    assert_int_equal(forget(alice, "b"), 0);
    assert_null(named(&w, "b")->observation);
    world_check_books(&w);
}

static int set_ranges(struct principal who, const struct observed_range *ranges, size_t n)
{
    struct ask *question = ask(&w, who, NULL);

    verb_set_ranges(w.core, &question->call, ranges, n);
    return error_of(&w, question);
}

static void ranges_are_imported_all_or_none(void **state)
{
    (void)state;
    struct buffer *a = make_kept(&w, "a", 64, 256), *b = make_kept(&w, "b", 64, 256);
    write_batch(a, -1, 1);
    observe("a");
    make_kept(&w, "ints", 64, 256)->dtype = HBM_I32;
    const struct observed_range good[] = {{a->id, -2, 3}, {b->id, 0, 4}};
    struct observed_range bad[] = {{a->id, -5, 5}, {b->id, -5, 5}, {b->id, 2, 1}};
    char *before = world_picture(&w);
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_INVALID);
    bad[2].lo = NAN;
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_INVALID);
    bad[2] = (struct observed_range){b->id, 0, 0};
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_INVALID);
    bad[2] = (struct observed_range){b->id, 0, INFINITY};
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_INVALID);
    bad[2].buffer = named(&w, "ints")->id;
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_UNSUPPORTED);
    bad[2].buffer = b->id + 4096;
    assert_int_equal(set_ranges(alice, bad, 3), HBM_E_NOT_FOUND);
    assert_int_equal(set_ranges(bob, good, 2), HBM_E_DENIED);
    w.core->limits.account[ACCOUNT_OBSERVATIONS] = 1;
    assert_int_equal(set_ranges(alice, good, 2), HBM_E_LIMIT);
    char *after = world_picture(&w);
    assert_string_equal(after, before);
    world_check_books(&w);
    w.core->limits.account[ACCOUNT_OBSERVATIONS] = 2;
    w.core->limits.account[ACCOUNT_OPS] = 1;
    struct ask *running = ask(&w, alice, NULL);
    verb_observe(w.core, &running->call, "a", 0.75);
    assert_int_equal(set_ranges(alice, good, 2), HBM_E_LIMIT);
    assert_int_equal(error_of(&w, running), 0);
    assert_null(b->observation);
    assert_int_equal(set_ranges(alice, good, 2), 0);
    assert_true(a->observation->seen.imported && a->observation->seen.lo == -2 && a->observation->seen.hi == 3);
    assert_true(!a->observation->seen.batches && b->observation->seen.hi == 4);
    free(before);
    free(after);
    world_check_books(&w);
}

static void what_was_observed_is_there_after_a_restart(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    make_kept(&w, "imported", 64, 256);
    write_batch(buffer, -2, 9);
    observe("w");
    observe("w");
    observe("imported");
    observation_import(named(&w, "imported")->observation, -1, 1);
    make_kept(&w, "gone", 64, 256);
    observe("gone");
    char *before = world_picture(&w);
    for (unsigned lives = 0; lives < 2; lives++) {
        assert_int_equal(world_restart(&w), 0);
        char *after = world_picture(&w);
        assert_string_equal(after, before);
        free(after);
        world_check_books(&w);
    }
    free(before);
    buffer_free(named(&w, "gone"));
    assert_int_equal(forget(alice, "imported"), 0);
    assert_int_equal(world_restart(&w), 0);
    assert_null(named(&w, "imported")->observation);
    assert_int_equal(named(&w, "w")->observation->seen.batches, 2);
    assert_int_equal(observe("w")->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "w")->observation->seen.batches, 3);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_observe_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(batches_add_up_to_a_range_and_move_an_average),
        CASE(what_is_not_finite_is_counted_and_moves_nothing),
        CASE(a_range_that_was_observed_is_used_for_that_or_another_buffer),
        CASE(what_was_observed_of_anothers_is_of_use_to_who_may_see_it),
        CASE(where_nothing_was_observed_there_is_no_range),
        CASE(an_asymmetric_range_keeps_both_ends_and_needs_signs_only_where_there_are_two),
        CASE(what_is_forgotten_while_it_is_needed_ends_the_compression),
        CASE(what_can_not_be_observed_is_refused_or_skipped_with_the_reason),
        CASE(a_failure_adds_nothing_and_says_how_many_were_added_before),
        CASE(a_buffer_that_is_freed_meanwhile_is_said),
        CASE(a_cancelled_observation_adds_nothing),
        CASE(an_account_has_no_more_observed_buffers_than_it_may),
        CASE(ranges_are_imported_all_or_none),
        CASE(what_was_observed_is_there_after_a_restart),
    };

    return cmocka_run_group_tests_name("what is observed", tests, NULL, NULL);
}
