#include "core_cases.h"
#include "core_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct op *decompress(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_decompress(w.core, &question->call, sel);
    return op_of(&w, question);
}

static int compress_error(struct principal who, const char *sel, struct compress_args args)
{
    struct ask *question = ask(&w, who, NULL);

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    if (!args.encoding.codec)
        args.encoding = (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = 0xff};
    verb_compress(w.core, &question->call, &args);
    return error_of(&w, question);
}

static struct op *copy_of(const char *sel, const char *as, struct hbm_encoding encoding)
{
    struct compress_args args = {.mode = WIRE_MODE_COPY, .encoding = encoding};
    struct ask *question = ask(&w, alice, NULL);

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    snprintf(args.as, sizeof(args.as), "%s", as);
    verb_compress(w.core, &question->call, &args);
    return op_of(&w, question);
}

static void compress_takes_a_quarter_and_decompress_gives_it_back(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 4096);
    fill(buffer, 9);
    uint64_t used = w.device->used[HBM_TIER_DEVICE], id = buffer->id;
    struct op *op = compress(&w, "w", HBM_CODEC_INT8);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_true(op->rows[0].has_receipt);
    assert_int_equal(op->rows[0].receipt.bytes_before, 64 * 4096 * 4);
    assert_int_equal(op->rows[0].receipt.bytes_after, 64 * 4096 + 64 * 4);
    assert_int_equal(op->rows[0].bytes_before, 64 * 4096 * 4);
    assert_int_equal(op->rows[0].bytes_after, 64 * 4096 + 64 * 4);
    assert_int_equal(buffer->id, id);
    assert_int_equal(buffer->version, 2);
    assert_int_equal(buffer->encoding.granularity, HBM_PER_CHANNEL);
    assert_int_equal(buffer->size, 64 * 4096);
    struct buffer *scale = named(&w, "w.scale");
    assert_ptr_equal(scale, buffer->parts[PART_SCALE]);
    assert_int_equal(scale->dtype, HBM_F32);
    assert_int_equal(scale->dims[0], 64);
    assert_int_equal(scale->offset % HBM_ALIGN, 0);
    assert_true(w.device->used[HBM_TIER_DEVICE] < used / 3);
    world_check_books(&w);
    assert_int_equal(decompress("w")->state, WIRE_OP_DONE);
    assert_int_equal(buffer->version, 3);
    assert_int_equal(buffer->encoding.codec, HBM_CODEC_RAW);
    assert_null(buffer->parts[PART_SCALE]);
    assert_null(names_find(&w.core->buffer_names, alice.owner, "w.scale"));
    assert_true(is_filled(buffer, 9));
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], used);
    world_check_books(&w);
}

static void what_was_not_named_is_copied_along(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 2);
    uint64_t hash = model->layout_hash;
    assert_int_equal(compress(&w, "m/layer.0.w", HBM_CODEC_INT8)->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "m/layer.0.b"), 2));
    assert_int_equal(named(&w, "m/layer.0.b")->version, 1);
    assert_int_equal(named(&w, "m/layer.0.w")->version, 2);
    assert_int_equal(model->layout_hash, hash);
    /* And what was encoded before, with its scales. */
    assert_int_equal(compress(&w, "m/layer.0.b", HBM_CODEC_INT8)->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "m/layer.0.b")->encoding.granularity, HBM_PER_TENSOR);
    assert_int_equal(decompress("m/layer.0.b")->state, WIRE_OP_DONE);
    assert_int_equal(decompress("m/layer.0.w")->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    assert_true(is_filled(named(&w, "m/layer.0.b"), 2));
    assert_true(is_filled(named(&w, "m/layer.1.w"), 3));
    world_check_books(&w);
}

static void a_whole_model_is_encoded_all_or_nothing(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 3);
    char *before = world_picture(&w);
    for (unsigned n = 1; n <= 6; n++) {
        world_fail(&w, JOB_ENCODE, n, HBM_E_WORKER_DIED);
        assert_int_equal(compress(&w, "model:m", HBM_CODEC_INT8)->error, HBM_E_WORKER_DIED);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        world_check_books(&w);
    }
    free(before);
    assert_int_equal(compress(&w, "model:m", HBM_CODEC_INT8)->n_rows, 6);
    for (unsigned n = 1; n <= 6; n++) {
        world_fail(&w, JOB_DECODE, n, HBM_E_WORKER_DIED);
        assert_int_equal(decompress("model:m")->error, HBM_E_WORKER_DIED);
    }
    assert_int_equal(decompress("model:m")->state, WIRE_OP_DONE);
    unsigned seed = 0;
    list_for_each (node, &model->buffers)
        assert_true(is_filled(list_entry(node, struct buffer, model_node), ++seed));
    assert_int_equal(w.core->n_buffers, 6);
    world_check_books(&w);
}

static void a_result_below_the_bound_leaves_everything_as_it_was(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    char *before = world_picture(&w);
    struct compress_args args = {
        .sel = "w", .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}, .min_sqnr_db = 60};
    struct ask *question = ask(&w, alice, NULL);
    verb_compress(w.core, &question->call, &args);
    assert_int_equal(op_of(&w, question)->error, HBM_E_QUALITY);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    world_check_books(&w);
}

static void a_writer_makes_it_busy_at_the_start(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    char pid[16];
    make_buffer(&w, session, "w", 64, 256, WIRE_KEEP);
    struct op *op = compress(&w, "w", HBM_CODEC_INT8);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_int_equal(op->error, HBM_E_BUSY);
    assert_non_null(strstr(op->detail, pid));
    world_check_books(&w);
}

static void a_writer_that_comes_meanwhile_makes_it_busy_at_the_end(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    struct session *session = client(&w, alice);
    struct attach_args args = {.name = "w", .access = HBM_RW, .flags = WIRE_UNLOCKED};
    struct ask *question = ask(&w, alice, NULL), *writer = ask(&w, alice, session);
    struct compress_args compress_args = {.sel = "w", .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    w.hold = true;
    verb_compress(w.core, &question->call, &compress_args);
    verb_attach(w.core, &writer->call, &args);
    w.hold = false;
    assert_int_equal(error_of(&w, writer), 0);
    assert_int_equal(op_of(&w, question)->error, HBM_E_BUSY);
    assert_int_equal(buffer->version, 1);
    assert_null(buffer->parts[PART_SCALE]);
    world_check_books(&w);
}

static void a_reader_keeps_what_it_has_until_it_lets_go(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 4096);
    fill(buffer, 4);
    struct session *session = client(&w, alice), *later = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct extent *old = lease->mappings[0]->extent;
    assert_int_equal(compress(&w, "w", HBM_CODEC_INT8)->state, WIRE_OP_DONE);
    assert_ptr_equal(lease->mappings[0]->extent, old);
    assert_ptr_not_equal(buffer->arena->extent, old);
    assert_null(lease->mappings[0]->arena);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], old->size + buffer->arena->extent->size);
    world_check_books(&w);
    float number;
    assert_int_equal(pread(old->fd, &number, sizeof(number), 0), sizeof(number));
    struct lease *fresh = attach(&w, later, "w", HBM_RO);
    assert_ptr_equal(fresh->mappings[0]->extent, buffer->arena->extent);
    /* Through a restart as well. */
    uint64_t id = lease->id, old_id = old->id;
    const uint64_t buffer_id = buffer->id;
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    const struct hbm_quality *quality = &buffer_get(w.core, buffer_id)->quality;
    assert_true(quality->sqnr_inlier_db == 41 && quality->zeroed == 3 && quality->lo == -2 && quality->hi == 2);
    lease = lease_get(w.core, id);
    assert_int_equal(lease->mappings[0]->extent->id, old_id);
    detach(&w, lease);
    assert_null(idmap_get(&w.core->ids, old_id, ID_EXTENT));
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], named(&w, "w")->arena->extent->size);
    world_check_books(&w);
}

static void a_reader_that_was_away_comes_back_to_the_form_it_knew(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 4096);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    client_lets_go(&w, session);
    op_of(&w, question);
    restore(&w, "w");
    uint64_t raw = named(&w, "w")->arena->extent->id;
    assert_int_equal(compress(&w, "w", HBM_CODEC_INT8)->state, WIRE_OP_DONE);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 1000);
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(lease->mappings[0]->extent->id, raw);
    world_check_books(&w);
}

static void a_copy_leaves_the_original_alone(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    char *before = world_picture(&w);
    struct op *op = copy_of("m/layer.0.w", "", (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = 0xff});
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->rows[0].name, "m/layer.0.w@int8.channel0");
    struct buffer *copy = named(&w, "m/layer.0.w@int8.channel0");
    assert_int_equal(op->rows[0].buffer, copy->id);
    assert_null(copy->model);
    assert_true(copy->keep);
    assert_true(copy->has_receipt);
    assert_non_null(named(&w, "m/layer.0.w@int8.channel0.scale"));
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    world_check_books(&w);
    /* Its bytes are those of the form. */
    assert_int_equal(decompress("m/layer.0.w@int8.channel0")->state, WIRE_OP_DONE);
    assert_true(is_filled(copy, 1));
    struct ask *question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, copy->id);
    assert_int_equal(error_of(&w, question), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    world_check_books(&w);
}

static void copies_are_named_after_codec_and_granularity(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    copy_of("w", "", (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = HBM_PER_GROUP, .group = 128});
    copy_of("w", "", (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = HBM_PER_TENSOR});
    copy_of("w", "", (struct hbm_encoding){.codec = HBM_CODEC_BF16, .granularity = 0xff});
    copy_of("w", "mine", (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = 0xff});
    assert_int_equal(named(&w, "w@int8.group128")->parts[PART_SCALE]->dims[0], 128);
    assert_int_equal(named(&w, "w@int8.tensor")->parts[PART_SCALE]->dims[0], 1);
    assert_null(named(&w, "w@bf16")->parts[PART_SCALE]);
    assert_non_null(named(&w, "mine.scale"));
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.mode = WIRE_MODE_COPY, .as = "mine"}),
                     HBM_E_EXISTS);
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.mode = WIRE_MODE_COPY, .as = "a/../b"}),
                     HBM_E_INVALID);
    assert_int_equal(compress_error(alice, "*", (struct compress_args){.mode = WIRE_MODE_COPY, .as = "one"}),
                     HBM_E_INVALID);
    world_check_books(&w);
}

static void what_stays_in_fp16_lies_beside_the_codes_over_a_restart_too(void **state)
{
    (void)state;
    struct hbm_encoding split = {.codec = HBM_CODEC_INT8_SPLIT, .granularity = 0xff};
    make_kept(&w, "w", 250, 64);
    const struct op *op = copy_of("w", "copy", split);
    assert_int_equal(op->state, WIRE_OP_DONE);
    const struct buffer *copy = named(&w, "copy"), *channels = named(&w, "copy.channels"), *outliers = named(&w, "copy.outliers");
    assert_true(copy->encoding.granularity == HBM_PER_TENSOR && copy->encoding.axis == 0 && copy->encoding.group == 2);
    assert_int_equal(op->rows[0].receipt.bytes_after, 250 * 64 + 4 + 2 * 4 + 2 * 64 * 2);
    assert_true(channels->dtype == HBM_I32 && channels->dims[0] == 2 && outliers->dtype == HBM_F16 && outliers->dims[0] == 2 * 64);
    assert_int_equal(channels->offset, copy->parts[PART_SCALE]->offset + HBM_ALIGN);
    assert_int_equal(outliers->offset, channels->offset + HBM_ALIGN);
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    split = (struct hbm_encoding){.codec = HBM_CODEC_INT8_SPLIT, .granularity = HBM_PER_CHANNEL, .axis = 1, .group = 63};
    copy_of("w", "", split);
    assert_int_equal(named(&w, "w@int8-split.channel1.outliers")->dims[0], 63 * 250);
    world_check_books(&w);
    decompress("copy");
    assert_null(names_find(&w.core->buffer_names, alice.owner, "copy.outliers"));
    world_check_books(&w);
}

static void a_split_of_no_channels_or_of_all_is_refused_and_so_is_one_that_parks(void **state)
{
    (void)state;
    struct hbm_encoding split = {.codec = HBM_CODEC_INT8_SPLIT, .granularity = HBM_PER_CHANNEL, .axis = 1, .group = 64};
    make_kept(&w, "w", 1, 64);
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = split}), HBM_E_INVALID);
    split.axis = 2;
    split.group = 0;
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = split}), HBM_E_INVALID);
    split.axis = 0; /* one channel */
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = split}), HBM_E_INVALID);
    split.granularity = HBM_PER_GROUP;
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = split}), HBM_E_INVALID);
    split.granularity = HBM_PER_CHANNEL;
    split.axis = 1;
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = split, .mode = WIRE_MODE_PARK}), HBM_E_UNSUPPORTED);
    make_model(&w, "m", 1);
    const struct parking park = {.encoding = split};
    struct ask *question = ask(&w, alice, NULL);
    verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, &park);
    assert_int_equal(error_of(&w, question), HBM_E_INVALID);
    world_check_books(&w);
}

static void copies_are_made_all_or_nothing(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    char *before = world_picture(&w);
    world_fail(&w, JOB_ENCODE, 5, HBM_E_WORKER_DIED);
    assert_int_equal(
        copy_of("model:m", "", (struct hbm_encoding){.codec = HBM_CODEC_INT8, .granularity = 0xff})->error,
        HBM_E_WORKER_DIED);
    /* A name that is taken while the work is done. */
    struct compress_args args = {
        .sel = "model:m", .mode = WIRE_MODE_COPY, .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_compress(w.core, &question->call, &args);
    char *full = strdup("m/layer.1.b@int8.tensor.scale");
    assert_int_equal(names_add(&w.core->buffer_names, alice.owner, full, named(&w, "m/layer.1.b")), 0);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_EXISTS);
    names_remove(&w.core->buffer_names, alice.owner, full);
    free(full);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
    world_check_books(&w);
}

static void a_reader_may_make_a_copy_of_its_own(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    struct compress_args args = {
        .sel = "~1000/w", .mode = WIRE_MODE_COPY, .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    struct ask *question = ask(&w, bob, NULL);
    verb_compress(w.core, &question->call, &args);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    struct buffer *copy = names_find(&w.core->buffer_names, bob.owner, "w@int8.channel0");
    assert_non_null(copy);
    assert_int_equal(copy->arena->owner.uid, 1001);
    assert_int_equal(compress_error(bob, "~1000/w", (struct compress_args){0}), HBM_E_DENIED);
    world_check_books(&w);
}

static void what_can_not_be_encoded_is_refused_or_skipped_with_the_reason(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    make_kept(&w, "v", 64, 256);
    compress(&w, "v", HBM_CODEC_INT8);
    assert_int_equal(compress_error(alice, "v", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    assert_non_null(strstr(last_detail, "already"));
    assert_int_equal(compress_error(alice, "v.scale", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    assert_int_equal(
        compress_error(alice, "w",
                       (struct compress_args){
                           .encoding = {.codec = HBM_CODEC_INT8, .granularity = HBM_PER_CHANNEL, .axis = 2}}),
        HBM_E_INVALID);
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.encoding = {.codec = 77}}), HBM_E_INVALID);
    assert_int_equal(compress_error(alice, "w", (struct compress_args){.as = "name"}), HBM_E_INVALID);
    struct op *op = compress(&w, "[vw]", HBM_CODEC_INT8);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 2);
    for (size_t i = 0; i < op->n_rows; i++)
        assert_int_equal(op->rows[i].skipped != NULL, !strcmp(op->rows[i].name, "v"));
    assert_int_equal(compress_error(alice, "[vw]", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    make_kept(&w, "x", 64, 256);
    offload(&w, "x", HBM_TIER_HOST, false);
    assert_int_equal(compress_error(alice, "x", (struct compress_args){0}), HBM_E_UNSUPPORTED);
    assert_non_null(strstr(last_detail, "restore it first"));
    world_check_books(&w);
}

/* FAULTS 25 */
static void every_codec_refuses_what_it_can_not_take_and_leaves_it_as_it_was(void **state)
{
    (void)state;
    make_kept(&w, "coded", 64, 256);
    make_kept(&w, "other", 64, 256)->dtype = HBM_I32;
    make_kept(&w, "w", 64, 256);
    compress(&w, "coded", HBM_CODEC_INT8);
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    w.device->capacity[HBM_TIER_HOST] = w.device->capacity[HBM_TIER_DISK] = 0; /* nothing makes room either */
    w.core->limits.memory_wait_ms = 0;
    char *before = world_picture(&w);
    for (unsigned codec = HBM_CODEC_RAW + 1; hbm_codec_name(codec); codec++)
        for (unsigned mode = WIRE_MODE_REPLACE; !hbm_codec_varies(codec) && mode <= WIRE_MODE_PARK; mode++) {
            struct compress_args args = {.mode = mode, .encoding = {.codec = (uint8_t)codec, .granularity = 0xff}, .sel = "w"};
            assert_int_equal(compress_error(alice, "coded", args), HBM_E_UNSUPPORTED);
            assert_non_null(strstr(last_detail, "already"));
            assert_int_equal(compress_error(alice, "other", args), HBM_E_UNSUPPORTED);
            assert_non_null(strstr(last_detail, "F32"));
            if (hbm_codec_scale_bytes(codec)) {
                args.encoding.granularity = HBM_PER_GROUP, args.encoding.group = 0;
                assert_int_equal(compress_error(alice, "w", args), HBM_E_INVALID);
                args.encoding.granularity = HBM_PER_CHANNEL, args.encoding.axis = 2;
                assert_int_equal(compress_error(alice, "w", args), HBM_E_INVALID);
            }
            args.encoding.granularity = 0xff;
            if (mode != WIRE_MODE_PARK) { /* which takes no room here */
                struct ask *question = ask(&w, alice, NULL);
                verb_compress(w.core, &question->call, &args);
                assert_int_equal(op_of(&w, question)->error, HBM_E_NO_MEMORY);
            }
            char *after = world_picture(&w);
            assert_string_equal(before, after);
            free(after);
        }
    free(before);
    world_check_books(&w);
}

static void a_taken_scale_name_is_seen_before_the_work(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    make_kept(&w, "w.scale", 1, 1);
    unsigned encodes = w.ran[JOB_ENCODE];
    assert_int_equal(compress_error(alice, "w", (struct compress_args){0}), HBM_E_EXISTS);
    assert_int_equal(w.ran[JOB_ENCODE], encodes);
    assert_int_equal(compress(&w, "w", HBM_CODEC_BF16)->state, WIRE_OP_DONE); /* which has no scales */
}

static void leased_scales_are_not_taken_away(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    compress(&w, "w", HBM_CODEC_INT8);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w.scale", HBM_RO);
    struct ask *question = ask(&w, alice, NULL);
    verb_decompress(w.core, &question->call, "w");
    assert_int_equal(error_of(&w, question), HBM_E_BUSY);
    detach(&w, lease);
    assert_int_equal(decompress("w")->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static void an_encoded_buffer_moves_with_its_scales(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    fill(buffer, 8);
    compress(&w, "w", HBM_CODEC_INT8);
    offload(&w, "w", HBM_TIER_DISK, false);
    assert_int_equal(world_restart(&w), 0);
    restore(&w, "w");
    decompress("w");
    assert_true(is_filled(named(&w, "w"), 8));
    world_check_books(&w);
}

/* The codes are all there is of it: decoded by other scales they would be other numbers. */
static void a_private_copy_without_its_scales_is_not_decoded(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    compress(&w, "w", HBM_CODEC_INT8);
    struct lease *copy = attach(&w, client(&w, bob), "~1000/w", HBM_RO);
    const struct wire_range range = {.buffer = copy->buffer->id, .bytes = 4};
    char sel[32];
    snprintf(sel, sizeof(sel), "id:0x%016" PRIx64, copy->buffer->id);
    struct ask *question = ask(&w, bob, NULL);
    verb_decompress(w.core, &question->call, sel);
    assert_int_equal(error_of(&w, question), HBM_E_UNSUPPORTED);
    question = ask(&w, bob, NULL);
    verb_transfer(w.core, &question->call, w.dir_fd, mapped_ranges(&range, 1), 1, true);
    assert_int_equal(error_of(&w, question), HBM_E_UNSUPPORTED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_code_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(compress_takes_a_quarter_and_decompress_gives_it_back),
        CASE(what_was_not_named_is_copied_along),
        CASE(a_whole_model_is_encoded_all_or_nothing),
        CASE(a_result_below_the_bound_leaves_everything_as_it_was),
        CASE(a_writer_makes_it_busy_at_the_start),
        CASE(a_writer_that_comes_meanwhile_makes_it_busy_at_the_end),
        CASE(a_reader_keeps_what_it_has_until_it_lets_go),
        CASE(a_reader_that_was_away_comes_back_to_the_form_it_knew),
        CASE(a_copy_leaves_the_original_alone),
        CASE(copies_are_named_after_codec_and_granularity),
        CASE(copies_are_made_all_or_nothing),
        CASE(a_reader_may_make_a_copy_of_its_own),
        CASE(what_can_not_be_encoded_is_refused_or_skipped_with_the_reason),
        CASE(every_codec_refuses_what_it_can_not_take_and_leaves_it_as_it_was),
        CASE(a_taken_scale_name_is_seen_before_the_work),
        CASE(what_stays_in_fp16_lies_beside_the_codes_over_a_restart_too),
        CASE(a_split_of_no_channels_or_of_all_is_refused_and_so_is_one_that_parks),
        CASE(a_private_copy_without_its_scales_is_not_decoded),
        CASE(leased_scales_are_not_taken_away),
        CASE(an_encoded_buffer_moves_with_its_scales),
    };

    return cmocka_run_group_tests_name("codes", tests, NULL, NULL);
}
