#include "daemon/core/transfer_parts.h"

#include <inttypes.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "daemon/core/session.h"

#define PART_RANGES 65536u /* of a part: the list of a job is written in one turn of the loop */

struct transfer_run {
    uint64_t buffer; /* id */
    uint32_t from;   /* the first range of it */
};

/* A node of the index. */
struct transfer_place {
    const struct extent *extent;
    bool encoded;
    size_t part;
};

__attribute__((format(printf, 3, 4))) static int refuse(char *detail, int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(detail, HBM_DETAIL_MAX, format, arguments);
    va_end(arguments);
    return error;
}

/* ---- What may be asked ---- */

static bool is_builder(struct core *core, const struct model *model, const struct session *session)
{
    const struct lease *lease = lease_get(core, model->builder_lease);

    return session && lease && lease->session == session;
}

static int check_fill(struct core *core, const struct call *call, const struct buffer *buffer, char *detail)
{
    const char *name = buffer->name ? buffer->name : "the buffer";
    const struct model *model = buffer->model;

    if (!arena_may_write(buffer->arena, &call->who))
        return refuse(detail, HBM_E_DENIED, "%.150s is not yours to write", name);
    if (model && (model->state != MODEL_BUILDING || !is_builder(core, model, call->session)))
        return refuse(detail, HBM_E_DENIED, "%.150s belongs to a model, which only its builder fills", name);
    if (buffer->parent || buffer->encoding.codec != HBM_CODEC_RAW)
        return refuse(detail, HBM_E_UNSUPPORTED, "%.150s is compressed: decompress it first", name);
    if (arena_tier(buffer->arena) != HBM_TIER_DEVICE)
        return refuse(detail, HBM_E_UNSUPPORTED, "%.150s is offloaded: restore it first", name);
    return 0;
}

static int check_bounds(const struct wire_range *range, const struct buffer *buffer, char *detail)
{
    uint64_t size = buffer_raw_size(buffer);

    if (range->buffer_offset > size || range->bytes > size - range->buffer_offset)
        return refuse(detail, HBM_E_INVALID, "bytes %" PRIu64 " to %" PRIu64 " more of a buffer of %" PRIu64,
                      range->buffer_offset, range->bytes, size);
    if (range->file_offset > INT64_MAX || range->bytes > INT64_MAX - range->file_offset)
        return refuse(detail, HBM_E_INVALID, "no file reaches to offset %" PRIu64 " and %" PRIu64 " bytes more",
                      range->file_offset, range->bytes);
    return 0;
}

static int check_buffer(struct core *core, const struct call *call, uint64_t id, bool write, struct buffer **found,
                        char *detail)
{
    struct buffer *buffer = buffer_get(core, id);

    *found = buffer;
    if (!buffer || !buffer_visible(buffer, &call->who)) {
        bool held = call->session && session_held(call->session, id);
        return refuse(detail, held ? HBM_E_STALE : HBM_E_NOT_FOUND, "id:0x%016" PRIx64, id);
    }
    const struct model *model = buffer->model;
    if (write && model && model->state == MODEL_BUILDING && !is_builder(core, model, call->session))
        return refuse(detail, HBM_E_NOT_READY, "model %.200s", model->name);
    if (buffer->arena->extent->lost)
        return refuse(detail, HBM_E_LOST, "%.200s", buffer->name ? buffer->name : buffer->arena->group);
    if (write && buffer_lacks_scales(buffer))
        return refuse(detail, HBM_E_UNSUPPORTED, "id:0x%016" PRIx64 " is a private copy, without the scales it is encoded with",
                      buffer->id);
    return write ? 0 : check_fill(core, call, buffer, detail);
}

/* ---- Parts ---- */

static int by_extent(const void *left, const void *right)
{
    const struct transfer_place *a = left, *b = right;

    if (a->extent != b->extent)
        return (uintptr_t)a->extent < (uintptr_t)b->extent ? -1 : 1;
    return a->encoded - b->encoded;
}

/* Where the extent's next range goes; a new one's part is past the last. NULL: memory is out. */
static struct transfer_place *place_of(struct transfer_parts *parts, const struct extent *extent, bool encoded)
{
    struct transfer_place key = {.extent = extent, .encoded = encoded, .part = SIZE_MAX}, **found;

    if (parts->last && !by_extent(parts->last, &key))
        return parts->last;
    found = tfind(&key, &parts->index, by_extent);
    if (found)
        return *found;
    struct transfer_place *place = malloc(sizeof(*place));
    if (!place)
        return NULL;
    *place = key;
    if (tsearch(place, &parts->index, by_extent))
        return place;
    free(place);
    return NULL;
}

/* Room for one more in an array that has room for a power of two. */
static bool grow(void **array, size_t n, size_t size)
{
    if (n & (n - 1))
        return true;
    void *more = reallocarray(*array, n ? 2 * n : 1, size);
    if (more)
        *array = more;
    return more;
}

static bool is_full(const struct transfer_part *part)
{
    return !part->encoded && part->n == PART_RANGES;
}

static struct transfer_part *new_part(struct transfer_parts *parts, struct transfer_place *place, const struct buffer *buffer, bool write)
{
    bool first = place->part == SIZE_MAX;

    if (!grow((void **)&parts->at, parts->n, sizeof(*parts->at)))
        return NULL;
    place->part = parts->n++;
    struct transfer_part *part = &parts->at[place->part];
    *part = (struct transfer_part){.arena = buffer->arena->id,
                                   .extent = extent_ref(buffer->arena->extent),
                                   .encoded = place->encoded,
                                   .fills = !write,
                                   .hold = first && !write && !buffer->model};
    return part;
}

static struct transfer_part *part_of(struct transfer_parts *parts, const struct buffer *buffer, bool write)
{
    struct transfer_place *place = place_of(parts, buffer->arena->extent, buffer->encoding.codec != HBM_CODEC_RAW);

    if (!place)
        return NULL;
    parts->last = place;
    if (place->part == SIZE_MAX || is_full(&parts->at[place->part]))
        return new_part(parts, place, buffer, write);
    return &parts->at[place->part];
}

/* Where an encoded buffer lies once it is decoded is known when all of its arena's are. */
static bool add(struct transfer_part *part, const struct buffer *buffer, const struct wire_range *range)
{
    if (part->encoded && (!part->n_runs || part->runs[part->n_runs - 1].buffer != buffer->id)) {
        if (!grow((void **)&part->runs, part->n_runs, sizeof(*part->runs)))
            return false;
        part->runs[part->n_runs++] = (struct transfer_run){buffer->id, part->n};
    }
    if (!grow((void **)&part->ranges, part->n, sizeof(*part->ranges)))
        return false;
    part->ranges[part->n++] = (struct job_range){
        .extent_offset = (part->encoded ? 0 : buffer->offset) + range->buffer_offset,
        .file_offset = range->file_offset,
        .bytes = range->bytes,
    };
    part->bytes += range->bytes;
    return true;
}

int transfer_parts_add(struct core *core, const struct call *call, const struct wire_range *ranges, uint32_t n,
                       bool write, struct transfer_parts *parts, char *detail)
{
    struct transfer_part *part = NULL;
    struct buffer *buffer = NULL;

    for (uint32_t i = 0; i < n; i++) {
        int error = 0;
        if (!buffer || buffer->id != ranges[i].buffer) {
            error = check_buffer(core, call, ranges[i].buffer, write, &buffer, detail);
            part = NULL;
        }
        if (!error)
            error = check_bounds(&ranges[i], buffer, detail);
        if (error)
            return error;
        if (!ranges[i].bytes)
            continue;
        if (!part || is_full(part))
            part = part_of(parts, buffer, write);
        if (!part || !add(part, buffer, &ranges[i]))
            return refuse(detail, HBM_E_NO_MEMORY, OWNER_OUT_OF_MEMORY);
    }
    return 0;
}

/* ---- When all are in ---- */

static int compare_runs(const void *left, const void *right)
{
    uint64_t a = ((const struct transfer_run *)left)->buffer, b = ((const struct transfer_run *)right)->buffer;

    return (a > b) - (a < b);
}

/* Each encoded buffer once, raw. */
static int plan_decode(struct core *core, struct arena *arena, struct transfer_part *part)
{
    _cleanup_free_ struct transfer_run *runs = calloc(part->n_runs, sizeof(*runs));
    _cleanup_free_ struct recode *recodes = calloc(part->n_runs, sizeof(*recodes));
    size_t n = 0;

    if (!runs || !recodes)
        return HBM_E_NO_MEMORY;
    memcpy(runs, part->runs, part->n_runs * sizeof(*runs));
    qsort(runs, part->n_runs, sizeof(*runs), compare_runs);
    for (uint32_t i = 0; i < part->n_runs; i++) {
        const struct buffer *buffer = buffer_get(core, runs[i].buffer);
        if (!buffer)
            return HBM_E_STALE;
        if (!n || recodes[n - 1].buffer != buffer->id)
            recodes[n++] = (struct recode){.buffer = buffer->id,
                                           .encoding = {.codec = HBM_CODEC_RAW, .stored = (uint8_t)buffer->dtype}};
    }
    return plan_recode(&part->decode, arena, recodes, n, true);
}

static int compare_placements(const void *left, const void *right)
{
    uint64_t a = ((const struct transfer_run *)left)->buffer, b = ((const struct placement *)right)->buffer;

    return (a > b) - (a < b);
}

static int sort_placements(const void *left, const void *right)
{
    uint64_t a = ((const struct placement *)left)->buffer, b = ((const struct placement *)right)->buffer;

    return (a > b) - (a < b);
}

/* Each range to where its buffer lies once it is decoded. */
static int place_ranges(struct transfer_part *part)
{
    size_t n = part->decode.n_placements;
    _cleanup_free_ struct placement *sorted = calloc(n + 1, sizeof(*sorted));

    if (!sorted)
        return HBM_E_NO_MEMORY;
    memcpy(sorted, part->decode.placements, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), sort_placements);
    for (uint32_t i = 0; i < part->n_runs; i++) {
        const struct placement *placement = bsearch(&part->runs[i], sorted, n, sizeof(*sorted), compare_placements);
        uint32_t end = i + 1 < part->n_runs ? part->runs[i + 1].from : part->n;
        if (!placement)
            return HBM_E_STALE;
        for (uint32_t j = part->runs[i].from; j < end; j++)
            part->ranges[j].extent_offset += placement->offset;
    }
    return 0;
}

/* What is written out is written as it was; what is filled or decoded has to be there still. */
static int finish(struct core *core, struct transfer_part *part, char *detail)
{
    struct arena *arena = part->encoded || part->fills ? arena_get(core, part->arena) : NULL;
    int error = 0;

    if (!part->encoded && !part->fills)
        return 0;
    if (!arena)
        return refuse(detail, HBM_E_STALE, "an arena of the operation was freed meanwhile");
    if (arena->extent != part->extent)
        return refuse(detail, HBM_E_BUSY, "%.200s was moved or recoded while the ranges were looked at", arena->group);
    if (part->encoded && !(error = plan_decode(core, arena, part)))
        error = place_ranges(part);
    return error == HBM_E_STALE ? refuse(detail, error, "a buffer of the operation was freed meanwhile")
           : error              ? refuse(detail, error, OWNER_OUT_OF_MEMORY)
                                : 0;
}

int transfer_parts_finish(struct core *core, struct transfer_parts *parts, char *detail)
{
    int error = 0;

    for (size_t i = 0; i < parts->n && !error; i++)
        error = finish(core, &parts->at[i], detail);
    return error;
}

void transfer_part_clear(struct transfer_part *part)
{
    plan_clear(&part->decode);
    part->extent = extent_unref(part->extent);
    free(part->ranges);
    free(part->runs);
    part->ranges = NULL;
    part->runs = NULL;
}

void transfer_parts_clear(struct transfer_parts *parts)
{
    for (size_t i = 0; i < parts->n; i++)
        transfer_part_clear(&parts->at[i]);
    free(parts->at);
    tdestroy(parts->index, free);
    *parts = (struct transfer_parts){0};
}
