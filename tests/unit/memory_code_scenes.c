/* What is encoded, read whole, or found again by the next owner. */
#include "memory_scenes.h"

#include "daemon/core/ledger.h"

#include <errno.h>
#include <stdlib.h>

static void compresses(void)
{
    struct compress_args args = {.sel = "m/*", .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};

    if (!OP(verb_compress, &args))
        OP(verb_decompress, "m/*");
    args = (struct compress_args){.sel = "w", .encoding = {.codec = HBM_CODEC_INT8_SPLIT, .granularity = 0xff}};
    OP(verb_compress, &args);
}

static void parks(void)
{
    struct compress_args args = {
        .sel = "*", .mode = WIRE_MODE_PARK, .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    const struct parking park = {.encoding = {.codec = HBM_CODEC_BF16}};
    struct lease *lease;

    int error = OP(verb_compress, &args);
    OP(verb_offload, "w", HBM_TIER_DISK, true);
    attach_to(bob, stranger, "~1000/w", HBM_RO, &lease);
    OP(verb_sleep, "m", HBM_TIER_HOST, &park);
    OP(verb_hash, "*");
    OP(verb_offload, "m/*", HBM_TIER_DISK, true);
    OP(verb_restore, "w");
    if (!error)
        OP(verb_decompress, "w");
}

static void parks_without_loss(void)
{
    const struct parking park = {.encoding = {.codec = HBM_CODEC_BF16_LOSSLESS}};
    struct compress_args args = {.sel = "w", .mode = WIRE_MODE_PARK, .encoding = park.encoding};
    struct buffer *buffer = named(&w, "w");

    buffer->dtype = HBM_BF16;
    buffer->dims[0] *= 2;
    fault.held = true;
    ledger_put_buffer(w.core, buffer);
    fault.held = false;
    OP(verb_sleep, "m", HBM_TIER_HOST, &park);
    if (!OP(verb_compress, &args) && !OP(verb_offload, "w", HBM_TIER_DISK, true))
        OP(verb_restore, "w");
}

static void compresses_copies(void)
{
    struct compress_args args = {.sel = "w",
                                 .as = "copy",
                                 .mode = WIRE_MODE_COPY,
                                 .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};

    OP(verb_compress, &args);
    args = (struct compress_args){.sel = "m/*", .mode = WIRE_MODE_COPY, .encoding = {.codec = HBM_CODEC_BF16}};
    OP(verb_compress, &args);
}

static void advises(void)
{
    struct advise_args args = {.sel = "*", .codec = HBM_CODEC_INT8, .min_sqnr_db = ADVICE_MIN_SQNR_DB};

    OP(verb_advise, &args);
    args = (struct advise_args){.sel = "m/*", .codec = HBM_CODEC_INT8, .apply = true};
    OP(verb_advise, &args);
}

static void observes(void)
{
    struct compress_args args = {.sel = "w",
                                 .encoding = {.codec = HBM_CODEC_INT8, .stored = HBM_I8},
                                 .calibration = {.method = HBM_CALIBRATE_OBSERVED | HBM_CALIBRATE_MSE}};

    if (!OP(verb_observe, "w", 0.5) && !OP(verb_observe, "w", 0.5))
        OP(verb_compress, &args);
    OP(verb_observe, "m/*", 0.5);
    OP(verb_forget, "m/*");
    struct observed_range ranges[] = {{named(&w, "w")->id, -1, 1}, {named(&w, "away")->id, -1, 1}};
    OP(verb_set_ranges, ranges, 2);
}

static void hashes(void)
{
    OP(verb_hash, "*");
}

static void writes_and_reads_a_file(void)
{
    static const char *const names[] = {"w", "coded", "spilled"};
    struct wire_range ranges[3];

    for (unsigned i = 0; i < 3; i++)
        ranges[i] = (struct wire_range){named(&w, names[i])->id, 0, i * 4096, 4096};
    if (!OP(verb_transfer, file, mapped_ranges(ranges, 3), 3, true))
        OP(verb_transfer, file, mapped_ranges(ranges, 1), 1, false);
}

static void starts_again(void)
{
    fault.held = true;
    attach(&w, reader, "w", HBM_RW);
    attach(&w, other, "m/layer.0.w", HBM_RO);
    char *before = world_picture(&w);
    world_crash(&w);
    world_start(&w);
    fault.held = false;
    int error = world_take_over(&w);
    fault.held = true;
    if (error) { /* the owner ends, and is started again */
        assert_int_equal(error, -ENOMEM);
        assert_true(fault.struck);
        world_crash(&w);
        assert_int_equal(world_come_back(&w), 0);
    }
    char *after = world_picture(&w);
    assert_string_equal(after, before);
    free(before);
    free(after);
}

static void starts_again_with_what_is_parked(void)
{
    struct compress_args args = {.sel = "away", .mode = WIRE_MODE_PARK, .encoding = {.codec = HBM_CODEC_BF16}};

    fault.held = true;
    restore(&w, "away");
    OP(verb_compress, &args);
    offload(&w, "away", HBM_TIER_HOST, true);
    assert_non_null(buffer_packed(named(&w, "away")));
    starts_again();
}

const struct scene memory_code_scenes[] = {
    SCENE(compresses),
    SCENE(compresses_copies),
    SCENE(advises),
    SCENE(parks),
    SCENE(parks_without_loss),
    SCENE(observes),
    SCENE(hashes),
    SCENE(writes_and_reads_a_file),
    SCENE(starts_again),
    SCENE(starts_again_with_what_is_parked),
    {0},
};
