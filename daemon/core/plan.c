#include "daemon/core/recode.h"

#include <stdlib.h>
#include <string.h>

uint64_t step_bytes(const struct step *step)
{
    uint64_t bytes = 0;

    if (step->kind != STEP_ENCODE && step->kind != STEP_DECODE)
        return step->bytes;
    hbm_shape_bytes(step->code.dims, step->code.rank, step->code.dtype, &bytes);
    return bytes;
}

uint64_t plan_bytes(const struct plan *plan)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < plan->n_steps; i++)
        bytes += step_bytes(&plan->steps[i]);
    return bytes;
}

void plan_clear(struct plan *plan)
{
    free(plan->placements);
    free(plan->steps);
    packing_unref(plan->packing);
    free(plan->receipts);
    extent_unref(plan->source);
    extent_unref(plan->target);
    *plan = (struct plan){0};
}

struct device *plan_device(const struct plan *plan)
{
    return plan->device ? plan->device : plan->source->device;
}

struct device *plan_worker(const struct plan *plan)
{
    if (plan->tier != HBM_TIER_DEVICE)
        return plan->source->device;
    return plan->source->tier == HBM_TIER_DEVICE && plan->home ? plan->home : plan_device(plan);
}

static int one_step(struct plan *plan, enum step_kind kind, uint64_t bytes, enum hbm_tier tier, uint64_t size)
{
    plan->tier = tier;
    plan->size = size;
    plan->steps = calloc(1, sizeof(*plan->steps));
    if (!plan->steps)
        return HBM_E_NO_MEMORY;
    plan->steps[0] = (struct step){.kind = kind, .bytes = bytes};
    plan->n_steps = 1;
    return 0;
}

/* What is packed comes to the device raw, and goes elsewhere as it is. */
static int whole_copy(struct plan *plan, const struct extent *source, enum hbm_tier tier)
{
    uint64_t raw = extent_raw_size(source);

    plan->packing = packing_ref(source->packing);
    if (source->packing && tier == HBM_TIER_DEVICE)
        return one_step(plan, STEP_UNPACK, raw, tier, raw);
    return one_step(plan, STEP_COPY, source->size, tier, source->size);
}

static int pack(struct plan *plan, const struct arena *arena, enum hbm_tier tier, const struct parking *park)
{
    plan->packing = packing_new(arena, park);
    if (!plan->packing)
        return HBM_E_NO_MEMORY;
    if (!plan->packing->n_packed) {
        plan->packing = packing_unref(plan->packing);
        return whole_copy(plan, arena->extent, tier);
    }
    plan->receipts = calloc(plan->packing->n_packed, sizeof(*plan->receipts));
    if (!plan->receipts)
        return HBM_E_NO_MEMORY;
    return one_step(plan, STEP_PACK, plan->packing->raw_size, tier, plan->packing->bytes);
}

int plan_move_as(struct plan *plan, struct arena *arena, enum hbm_tier tier, const struct parking *park)
{
    bool to_peer = tier == HBM_TIER_PEER;
    /* From its own device: what lies with a peer has a checksum, that a plain copy looks at. */
    bool leaves = arena_tier(arena) == HBM_TIER_DEVICE && (tier == HBM_TIER_HOST || tier == HBM_TIER_DISK);

    *plan = (struct plan){.arena = arena->id,
                          .reclaim = true,
                          .home = arena->device,
                          .device = to_peer ? NULL : arena->device,
                          .to_peer = to_peer};
    int error = leaves ? pack(plan, arena, tier, park) : whole_copy(plan, arena->extent, to_peer ? HBM_TIER_DEVICE : tier);
    if (error)
        plan_clear(plan);
    return error;
}

int plan_move(struct plan *plan, struct arena *arena, enum hbm_tier tier)
{
    return plan_move_as(plan, arena, tier, NULL);
}

int plan_copy(struct plan *plan, struct extent *source, enum hbm_tier tier)
{
    *plan = (struct plan){0};
    int error = whole_copy(plan, source, tier);
    if (error)
        plan_clear(plan);
    else
        plan->source = extent_ref(source);
    return error;
}

/* ---- Recoding: a new layout ---- */

static int compare_ids(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

void recodes_sort(struct recode *recodes, size_t n)
{
    qsort(recodes, n, sizeof(*recodes), compare_ids); /* the id stands first */
}

static const struct recode *recode_of(const struct recode *recodes, size_t n, uint64_t buffer)
{
    return bsearch(&buffer, recodes, n, sizeof(*recodes), compare_ids);
}

static uint64_t allot(struct plan *plan, uint64_t bytes)
{
    uint64_t at = (plan->size + HBM_ALIGN - 1) / HBM_ALIGN * HBM_ALIGN;

    plan->size = at + bytes;
    return at;
}

/* Neighbours that stay neighbours go as one copy, with the padding between them. */
static void add_copy(struct plan *plan, uint64_t source, uint64_t target, uint64_t bytes)
{
    struct step *last = plan->n_steps ? &plan->steps[plan->n_steps - 1] : NULL;

    if (!bytes)
        return;
    if (last && last->kind == STEP_COPY && source >= last->source_offset + last->bytes &&
        source - last->source_offset - last->bytes < HBM_ALIGN &&
        source - last->source_offset == target - last->target_offset)
        last->bytes = source + bytes - last->source_offset;
    else
        plan->steps[plan->n_steps++] =
            (struct step){.kind = STEP_COPY, .source_offset = source, .target_offset = target, .bytes = bytes};
}

/* A part lies at the next aligned place behind the one before it: ENCODE and DECODE go by that. */
static uint64_t allot_part(struct plan *plan, struct placement *placement, unsigned part, uint64_t bytes)
{
    placement->parts[part].size = bytes;
    placement->parts[part].offset = allot(plan, bytes);
    return placement->parts[part].offset;
}

static void keep_form(struct plan *plan, const struct buffer *buffer, struct placement *placement)
{
    *placement = (struct placement){.buffer = buffer->id, .size = buffer->size, .encoding = buffer->encoding};
    placement->offset = allot(plan, placement->size);
    add_copy(plan, buffer->offset, placement->offset, buffer->size);
    FOR_EACH_PART(part, buffer)
        add_copy(plan, part->offset, allot_part(plan, placement, part_number, part->size), part->size);
}

static void change_form(struct plan *plan, const struct buffer *buffer, struct placement *placement,
                        const struct recode *recode)
{
    bool encode = recode->encoding.codec != HBM_CODEC_RAW;
    struct step *step = &plan->steps[plan->n_steps++];

    *placement = (struct placement){.buffer = buffer->id, .encoding = recode->encoding};
    hbm_shape_bytes(buffer->dims, buffer->rank, encode ? recode->encoding.stored : buffer->dtype, &placement->size);
    placement->offset = allot(plan, placement->size);
    for (unsigned i = 0; i < PARTS; i++)
        if (part_has(i, recode->encoding.codec))
            allot_part(plan, placement, i, part_bytes(i, &recode->encoding, buffer->dims, buffer->rank));
    *step = (struct step){
        .kind = encode ? STEP_ENCODE : STEP_DECODE,
        .min_sqnr_db = recode->min_sqnr_db,
        .calibration = recode->calibration,
        .observation = recode->observation,
        .max_error = recode->max_error,
        .placement = (size_t)(placement - plan->placements),
        .code = {.rank = buffer->rank,
                 .dtype = buffer->dtype,
                 .encoding = encode ? recode->encoding : buffer->encoding},
    };
    memcpy(step->code.dims, buffer->dims, sizeof(step->code.dims));
    step->code.raw_offset = encode ? buffer->offset : placement->offset;
    step->code.data_offset = encode ? placement->offset : buffer->offset;
    const struct buffer *scale = buffer->parts[PART_SCALE];
    step->code.scale_offset = encode ? placement->parts[PART_SCALE].offset : scale ? scale->offset : 0;
}

int plan_recode(struct plan *plan, struct arena *arena, const struct recode *recodes, size_t n, bool only)
{
    size_t buffers = 0;

    *plan = (struct plan){.arena = arena->id, .tier = HBM_TIER_DEVICE};
    list_for_each (node, &arena->buffers)
        buffers++;
    plan->placements = calloc(buffers, sizeof(*plan->placements));
    plan->steps = calloc(2 * buffers, sizeof(*plan->steps));
    if (!plan->placements || !plan->steps) {
        plan_clear(plan);
        return HBM_E_NO_MEMORY;
    }
    list_for_each (node, &arena->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
        const struct recode *recode = recode_of(recodes, n, buffer->id);

        if (buffer->parent || (only && !recode)) /* parts go along with what they belong to */
            continue;
        struct placement *placement = &plan->placements[plan->n_placements++];
        if (recode)
            change_form(plan, buffer, placement, recode);
        else
            keep_form(plan, buffer, placement);
    }
    return 0;
}
