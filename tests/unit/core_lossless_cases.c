/* Memory parked by a codec whose size varies: measured first, then given room, then encoded. */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/ledger.h"
#include "daemon/core/packing.h"

#define WINDOW ((uint64_t)16 << 20)

static const struct parking lossless = {.encoding = {.codec = HBM_CODEC_BF16_LOSSLESS}};

/* The same bytes, of twice as many halves. */
static void as_halves(struct buffer *buffer)
{
    buffer->dtype = HBM_BF16;
    buffer->dims[buffer->rank - 1] *= 2;
    ledger_put_buffer(w.core, buffer);
}

static struct model *make_halves(const char *name, unsigned groups)
{
    struct model *model = make_model(&w, name, groups);

    list_for_each (node, &model->buffers)
        as_halves(list_entry(node, struct buffer, model_node));
    return model;
}

static struct ask *start_sleep(enum hbm_tier tier)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_sleep(w.core, &question->call, "m", tier, &lossless);
    return question;
}

static struct op *put_to_sleep(enum hbm_tier tier)
{
    return op_of(&w, start_sleep(tier));
}

static struct op *wake(void)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_wake(w.core, &question->call, "m");
    return op_of(&w, question);
}

static bool model_is_filled(const struct model *model)
{
    unsigned seed = 0;
    bool all = true;

    list_for_each (node, &model->buffers)
        all = is_filled(list_entry(node, struct buffer, model_node), ++seed) && all;
    return all;
}

static void it_is_measured_encoded_and_comes_back(void **state)
{
    static const enum hbm_tier tiers[] = {HBM_TIER_HOST, HBM_TIER_DISK};
    (void)state;
    struct model *model = make_halves("m", 3);

    for (unsigned i = 0; i < 2; i++) {
        struct op *op = put_to_sleep(tiers[i]);
        assert_int_equal(op->state, WIRE_OP_DONE);
        assert_int_equal(op->bytes_done, op->bytes_total);
        assert_int_equal(w.ran[JOB_MEASURE], 3 * (i + 1));
        const struct packed *packed = buffer_packed(named(&w, "m/layer.1.w"));
        assert_non_null(packed);
        assert_int_equal(packed->bytes, 64 + 64 * 256 * 4);
        assert_int_equal(buffer_stored_size(named(&w, "m/layer.1.w")), packed->bytes);
        assert_null(buffer_packed(named(&w, "m/layer.1.b"))); /* too short to be worth it */
        world_check_books(&w);
        assert_int_equal(wake()->state, WIRE_OP_DONE);
        assert_true(model_is_filled(model));
        world_check_books(&w);
    }
}

static void binary32_stays_as_it_is(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 1);

    assert_int_equal(put_to_sleep(HBM_TIER_HOST)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_MEASURE] + w.ran[JOB_PACK], 0);
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
    struct ask *question = ask(&w, alice, NULL);
    struct compress_args args = {.sel = "m/layer.0.w", .encoding = lossless.encoding, .mode = WIRE_MODE_PARK};
    verb_compress(w.core, &question->call, &args);
    assert_int_equal(error_of(&w, question), HBM_E_UNSUPPORTED);
}

static void it_is_for_parking_and_neither_in_place_nor_a_copy(void **state)
{
    static const unsigned modes[] = {WIRE_MODE_REPLACE, WIRE_MODE_COPY};
    (void)state;

    make_halves("m", 1);
    for (unsigned i = 0; i < 2; i++) {
        struct ask *question = ask(&w, alice, NULL);
        struct compress_args args = {.sel = "m/layer.0.w", .encoding = lossless.encoding, .mode = modes[i]};
        verb_compress(w.core, &question->call, &args);
        assert_int_equal(error_of(&w, question), HBM_E_INVALID);
        assert_non_null(strstr(last_detail, "mode park"));
    }
}

static void a_restart_finds_it_and_knows_where_it_ends(void **state)
{
    (void)state;
    make_halves("m", 2);
    assert_int_equal(put_to_sleep(HBM_TIER_DISK)->state, WIRE_OP_DONE);
    assert_int_equal(world_restart(&w), 0);
    struct model *model = named(&w, "m/layer.0.w")->model;
    assert_non_null(buffer_packed(named(&w, "m/layer.0.w")));
    assert_int_equal(wake()->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
    world_check_books(&w);
}

static void whoever_has_it_lets_go_before_it_is_measured(void **state)
{
    (void)state;
    make_halves("m", 1);
    struct session *session = client(&w, alice);
    attach(&w, session, "m/layer.0.w", HBM_RW);
    struct ask *question = start_sleep(HBM_TIER_HOST);
    world_run(&w);
    assert_int_equal(w.ran[JOB_MEASURE], 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_MEASURE], 1);
    session_gone(session, true, "bye");
    world_check_books(&w);
}

static void a_failure_at_any_job_leaves_everything_as_it_was(void **state)
{
    static const unsigned jobs[] = {JOB_MEASURE, JOB_CREATE, JOB_PACK};
    (void)state;
    struct model *model = make_halves("m", 2);
    char *before = world_picture(&w);

    for (unsigned n = 1; n <= 2; n++)
        for (unsigned i = 0; i < 3; i++) {
            world_fail(&w, jobs[i], n, HBM_E_WORKER_DIED);
            assert_int_equal(put_to_sleep(HBM_TIER_HOST)->error, HBM_E_WORKER_DIED);
            char *after = world_picture(&w);
            assert_string_equal(before, after);
            free(after);
            world_check_books(&w);
        }
    free(before);
    assert_true(model_is_filled(model));
}

static void a_cancel_between_any_two_jobs_is_all_or_nothing(void **state)
{
    (void)state;
    struct model *model = make_halves("m", 2);

    for (unsigned steps = 0; steps < 10; steps++) {
        char *before = world_picture(&w);
        w.hold = true;
        struct ask *question = start_sleep(HBM_TIER_HOST);
        for (unsigned i = 0; i < steps; i++)
            world_step(&w);
        op_cancel(op_get(w.core, question->id), "enough");
        w.hold = false;
        struct op *op = op_of(&w, question);
        char *after = world_picture(&w);
        if (op->error)
            assert_string_equal(before, after);
        free(before);
        free(after);
        assert_int_equal(wake()->state, WIRE_OP_DONE);
        assert_true(model_is_filled(model));
        world_check_books(&w);
    }
}

static void what_is_freed_while_it_is_measured_takes_nothing_along(void **state)
{
    (void)state;
    make_halves("m", 2);
    w.hold = true;
    struct ask *sleep = start_sleep(HBM_TIER_HOST), *rm = ask(&w, alice, NULL);
    verb_rm(w.core, &rm->call, "m");
    w.hold = false;
    world_run(&w);
    assert_int_equal(rm->answers, 1);
    free(rm);
    assert_true(op_has_ended(op_of(&w, sleep)));
    world_check_books(&w);
}

/* ---- The cut ---- */

struct measures {
    struct job_measured of;
    uint32_t grains[4000];
};

/* Of a buffer of which each grain takes from `least` to `least + spread` bytes. */
static void check_cut(uint64_t elements, uint32_t least, uint32_t spread)
{
    struct buffer *buffer = make_kept(&w, "w", 1, 2 * JOB_GRAIN);
    struct measures *measures = calloc(1, sizeof(*measures));
    uint64_t size = buffer->arena->extent->size, dims = buffer->dims[1];
    uint64_t n_grains = (elements + JOB_GRAIN - 1) / JOB_GRAIN, all = 0, at = 0, covered = 0, pieces = 0;

    buffer->dtype = HBM_F16;
    buffer->dims[1] = elements;
    buffer->arena->extent->size = elements * 2;
    measures->of = (struct job_measured){.head = 320, .n_grains = n_grains};
    for (uint64_t g = 0; g < n_grains; g++)
        all += measures->grains[g] = least + (uint32_t)(g * 7919 % (spread + 1));
    struct packing *packing = packing_new(buffer->arena, &lossless);
    assert_true(packing && packing->unmeasured && packing->n_pieces == 1);
    assert_int_equal(packing->pieces[0].dims[2], elements);
    assert_int_equal(packing_lay_out(packing, buffer->arena, measures, sizeof(measures->of) + 4 * n_grains), 0);
    assert_false(packing->unmeasured);
    assert_true(packing_is_sound(packing, packing->bytes));
    for (uint32_t i = 0; i < packing->n_pieces; i++, pieces++) {
        const struct job_piece *piece = &packing->pieces[i];
        assert_int_equal(piece->raw_offset, buffer->offset + covered * 2);
        assert_true(i + 1 == packing->n_pieces || piece->dims[2] % JOB_GRAIN == 0);
        assert_true(piece->data_offset >= at && piece->data_offset % HBM_ALIGN == 0);
        assert_int_equal(piece->data_offset / WINDOW, (piece->scale_offset - 1) / WINDOW);
        at = piece->scale_offset;
        covered += piece->dims[2];
    }
    assert_int_equal(covered, elements);
    assert_int_equal(at, packing->bytes);
    assert_int_equal(packing->packed[0].bytes, all + pieces * 320);
    assert_true(packing->bytes <= all + pieces * (320 + HBM_ALIGN + least + spread)); /* a grain a window is lost at most */
    packing_unref(packing);
    buffer->dims[1] = dims;
    buffer->arena->extent->size = size;
    buffer->dtype = HBM_F32;
    free(measures);
    buffer_free(buffer);
}

static void pieces_are_cut_between_grains_and_fill_the_windows(void **state)
{
    (void)state;
    check_cut(1024, 1400, 0);
    check_cut(JOB_GRAIN, 88000, 0);
    check_cut(JOB_GRAIN + 1, 88000, 0);
    check_cut(1000 * JOB_GRAIN, 88000, 3000);
    check_cut(2999ull * JOB_GRAIN + 17, 70000, 62000);
}

static void measures_of_another_shape_are_refused(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 4 * JOB_GRAIN / 64);
    struct measures measures = {.of = {.head = 64, .n_grains = 8}};
    size_t size = sizeof(measures.of) + 8 * 4;

    as_halves(buffer);
    for (unsigned i = 0; i < 6; i++) {
        struct measures wrong = measures;
        struct packing *packing = packing_new(buffer->arena, &lossless);
        if (i == 0)
            wrong.of.n_grains = 7;
        if (i == 1)
            wrong.of.n_grains = UINT64_MAX;
        if (i == 2)
            wrong.of.head = UINT64_MAX - 3;
        if (i == 3)
            wrong.grains[5] = UINT32_MAX;
        int error = packing_lay_out(packing, buffer->arena, &wrong, i == 4 ? sizeof(measures.of) - 1 : size);
        assert_int_equal(error, i == 5 ? 0 : HBM_E_INTERNAL);
        packing_unref(packing);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_lossless_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(it_is_measured_encoded_and_comes_back),
        CASE(binary32_stays_as_it_is),
        CASE(it_is_for_parking_and_neither_in_place_nor_a_copy),
        CASE(a_restart_finds_it_and_knows_where_it_ends),
        CASE(whoever_has_it_lets_go_before_it_is_measured),
        CASE(a_failure_at_any_job_leaves_everything_as_it_was),
        CASE(a_cancel_between_any_two_jobs_is_all_or_nothing),
        CASE(what_is_freed_while_it_is_measured_takes_nothing_along),
        CASE(pieces_are_cut_between_grains_and_fill_the_windows),
        CASE(measures_of_another_shape_are_refused),
    };

    return cmocka_run_group_tests_name("parked without loss", tests, NULL, NULL);
}
