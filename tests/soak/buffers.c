#define XXH_INLINE_ALL
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "tests/soak/client.h"

#define WAIT_MS 3000
#define ELEMENTS_MAX 400000

void buffer_name(unsigned row, char name[32])
{
    snprintf(name, 32, "b%u%s", row % NAMED, row < NAMED ? "" : ".bf16");
}

/* A row that nobody else is changing, to read or to change. */
static bool take(unsigned row, bool own)
{
    if (!(own ? row_own(row) : row_share(row)))
        return false;
    if (!truth->buffers[row].by)
        return true;
    row_leave(row);
    return false;
}

static void begin(struct buffer_truth *row)
{
    row->by = self;
}

/* While nobody knows what became of it, `by` stays, and with it the row: until the session, and thus all that it
 * asked for, has come to its end. */
static void end(struct buffer_truth *row)
{
    if (row->presence != UNSURE)
        row->by = 0;
}

static uint64_t absent(const struct buffer_truth *row)
{
    return row->presence == THERE ? 0 : ONE_OF(NOT_FOUND) | ONE_OF(STALE);
}

/* The row is taken. */
static bool attach(unsigned i, bool rw, unsigned flags, struct held *held)
{
    struct buffer_truth *row = &truth->buffers[i];
    unsigned access = rw ? HBM_RW : HBM_RO;
    char name[32];
    struct hbm_info info;
    int error;

    buffer_name(i, name);
    *held = (struct held){.row = i, .rw = rw, .locked = !(flags & HBM_UNLOCKED), .recodes = row->recodes};
    if (row->presence == THERE && row->id && chance(30))
        error = hbm_attach_id(session, row->id, access, flags, WAIT_MS, &held->lease);
    else
        error = hbm_attach(session, name, access, flags, WAIT_MS, &held->lease);
    if (!went_well("hbm_attach", error, absent(row)))
        return false;
    hbm_lease_info(held->lease, &info);
    if (row->presence == THERE && row->id && row->id != info.id)
        broken("%s is 0x%016" PRIx64 " now, and was 0x%016" PRIx64, name, info.id, (uint64_t)row->id);
    if (row->presence == ABSENT)
        broken("%s is there, and must not be", name);
    row->id = info.id;
    return true;
}

/* Nobody knew whether it is there, and whoever asked for a change has his answer, or none will come. */
static void look(unsigned i)
{
    struct buffer_truth *row = &truth->buffers[i];
    char name[32];
    hbm_lease *lease;

    buffer_name(i, name);
    int error = hbm_attach(session, name, HBM_RO, HBM_UNLOCKED, WAIT_MS, &lease);
    if (error == HBM_E_NOT_FOUND)
        row->presence = ABSENT;
    if (!went_well("hbm_attach", error, ONE_OF(NOT_FOUND)))
        return;
    struct hbm_info info;
    hbm_lease_info(lease, &info);
    row->id = info.id;
    row->presence = THERE;
    went_well("hbm_detach", hbm_detach(lease), 0);
}

static void settle(unsigned i)
{
    if (truth->buffers[i].presence == UNSURE)
        look(i);
    end(&truth->buffers[i]);
    row_leave(i);
}

/* The row is its own, and there. */
static void write_row(const struct held *held)
{
    struct buffer_truth *row = &truth->buffers[held->row];
    struct hbm_info info;

    hbm_lease_info(held->lease, &info);
    if (!info.pointer)
        broken("row %u is locked and not mapped", held->row);
    row->next = new_version();
    struct pattern pattern = {
        .key = held->row % NAMED, .version = row->next, .bf16 = info.encoding.codec == HBM_CODEC_BF16};
    if (!memory_write(info.pointer, pattern, info.size, chance(30) ? 5 : 1))
        broken("row %u cannot be written", held->row);
    row->version = row->next;
    row->next = 0;
}

void do_make(void)
{
    unsigned i = dice(NAMED);
    struct buffer_truth *row = &truth->buffers[i];
    struct hbm_spec spec = {.device = HBM_DEVICE_ANY, .dtype = HBM_F32, .rank = 1, .flags = HBM_KEEP};
    struct held held = {.row = i, .rw = true, .locked = true};
    char name[32];

    if (!take(i, true))
        return;
    begin(row);
    if (row->presence == ABSENT) {
        buffer_name(i, name);
        spec.name = name;
        spec.dims[0] = 1 + dice(ELEMENTS_MAX * memory_scale);
        row->births++;
        row->presence = UNSURE;
        row->version = row->next = 0;
        row->id = 0;
        row->size = spec.dims[0] * sizeof(float);
        held.recodes = row->recodes;
        int error = hbm_alloc(session, &spec, &held.lease);
        if (went_well("hbm_alloc", error, 0)) {
            struct hbm_info info;
            hbm_lease_info(held.lease, &info);
            row->id = info.id;
            row->presence = THERE;
            check_held(&held);
            write_row(&held);
            hold_or_drop(held);
        } else if (error != HBM_E_RETRY) {
            row->presence = ABSENT;
        }
    }
    settle(i);
}

void do_write(void)
{
    unsigned i = dice(BUFFERS);
    struct buffer_truth *row = &truth->buffers[i];
    struct held held;

    if (!take(i, true))
        return;
    begin(row);
    if (row->presence == THERE && attach(i, true, chance(20) ? HBM_IN_PLACE : 0, &held)) {
        write_row(&held);
        check_held(&held);
        hold_or_drop(held);
    }
    settle(i);
}

void do_read(void)
{
    unsigned i = dice(BUFFERS);
    struct held held;

    if (!take(i, false))
        return;
    unsigned flags = (chance(25) ? HBM_UNLOCKED : 0) | (chance(20) ? HBM_IN_PLACE : 0);
    if (truth->buffers[i].presence == THERE && attach(i, chance(10), flags, &held)) {
        if (held.locked)
            check_held(&held);
        hold_or_drop(held);
    }
    row_leave(i);
}

void do_free(void)
{
    unsigned i = dice(BUFFERS);
    struct buffer_truth *row = &truth->buffers[i];

    if (!take(i, true))
        return;
    begin(row);
    if (row->presence == THERE && row->id) {
        row->births++;
        row->presence = UNSURE;
        int error = hbm_free(session, row->id);
        if (went_well("hbm_free", error, 0))
            row->presence = ABSENT;
        else if (error == HBM_E_BUSY)
            row->presence = THERE;
    }
    settle(i);
}

static int wait_for(hbm_op *op)
{
    int error = 0;

    if (chance(15))
        hbm_op_cancel(op);
    do
        error = hbm_op_wait(op, 100, NULL);
    while (error == HBM_E_TIMEOUT && !truth->stop);
    if (error == HBM_E_TIMEOUT)
        error = hbm_op_wait(op, HBM_FOREVER, NULL);
    hbm_op_free(op);
    return error;
}

/* A copy beside it, in bf16. What the copy is of may not change meanwhile. */
void do_copy(void)
{
    unsigned from = dice(NAMED), i = NAMED + from;
    struct buffer_truth *source = &truth->buffers[from], *row = &truth->buffers[i];
    char sel[32], as[32];
    struct hbm_compress how = {.sel = sel, .as = as, .codec = HBM_CODEC_BF16, .copy = 1};

    if (!take(i, true))
        return;
    begin(row);
    if (row->presence == ABSENT && take(from, false)) {
        if (source->presence == THERE && !source->next) {
            buffer_name(from, sel);
            buffer_name(i, as);
            row->births++;
            row->presence = UNSURE;
            row->version = source->version;
            row->next = 0;
            row->id = 0;
            row->size = source->size;
            hbm_op *op = NULL;
            int error = hbm_compress(session, &how, NULL, chance(50) ? &op : NULL);
            if (op)
                error = wait_for(op);
            if (went_well("hbm_compress", error, ONE_OF(UNSUPPORTED)))
                row->presence = THERE;
        }
        row_leave(from);
    }
    settle(i);
}

/* In place of the raw form, or the way back. Whoever only reads goes on with what it has. */
void do_recode(void)
{
    unsigned i = dice(BUFFERS);
    struct buffer_truth *row = &truth->buffers[i];
    char sel[32];
    struct hbm_compress how = {.sel = sel, .codec = HBM_CODEC_BF16};

    if (!take(i, true))
        return;
    begin(row);
    if (row->presence == THERE && !row->next) {
        buffer_name(i, sel);
        row->frozen[row->recodes % FROZEN] = row->version;
        row->recodes++;
        int error = chance(50) ? hbm_compress(session, &how, NULL, NULL) : hbm_decompress(session, sel, NULL);
        went_well("hbm_compress or hbm_decompress", error, ONE_OF(UNSUPPORTED));
    }
    settle(i);
}

void do_move(void)
{
    unsigned i = dice(BUFFERS);
    struct buffer_truth *row = &truth->buffers[i];
    uint32_t births = row->births;
    bool there = row->presence == THERE;
    char sel[32];
    hbm_op *op = NULL;
    int error;

    buffer_name(i, sel);
    if (chance(25)) /* what this process holds itself of it may be why nobody lets go */
        error = hbm_offload(session, sel, HBM_TIER_HOST, HBM_LIVE, chance(50) ? &op : NULL);
    else if (chance(60))
        error = hbm_offload(session, sel, chance(50) ? HBM_TIER_HOST : HBM_TIER_DISK, 0, chance(50) ? &op : NULL);
    else if (chance(50))
        error = hbm_prefetch(session, sel, chance(50) ? &op : NULL);
    else
        error = hbm_restore(session, sel, chance(50) ? &op : NULL);
    if (op)
        error = wait_for(op);
    there = there && row->births == births;
    went_well("hbm_offload, hbm_prefetch or hbm_restore", error, there ? 0 : ONE_OF(NOT_FOUND) | ONE_OF(STALE));
}

void report_buffer(unsigned i)
{
    struct buffer_truth *row = &truth->buffers[i];
    struct held held;
    struct hbm_info info;
    char name[32];

    buffer_name(i, name);
    if (row->by)
        broken("%s is still being changed by pid %d", name, row->by);
    if (row->presence == UNSURE)
        look(i);
    if (row->presence == UNSURE)
        broken("%s: nobody can tell whether it is there: %s", name, hbm_last_error_detail());
    if (!attach(i, false, 0, &held)) {
        if (row->presence == THERE)
            broken("%s: %s", name, hbm_last_error_detail());
        return;
    }
    check_held(&held);
    hbm_lease_info(held.lease, &info);
    const void *bytes = memory_read(info.pointer, info.size);
    printf("%s %016" PRIx64 "\n", name, (uint64_t)XXH3_64bits(bytes, info.size));
    went_well("hbm_detach", hbm_detach(held.lease), 0);
}
