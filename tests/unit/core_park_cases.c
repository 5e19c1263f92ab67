/* Parked memory: encoded off the device, raw to everyone who attaches. */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/core/packing.h"

#define WINDOW ((uint64_t)16 << 20)

static const struct hbm_encoding int8 = {.codec = HBM_CODEC_INT8, .granularity = 0xff, .stored = HBM_I8};

static int park_error(struct principal who, const char *sel, struct compress_args args)
{
    struct ask *question = ask(&w, who, NULL);

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    args.mode = WIRE_MODE_PARK;
    if (!args.encoding.codec)
        args.encoding = int8;
    verb_compress(w.core, &question->call, &args);
    return error_of(&w, question);
}

static struct op *unpark(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_decompress(w.core, &question->call, sel);
    return op_of(&w, question);
}

static struct op *put_to_sleep(const char *model, enum hbm_tier tier, const struct parking *park)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_sleep(w.core, &question->call, model, tier, park);
    return op_of(&w, question);
}

static struct op *wake(const char *model)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_wake(w.core, &question->call, model);
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

static void parked_memory_is_raw_on_the_device_and_encoded_off_it(void **state)
{
    static const enum hbm_tier tiers[] = {HBM_TIER_HOST, HBM_TIER_DISK};
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 4096);
    uint64_t raw = 64 * 4096 * 4, used = w.device->used[HBM_TIER_DEVICE];

    fill(buffer, 9);
    struct op *op = park(&w, "w", HBM_CODEC_INT8);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->rows[0].park.codec, HBM_CODEC_INT8);
    assert_int_equal(op->rows[0].encoding.codec, HBM_CODEC_RAW);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], used);
    assert_int_equal(buffer->version, 1);
    for (unsigned i = 0; i < 2; i++) {
        op = offload(&w, "w", tiers[i], true);
        assert_int_equal(op->state, WIRE_OP_DONE);
        assert_int_equal(op->bytes_done, op->bytes_total);
        assert_int_equal(op->rows[0].size, raw);
        assert_int_equal(op->rows[0].stored, 64 * 4096 + 64 * 4);
        assert_int_equal(op->rows[0].packed.codec, HBM_CODEC_INT8);
        assert_true(buffer->has_receipt && buffer->receipt.sqnr_db == 40 && buffer->quality.sqnr_inlier_db == 41);
        assert_true(w.device->used[tiers[i]] < raw / 3);
        assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
        assert_int_equal(buffer->encoding.codec, HBM_CODEC_RAW);
        assert_int_equal(extent_raw_size(buffer->arena->extent), used);
        world_check_books(&w);
        op = restore(&w, "w");
        assert_int_equal(op->state, WIRE_OP_DONE);
        assert_int_equal(op->bytes_done, op->bytes_total);
        assert_true(is_filled(buffer, 9));
        assert_null(buffer_packed(buffer));
        assert_int_equal(w.device->used[tiers[i]], 0);
        assert_int_equal(w.device->used[HBM_TIER_DEVICE], used);
        assert_int_equal(buffer->version, 1);
        world_check_books(&w);
    }
    assert_int_equal(w.ran[JOB_PACK], 2);
    assert_int_equal(w.ran[JOB_UNPACK], 2);
}

static void what_is_not_parked_goes_along_as_it_is(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 2);

    assert_int_equal(compress(&w, "m/layer.1.b", HBM_CODEC_INT8)->state, WIRE_OP_DONE); /* with its scale */
    assert_int_equal(park(&w, "m/layer.*.w", HBM_CODEC_BF16)->n_rows, 2);
    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    assert_non_null(buffer_packed(named(&w, "m/layer.1.w")));
    assert_null(buffer_packed(named(&w, "m/layer.1.b")));
    assert_int_equal(buffer_stored_size(named(&w, "m/layer.0.w")), 64 * 256 * 2);
    assert_int_equal(buffer_stored_size(named(&w, "m/layer.0.b")), 256 * 4);
    assert_int_equal(restore(&w, "model:m")->state, WIRE_OP_DONE);
    assert_int_equal(unpark("m/layer.1.b")->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
    world_check_books(&w);
}

static void what_cannot_be_encoded_is_not_parked(void **state)
{
    (void)state;
    make_kept(&w, "w", 16, 64);
    make_kept(&w, "coded", 16, 64);
    assert_int_equal(compress(&w, "coded", HBM_CODEC_INT8)->state, WIRE_OP_DONE);
    assert_int_equal(park_error(alice, "coded", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    assert_int_equal(park_error(alice, "coded.scale", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    assert_int_equal(park_error(bob, "~1000/w", (struct compress_args){0}), HBM_E_DENIED);
    assert_int_equal(park_error(alice, "w", (struct compress_args){.as = "name"}), HBM_E_INVALID);
    struct hbm_encoding wrong = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 5};
    assert_int_equal(park_error(alice, "w", (struct compress_args){.encoding = wrong}), HBM_E_INVALID);
    struct op *op = park(&w, "*", HBM_CODEC_INT8);
    assert_int_equal(op->state, WIRE_OP_DONE);
    for (size_t i = 0; i < op->n_rows; i++)
        assert_true(!op->rows[i].skipped == !strcmp(op->rows[i].name, "w"));
    /* And a form of its own takes the policy away. */
    assert_int_equal(compress(&w, "w", HBM_CODEC_BF16)->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "w")->park.encoding.codec, HBM_CODEC_RAW);
    world_check_books(&w);
}

static void a_failure_at_any_job_leaves_everything_as_it_was(void **state)
{
    static const int errors[] = {HBM_E_WORKER_DIED, HBM_E_NO_SPACE, HBM_E_IO};
    (void)state;
    struct model *model = make_model(&w, "m", 3);
    park(&w, "model:m", HBM_CODEC_INT8);
    char *before = world_picture(&w);
    for (unsigned n = 1; n <= 3; n++) {
        world_fail(&w, JOB_PACK, n, errors[n - 1]);
        assert_int_equal(put_to_sleep("m", HBM_TIER_DISK, NULL)->error, errors[n - 1]);
        world_fail(&w, JOB_CREATE, n, errors[n - 1]);
        assert_int_equal(put_to_sleep("m", HBM_TIER_HOST, NULL)->error, errors[n - 1]);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        world_check_books(&w);
    }
    free(before);
    for (unsigned n = 1; n <= 3; n++) { /* what has come by then is back, the rest lies where it was */
        assert_int_equal(put_to_sleep("m", HBM_TIER_HOST, NULL)->state, WIRE_OP_DONE);
        world_fail(&w, JOB_UNPACK, n, HBM_E_WORKER_DIED);
        assert_int_equal(wake("m")->error, HBM_E_WORKER_DIED);
        list_for_each (node, &model->buffers) {
            const struct buffer *buffer = list_entry(node, struct buffer, model_node);
            assert_true(!buffer_packed(buffer) == (arena_tier(buffer->arena) == HBM_TIER_DEVICE));
        }
        world_check_books(&w);
        assert_int_equal(wake("m")->state, WIRE_OP_DONE);
        assert_true(model_is_filled(model));
    }
    assert_int_equal(wake("m")->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
}

static void a_cancel_between_any_two_jobs_is_all_or_nothing(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 3);
    park(&w, "model:m", HBM_CODEC_INT8);
    for (unsigned steps = 0; steps < 12; steps++) {
        struct ask *question = ask(&w, alice, NULL);
        char *before = world_picture(&w);
        w.hold = true;
        verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, NULL);
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
        assert_int_equal(wake("m")->state, WIRE_OP_DONE);
        assert_true(model_is_filled(model));
        world_check_books(&w);
    }
}

static void a_result_outside_the_bounds_is_refused_and_the_model_stays(void **state)
{
    const struct parking strict = {.encoding = int8, .min_sqnr_db = 50}, close = {.encoding = int8, .max_error = 0.1},
                         loose = {.encoding = int8, .min_sqnr_db = 30, .max_error = 1};
    (void)state;
    struct model *model = make_model(&w, "m", 2);
    char *before = world_picture(&w);
    struct op *op = put_to_sleep("m", HBM_TIER_HOST, &strict);
    assert_int_equal(op->error, HBM_E_QUALITY);
    assert_non_null(strstr(op->detail, "m/layer."));
    assert_non_null(strstr(op->detail, "40.00 dB"));
    assert_int_equal(put_to_sleep("m", HBM_TIER_HOST, &close)->error, HBM_E_QUALITY);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(put_to_sleep("m", HBM_TIER_HOST, &loose)->state, WIRE_OP_DONE);
    assert_int_equal(wake("m")->state, WIRE_OP_DONE);
    /* A policy has its bound with it. */
    assert_int_equal(park_error(alice, "m/layer.0.w", (struct compress_args){.min_sqnr_db = 50}), 0);
    assert_int_equal(offload(&w, "m/layer.0.w", HBM_TIER_HOST, true)->error, HBM_E_QUALITY);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(offload(&w, "m/layer.0.w", HBM_TIER_HOST, true)->error, HBM_E_QUALITY);
    assert_true(named(&w, "m/layer.0.w")->park.min_sqnr_db == 50);
    model = named(&w, "m/layer.0.w")->model;
    assert_true(model_is_filled(model));
    world_check_books(&w);
}

static void a_codec_for_one_sleep_is_no_policy(void **state)
{
    const struct parking bf16 = {.encoding = {.codec = HBM_CODEC_BF16}};
    (void)state;
    struct model *model = make_model(&w, "m", 2);
    park(&w, "m/layer.0.w", HBM_CODEC_INT8);
    assert_int_equal(put_to_sleep("m", HBM_TIER_DISK, &bf16)->state, WIRE_OP_DONE);
    list_for_each (node, &model->buffers)
        assert_int_equal(buffer_packed(list_entry(node, struct buffer, model_node))->encoding.codec, HBM_CODEC_BF16);
    assert_int_equal(wake("m")->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
    assert_int_equal(put_to_sleep("m", HBM_TIER_HOST, NULL)->state, WIRE_OP_DONE);
    assert_int_equal(buffer_packed(named(&w, "m/layer.0.w"))->encoding.codec, HBM_CODEC_INT8);
    assert_null(buffer_packed(named(&w, "m/layer.1.w")));
    assert_int_equal(wake("m")->state, WIRE_OP_DONE);
    assert_true(model_is_filled(model));
    world_check_books(&w);
}

static void decompress_takes_the_policy_away_wherever_it_lies(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 16, 64);
    fill(buffer, 3);
    park(&w, "w", HBM_CODEC_INT8);
    assert_int_equal(unpark("w")->state, WIRE_OP_DONE);
    offload(&w, "w", HBM_TIER_HOST, true);
    assert_null(buffer_packed(buffer));
    park(&w, "w", HBM_CODEC_INT8); /* from the next time on */
    assert_null(buffer_packed(buffer));
    restore(&w, "w");
    offload(&w, "w", HBM_TIER_HOST, true);
    assert_non_null(buffer_packed(buffer));
    assert_int_equal(unpark("w")->state, WIRE_OP_DONE);
    assert_non_null(buffer_packed(buffer)); /* until it is back */
    struct ask *again = ask(&w, alice, NULL);
    verb_decompress(w.core, &again->call, "w");
    assert_int_equal(error_of(&w, again), HBM_E_UNSUPPORTED);
    restore(&w, "w");
    assert_true(is_filled(buffer, 3));
    offload(&w, "w", HBM_TIER_HOST, true);
    assert_null(buffer_packed(buffer));
    world_check_books(&w);
}

static void between_host_and_disk_it_goes_as_it_lies(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 1024);
    fill(buffer, 4);
    park(&w, "w", HBM_CODEC_INT8);
    offload(&w, "w", HBM_TIER_HOST, true);
    unsigned packs = w.ran[JOB_PACK], unpacks = w.ran[JOB_UNPACK];
    assert_int_equal(offload(&w, "w", HBM_TIER_DISK, true)->state, WIRE_OP_DONE);
    assert_true(w.device->used[HBM_TIER_DISK] < 64 * 1024 * 2);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_PACK] + w.ran[JOB_UNPACK], packs + unpacks);
    assert_non_null(buffer_packed(buffer));
    restore(&w, "w");
    assert_true(is_filled(buffer, 4));
    world_check_books(&w);
}

static void a_damaged_packed_copy_is_named_and_never_handed_out(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 64);
    park(&w, "w", HBM_CODEC_INT8);
    offload(&w, "w", HBM_TIER_HOST, true);
    char flipped = 77;
    assert_int_equal(pwrite(buffer->arena->extent->fd, &flipped, 1, 100), 1);
    struct op *op = restore(&w, "w");
    assert_int_equal(op->error, HBM_E_CHECKSUM);
    assert_non_null(strstr(op->detail, "w"));
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    world_check_books(&w);
}

static void a_restart_finds_what_is_parked(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    park(&w, "m/*", HBM_CODEC_INT8);
    assert_int_equal(park_error(alice, "m/layer.1.w", (struct compress_args){.encoding = {.codec = HBM_CODEC_BF16},
                                                                             .max_error = 3}), 0);
    offload(&w, "m/layer.0.w", HBM_TIER_DISK, true);
    offload(&w, "m/layer.1.w", HBM_TIER_HOST, true);
    char *before = world_picture(&w);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_restart(&w), 0);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        world_check_books(&w);
    }
    free(before);
    assert_int_equal(restore(&w, "m/*")->state, WIRE_OP_DONE);
    assert_true(model_is_filled(named(&w, "m/layer.0.w")->model));
    world_check_books(&w);
}

static void everyone_sees_it_raw(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 16, 64);
    float want[16 * 64], got[16 * 64];
    int file = memfd_create("file", MFD_CLOEXEC);
    fill(buffer, 5);
    buffer_bytes(buffer, want);
    struct ask *question = ask(&w, alice, NULL);
    verb_hash(w.core, &question->call, "w");
    uint64_t hash = op_of(&w, question)->rows[0].hash;
    park(&w, "w", HBM_CODEC_INT8);
    offload(&w, "w", HBM_TIER_DISK, true);
    question = ask(&w, alice, NULL);
    verb_hash(w.core, &question->call, "w");
    assert_int_equal(op_of(&w, question)->rows[0].hash, hash);
    struct wire_range range = {.buffer = buffer->id, .bytes = sizeof(want)};
    question = ask(&w, alice, NULL);
    verb_transfer(w.core, &question->call, file, mapped_ranges(&range, 1), 1, true);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(pread(file, got, sizeof(got), 0), sizeof(got));
    assert_memory_equal(got, want, sizeof(want));
    close(file);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DISK); /* none of that has moved it */
    struct session *stranger = client(&w, bob);
    struct lease *copy = attach(&w, stranger, "~1000/w", HBM_RO);
    assert_true(is_filled(copy->buffer, 5));
    detach(&w, copy);
    struct lease *lease = attach(&w, client(&w, alice), "w", HBM_RO);
    assert_true(is_filled(buffer, 5));
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    detach(&w, lease);
    world_check_books(&w);
}

static void a_lock_brings_it_back_decoded_under_the_same_mapping(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 16, 64);
    fill(buffer, 6);
    park(&w, "w", HBM_CODEC_BF16);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, true);
    world_run(&w);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_non_null(buffer_packed(buffer));
    question = ask(&w, alice, session);
    verb_lock(w.core, &question->call, &lease->mappings[0]->slot, 1, 1000);
    assert_int_equal(error_of(&w, question), 0);
    assert_ptr_equal(lease->mappings[0]->extent, buffer->arena->extent);
    assert_true(is_filled(buffer, 6));
    world_check_books(&w);
}

static void what_is_freed_while_it_is_parked_leaves_the_others(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 1);
    park(&w, "m/*", HBM_CODEC_INT8);
    offload(&w, "model:m", HBM_TIER_HOST, true);
    assert_int_equal(world_restart(&w), 0);
    model = named(&w, "m/layer.0.w")->model;
    assert_int_equal(wake("m")->state, WIRE_OP_DONE);
    offload(&w, "model:m", HBM_TIER_HOST, true);
    struct ask *question = ask(&w, alice, NULL);
    verb_rm(w.core, &question->call, "m");
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    (void)model;
    world_check_books(&w);
}

/* ---- The cut ---- */

struct cut {
    uint32_t dtype, rank;
    uint64_t dims[3];
    struct hbm_encoding encoding;
};

/* The pieces of a buffer between two raw ones: they cover it, in order, and no one crosses a window that need not. */
static void check_cut(const struct cut *cut)
{
    struct extent extent = {.tier = HBM_TIER_DEVICE};
    struct arena arena = {.extent = &extent};
    struct buffer before = {.id = 3, .arena = &arena, .dtype = HBM_U8, .rank = 1, .dims = {100}, .size = 100};
    struct buffer middle = {.id = 1, .arena = &arena, .dtype = cut->dtype, .rank = cut->rank, .offset = 256};
    struct buffer after = {.id = 2, .arena = &arena, .dtype = HBM_U8, .rank = 1, .dims = {20 << 20}, .size = 20 << 20};
    uint64_t raw_at = 0, end = 0, elements = 0, units = 0, scales = 0, stored = 0;

    memcpy(middle.dims, cut->dims, sizeof(cut->dims));
    middle.size = buffer_raw_size(&middle);
    middle.park.encoding = cut->encoding;
    middle.park.encoding.stored = (uint8_t)hbm_codec_stored_dtype(cut->encoding.codec);
    after.offset = (middle.offset + middle.size + 255) / 256 * 256;
    extent.size = after.offset + after.size;
    list_init(&arena.buffers);
    list_append(&arena.buffers, &before.arena_node);
    list_append(&arena.buffers, &middle.arena_node);
    list_append(&arena.buffers, &after.arena_node);
    struct packing *packing = packing_new(&arena, NULL);
    assert_non_null(packing);
    assert_int_equal(packing->n_packed, 1);
    assert_int_equal(packing->raw_size, extent.size);
    assert_true(packing_is_sound(packing, packing->bytes));
    for (uint32_t i = 0; i < packing->n_pieces; i++) {
        const struct job_piece *piece = &packing->pieces[i];
        uint64_t n = piece->dims[0] * piece->dims[1] * piece->dims[2], scale = 0;
        bool encoded = piece->encoding.codec != HBM_CODEC_RAW;
        uint64_t raw = encoded ? n * hbm_dtype_bits(cut->dtype) / 8 : n;
        uint64_t data = encoded ? (n * hbm_dtype_bits(piece->encoding.stored) + 7) / 8 : n;

        assert_true(piece->raw_offset >= raw_at && piece->raw_offset - raw_at < 256);
        assert_true(piece->data_offset >= end);
        raw_at = piece->raw_offset + raw;
        uint64_t begin = piece->data_offset;
        end = begin + data;
        if (encoded) {
            assert_int_equal(begin % HBM_ALIGN, 0);
            elements += n;
            assert_true(hbm_encoding_units(&piece->encoding, piece->dims, 3, &units));
            scale = hbm_codec_scale_bytes(piece->encoding.codec) ? units : 0;
        }
        if (scale) {
            assert_true(piece->scale_offset >= end && piece->scale_offset % HBM_ALIGN == 0);
            uint64_t zero;
            assert_true(job_units_layout(piece->encoding.codec, scale, &zero, &end));
            end += piece->scale_offset;
            scales += scale;
        }
        stored += encoded ? data : 0;
        assert_true(begin / WINDOW == (end - 1) / WINDOW || begin % WINDOW == 0);
    }
    uint64_t wanted = 0;
    hbm_shape_elements(middle.dims, middle.rank, &wanted);
    assert_int_equal(elements, wanted);
    assert_int_equal(raw_at, extent.size);
    assert_int_equal(packing->bytes, end);
    if (hbm_codec_scale_bytes(cut->encoding.codec)) {
        struct hbm_encoding whole = cut->encoding;
        assert_true(hbm_encoding_units(&whole, middle.dims, middle.rank, &units));
        assert_int_equal(scales, units);
    }
    uint64_t a_unit = hbm_codec_scale_bytes(cut->encoding.codec) + hbm_codec_zero_bytes(cut->encoding.codec);
    assert_int_equal(packing->packed[0].bytes, stored + scales * a_unit);
    packing_unref(packing);
}

static void pieces_cover_a_buffer_of_any_shape_and_cross_no_window_that_they_need_not(void **state)
{
    enum { CHANNEL = HBM_PER_CHANNEL, GROUP = HBM_PER_GROUP, INT8 = HBM_CODEC_INT8, ASYM = HBM_CODEC_INT8_ASYM };
    static const struct cut cuts[] = {
        {HBM_F32, 1, {1}, {HBM_CODEC_FP16, 0, 0, 0, 0}},
        {HBM_F32, 0, {0}, {HBM_CODEC_BF16, 0, 0, 0, 0}},
        {HBM_F32, 1, {50000001}, {HBM_CODEC_FP16, 0, 0, 0, 0}},
        {HBM_BF16, 2, {7001, 4099}, {HBM_CODEC_FP16, 0, 0, 0, 0}},
        {HBM_F32, 2, {7001, 4099}, {INT8, CHANNEL, 0, 0, 0}},
        {HBM_BF16, 2, {7001, 4096}, {INT8, CHANNEL, 0, 0, 0}},
        {HBM_F16, 2, {3, 20000003}, {INT8, CHANNEL, 0, 0, 0}},
        {HBM_F32, 3, {5, 6, 700001}, {INT8, CHANNEL, 1, 0, 0}},
        {HBM_F32, 3, {1, 4000, 6000}, {INT8, CHANNEL, 1, 0, 0}},
        {HBM_F32, 2, {50000, 900}, {INT8, CHANNEL, 1, 0, 0}},
        {HBM_F32, 1, {40000001}, {INT8, CHANNEL, 0, 0, 0}},
        {HBM_F32, 2, {4000, 6000}, {INT8, HBM_PER_TENSOR, 0, 0, 0}},
        {HBM_F32, 2, {7001, 4099}, {INT8, GROUP, 0, 0, 128}},
        {HBM_BF16, 2, {7001, 4096}, {INT8, GROUP, 0, 0, 128}},
        {HBM_F32, 1, {50000000}, {INT8, GROUP, 0, 0, 1}},
        {HBM_F32, 1, {50000001}, {INT8, GROUP, 0, 0, 127}},
        {HBM_F32, 2, {3, 30000001}, {INT8, GROUP, 0, 0, 64}},
        {HBM_F32, 1, {7}, {HBM_CODEC_INT4, GROUP, 0, 0, 7}},
        {HBM_BF16, 2, {7001, 4099}, {HBM_CODEC_INT4, GROUP, 0, 0, 128}},
        {HBM_F32, 1, {70000007}, {HBM_CODEC_INT4, GROUP, 0, 0, 7}},
        {HBM_F32, 2, {5, 40000001}, {HBM_CODEC_INT4, GROUP, 0, 0, 64}},
        {HBM_F32, 2, {4000, 6000}, {HBM_CODEC_FP16_SCALED, HBM_PER_TENSOR, 0, 0, 0}},
        {HBM_F32, 2, {9, 5}, {INT8, GROUP, 0, 0, 4000000000u}},
        {HBM_F32, 2, {7001, 4099}, {ASYM, CHANNEL, 0, 0, 0}},
        {HBM_F32, 3, {5, 6, 700001}, {ASYM, CHANNEL, 1, 0, 0}},
        {HBM_F32, 2, {4000, 6000}, {ASYM, HBM_PER_TENSOR, 0, 0, 0}},
        {HBM_BF16, 2, {7001, 4096}, {ASYM, GROUP, 0, 0, 128}},
        {HBM_F32, 1, {50000000}, {ASYM, GROUP, 0, 0, 1}},
        {HBM_F32, 1, {50000001}, {ASYM, GROUP, 0, 0, 127}},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++)
        check_cut(&cuts[i]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_park_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(parked_memory_is_raw_on_the_device_and_encoded_off_it),
        CASE(what_is_not_parked_goes_along_as_it_is),
        CASE(what_cannot_be_encoded_is_not_parked),
        CASE(a_failure_at_any_job_leaves_everything_as_it_was),
        CASE(a_cancel_between_any_two_jobs_is_all_or_nothing),
        CASE(a_result_outside_the_bounds_is_refused_and_the_model_stays),
        CASE(a_codec_for_one_sleep_is_no_policy),
        CASE(decompress_takes_the_policy_away_wherever_it_lies),
        CASE(between_host_and_disk_it_goes_as_it_lies),
        CASE(a_damaged_packed_copy_is_named_and_never_handed_out),
        CASE(a_restart_finds_what_is_parked),
        CASE(everyone_sees_it_raw),
        CASE(a_lock_brings_it_back_decoded_under_the_same_mapping),
        CASE(what_is_freed_while_it_is_parked_leaves_the_others),
        CASE(pieces_cover_a_buffer_of_any_shape_and_cross_no_window_that_they_need_not),
    };

    return cmocka_run_group_tests_name("parked memory", tests, NULL, NULL);
}
