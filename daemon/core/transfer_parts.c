#include "daemon/core/transfer_parts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/names.h"
#include "daemon/core/session.h"

/* A range, and the buffer it was checked against. */
struct piece {
    struct wire_range range;
    struct buffer *buffer;
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

static int check(struct core *core, const struct call *call, const struct wire_range *range, bool write,
                 struct piece *piece, char *detail)
{
    struct buffer *buffer = buffer_get(core, range->buffer);

    if (!buffer || !buffer_visible(buffer, &call->who)) {
        bool held = call->session && session_held(call->session, range->buffer);
        return refuse(detail, held ? HBM_E_STALE : HBM_E_NOT_FOUND, "id:0x%016" PRIx64, range->buffer);
    }
    const struct model *model = buffer->model;
    if (write && model && model->state == MODEL_BUILDING && !is_builder(core, model, call->session))
        return refuse(detail, HBM_E_NOT_READY, "model %.200s", model->name);
    if (buffer->arena->extent->lost)
        return refuse(detail, HBM_E_LOST, "%.200s", buffer->name ? buffer->name : buffer->arena->group);
    if (write && buffer_lacks_scales(buffer))
        return refuse(detail, HBM_E_UNSUPPORTED, "id:0x%016" PRIx64 " is a private copy, without the scales it is encoded with",
                      buffer->id);
    int error = write ? 0 : check_fill(core, call, buffer, detail);
    if (!error)
        error = check_bounds(range, buffer, detail);
    *piece = (struct piece){*range, buffer};
    return error;
}

/* ---- Parts ---- */

static bool is_encoded(const struct buffer *buffer)
{
    return buffer->encoding.codec != HBM_CODEC_RAW;
}

static int compare(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    uint64_t x = a->buffer->arena->id, y = b->buffer->arena->id;

    if (x != y)
        return x < y ? -1 : 1;
    if (is_encoded(a->buffer) != is_encoded(b->buffer))
        return is_encoded(a->buffer) ? 1 : -1;
    if (a->buffer->id != b->buffer->id)
        return a->buffer->id < b->buffer->id ? -1 : 1;
    return 0;
}

static bool same_part(const struct piece *a, const struct piece *b)
{
    return a->buffer->arena == b->buffer->arena && is_encoded(a->buffer) == is_encoded(b->buffer);
}

/* Where a buffer lies once it is decoded. */
struct decoded {
    uint64_t buffer, offset;
};

static int compare_decoded(const void *left, const void *right)
{
    uint64_t a = ((const struct decoded *)left)->buffer, b = ((const struct decoded *)right)->buffer;

    return (a > b) - (a < b);
}

/* A plan's placements by id, as the pieces of a part are. NULL: memory is out. */
static struct decoded *decoded_by_id(const struct plan *plan)
{
    struct decoded *decoded = calloc(plan->n_placements + 1, sizeof(*decoded));

    for (size_t i = 0; decoded && i < plan->n_placements; i++)
        decoded[i] = (struct decoded){plan->placements[i].buffer, plan->placements[i].offset};
    if (decoded)
        qsort(decoded, plan->n_placements, sizeof(*decoded), compare_decoded);
    return decoded;
}

/* Each encoded buffer of the pieces once, raw. */
static int plan_decode(struct transfer_part *part, const struct piece *pieces, uint32_t n)
{
    _cleanup_free_ struct recode *recodes = calloc(n, sizeof(*recodes));
    size_t m = 0;

    if (!recodes)
        return HBM_E_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const struct buffer *buffer = pieces[i].buffer;
        if (!m || recodes[m - 1].buffer != buffer->id)
            recodes[m++] = (struct recode){.buffer = buffer->id,
                                           .encoding = {.codec = HBM_CODEC_RAW, .stored = (uint8_t)buffer->dtype}};
    }
    return plan_recode(&part->decode, pieces[0].buffer->arena, recodes, m, true);
}

static int make_part(struct transfer_part *part, const struct piece *pieces, uint32_t n, bool write)
{
    const struct arena *arena = pieces[0].buffer->arena;
    const struct model *model = pieces[0].buffer->model;
    bool decode = is_encoded(pieces[0].buffer);

    *part = (struct transfer_part){
        .arena = arena->id, .extent = extent_ref(arena->extent), .n = n, .hold = !write && !model};
    part->ranges = calloc(n, sizeof(*part->ranges));
    if (!part->ranges || (decode && plan_decode(part, pieces, n)))
        return HBM_E_NO_MEMORY;
    _cleanup_free_ struct decoded *decoded = decoded_by_id(&part->decode);
    size_t at = 0;
    if (!decoded)
        return HBM_E_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const struct buffer *buffer = pieces[i].buffer;
        while (decode && decoded[at].buffer != buffer->id) /* both by id, and each buffer is there */
            at++;
        uint64_t start = decode ? decoded[at].offset : buffer->offset;
        part->ranges[i] = (struct job_range){
            .extent_offset = start + pieces[i].range.buffer_offset,
            .file_offset = pieces[i].range.file_offset,
            .bytes = pieces[i].range.bytes,
        };
        part->bytes += pieces[i].range.bytes;
    }
    return 0;
}

int transfer_parts_make(struct core *core, const struct call *call, const struct wire_range *ranges, uint32_t n,
                        bool write, struct transfer_parts *parts, char *detail)
{
    _cleanup_free_ struct piece *pieces = calloc((size_t)n + 1, sizeof(*pieces));
    uint32_t m = 0, from = 0;

    *parts = (struct transfer_parts){.at = calloc((size_t)n + 1, sizeof(*parts->at))};
    if (!pieces || !parts->at)
        return refuse(detail, HBM_E_NO_MEMORY, "the owner is out of memory for its own tables");
    for (uint32_t i = 0; i < n; i++) {
        int error = check(core, call, &ranges[i], write, &pieces[m], detail);
        if (error)
            return error;
        m += ranges[i].bytes > 0;
    }
    qsort(pieces, m, sizeof(*pieces), compare);
    for (uint32_t i = 1; i <= m; i++) {
        if (i < m && same_part(&pieces[from], &pieces[i]))
            continue;
        if (make_part(&parts->at[parts->n++], &pieces[from], i - from, write))
            return refuse(detail, HBM_E_NO_MEMORY, "the owner is out of memory for its own tables");
        from = i;
    }
    return 0;
}

void transfer_part_clear(struct transfer_part *part)
{
    plan_clear(&part->decode);
    part->extent = extent_unref(part->extent);
    free(part->ranges);
    part->ranges = NULL;
}

void transfer_parts_clear(struct transfer_parts *parts)
{
    for (size_t i = 0; i < parts->n; i++)
        transfer_part_clear(&parts->at[i]);
    free(parts->at);
    *parts = (struct transfer_parts){0};
}
