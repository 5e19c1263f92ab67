#include "daemon/core/packing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/core/buffer.h"
#include "daemon/core/compress_plan.h"
#include "proto/memfd.h"

/* A worker takes so much at a time: its CHECKSUM_CHUNK. */
#define WINDOW ((uint64_t)16 << 20)
/* Of elements that share no scale: cuts at multiples keep every address aligned for vectors. */
#define ELEMENTS_A_ROW 256
#define CHANNELS_A_CUT 16
/* Shorter ones by a codec whose size varies would save less than its header takes. */
#define LEAST_VARYING UINT64_C(1024)

struct packing *packing_ref(struct packing *packing)
{
    if (packing)
        packing->refs++;
    return packing;
}

struct packing *packing_unref(struct packing *packing)
{
    if (!packing || --packing->refs)
        return NULL;
    free(packing->packed);
    free(packing->pieces);
    free(packing->codes);
    free(packing);
    return NULL;
}

static int compare_ids(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

const struct packed *packing_find(const struct packing *packing, uint64_t buffer)
{
    return packing ? bsearch(&buffer, packing->packed, packing->n_packed, sizeof(*packing->packed), compare_ids) : NULL;
}

bool packing_is_sound(const struct packing *packing, uint64_t size)
{
    if (packing->bytes > size)
        return false;
    for (uint32_t i = 0; i < packing->n_pieces; i++) {
        const struct job_piece *piece = &packing->pieces[i];
        if (piece->raw_offset > packing->raw_size || piece->data_offset > packing->bytes ||
            piece->scale_offset > packing->bytes || piece->receipt >= packing->n_packed)
            return false;
    }
    return true;
}

/* ---- Which buffers ---- */

static bool wants(const struct buffer *buffer, const struct parking *park, struct packed *packed)
{
    const char *ignored;
    const struct parking *own = park ? park : &buffer->park;

    *packed = (struct packed){.buffer = buffer->id,
                              .encoding = own->encoding,
                              .min_sqnr_db = own->min_sqnr_db,
                              .max_error = own->max_error};
    if (own->encoding.codec == HBM_CODEC_RAW)
        return false;
    if (hbm_codec_varies(own->encoding.codec) && buffer_raw_size(buffer) < LEAST_VARYING * 2)
        return false;
    return !park_encoding(buffer, &own->encoding, &packed->encoding, &ignored);
}

static int choose(struct packing *packing, const struct arena *arena, const struct parking *park)
{
    size_t n = 0;

    list_for_each (node, &arena->buffers)
        n++;
    packing->packed = calloc(n + 1, sizeof(*packing->packed));
    if (!packing->packed)
        return HBM_E_NO_MEMORY;
    list_for_each (node, &arena->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
        if (wants(buffer, park, &packing->packed[packing->n_packed]))
            packing->n_packed++;
    }
    qsort(packing->packed, packing->n_packed, sizeof(*packing->packed), compare_ids);
    return 0;
}

/* ---- Where ---- */

/* What a piece may be cut into. */
struct rows {
    uint64_t n;                 /* in all */
    uint64_t raw;               /* bytes of one */
    uint64_t units;             /* of one */
    unsigned codec;
    uint64_t bits;        /* of its data; together they come to whole bytes */
    uint64_t at_once;     /* cuts are at multiples, if so many fit */
};

/* Of the packed buffers whose size varies, in their order. */
struct measures {
    const struct job_measured *each;
    size_t n;
    const uint32_t *grains;
    size_t n_grains;
};

struct cutter {
    struct packing *packing;
    size_t room; /* pieces */
    struct measures measures;
};

static struct job_piece *add_piece(struct cutter *cutter)
{
    struct packing *packing = cutter->packing;

    if (packing->n_pieces == cutter->room) {
        size_t room = cutter->room ? 2 * cutter->room : 64;
        struct job_piece *pieces = reallocarray(packing->pieces, room, sizeof(*pieces));
        if (!pieces)
            return NULL;
        packing->pieces = pieces;
        cutter->room = room;
    }
    struct job_piece *piece = &packing->pieces[packing->n_pieces++];
    *piece = (struct job_piece){.dims = {1, 1, 1}};
    return piece;
}

static uint64_t align(uint64_t at)
{
    return (at + HBM_ALIGN - 1) / HBM_ALIGN * HBM_ALIGN;
}

static uint64_t data_of(const struct rows *rows, uint64_t n)
{
    return (n * rows->bits + 7) / 8;
}

/* Of the scales and zero points of n rows, from the first. */
static uint64_t units_end(const struct rows *rows, uint64_t n)
{
    uint64_t zero, end = 0;

    job_units_layout(rows->codec, n * rows->units, &zero, &end);
    return end;
}

static uint64_t unit_bytes(const struct rows *rows)
{
    return hbm_codec_scale_bytes(rows->codec) + hbm_codec_zero_bytes(rows->codec);
}

static uint64_t bytes_of(const struct rows *rows, uint64_t n)
{
    return rows->units ? align(data_of(rows, n)) + units_end(rows, n) : data_of(rows, n);
}

/* How many of the rows that are left fit between `at` and the next multiple of WINDOW; 0: none. */
static uint64_t fitting(const struct rows *rows, uint64_t left, uint64_t at)
{
    uint64_t space = WINDOW - at % WINDOW, n = space * 8 / (rows->bits + rows->units * unit_bytes(rows) * 8);

    if (n >= left && bytes_of(rows, left) <= space)
        return left;
    if (n > left)
        n = left;
    while (n && bytes_of(rows, n) > space)
        n--;
    return n > rows->at_once ? n / rows->at_once * rows->at_once : n;
}

/* Those of the next piece; its place is packing->bytes then. */
static uint64_t take(struct packing *packing, const struct rows *rows, uint64_t left)
{
    uint64_t at = align(packing->bytes), n = fitting(rows, left, at);

    if (!n && at % WINDOW) {
        at = (at + WINDOW - 1) / WINDOW * WINDOW;
        n = fitting(rows, left, at);
    }
    packing->bytes = at;
    return n ? n : 1; /* one that is longer than a window */
}

static int add_raw(struct cutter *cutter, uint64_t offset, uint64_t bytes)
{
    struct packing *packing = cutter->packing;
    struct rows rows = {.raw = 1, .bits = 8, .at_once = HBM_ALIGN};

    while (bytes) {
        uint64_t n = take(packing, &rows, bytes);
        struct job_piece *piece = add_piece(cutter);
        if (!piece)
            return HBM_E_NO_MEMORY;
        piece->raw_offset = offset;
        piece->data_offset = packing->bytes;
        piece->dims[2] = n;
        packing->bytes += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

static uint64_t product(const uint64_t *dims, unsigned from, unsigned to)
{
    uint64_t n = 1;

    for (unsigned i = from; i < to; i++)
        n *= dims[i];
    return n;
}

/* The shape as pieces have it, and along which of its axes it may be cut (or -1). */
static int normalise(const struct buffer *buffer, struct hbm_encoding *e, uint64_t dims[3])
{
    uint64_t elements = product(buffer->dims, 0, buffer->rank), last = buffer->rank ? buffer->dims[buffer->rank - 1] : 1;

    dims[0] = dims[1] = 1;
    dims[2] = elements;
    if (!hbm_codec_scale_bytes(e->codec))
        return 2;
    switch (e->granularity) {
    case HBM_PER_CHANNEL:
        dims[0] = product(buffer->dims, 0, e->axis);
        dims[1] = buffer->dims[e->axis];
        dims[2] = product(buffer->dims, e->axis + 1u, buffer->rank);
        e->axis = 1;
        return dims[0] == 1 ? 1 : -1;
    case HBM_PER_GROUP:
        if (last % e->group == 0) /* no run ends inside a group: it is one run */
            return 2;
        dims[1] = elements / last;
        dims[2] = last;
        return 1;
    default:
        return -1; /* one scale of all of it */
    }
}

static struct rows rows_of(const struct buffer *buffer, const struct hbm_encoding *e, const uint64_t dims[3], int axis)
{
    uint64_t wide = hbm_dtype_bits(buffer->dtype) / 8;
    uint64_t elements = axis == 1 ? dims[2] : e->granularity == HBM_PER_GROUP ? e->group : ELEMENTS_A_ROW, units = 0;
    struct rows rows = {.n = 1, .at_once = axis == 1 ? CHANNELS_A_CUT : 1};
    uint64_t one[3] = {1, 1, elements};

    if (axis < 0) {
        elements = dims[0] * dims[1] * dims[2];
        memcpy(one, dims, sizeof(one));
    } else {
        uint64_t all = axis == 1 ? dims[1] * dims[2] : dims[2];
        rows.n = all / elements + (all % elements != 0);
        if (axis == 2 && e->granularity == HBM_PER_GROUP) /* small groups: as aligned as the others' rows */
            rows.at_once = ELEMENTS_A_ROW;
    }
    rows.raw = elements * wide;
    rows.bits = elements * hbm_dtype_bits(e->stored);
    rows.codec = e->codec;
    if (hbm_codec_scale_bytes(e->codec) && hbm_encoding_units(e, one, 3, &units))
        rows.units = units;
    return rows;
}

static int add_encoded(struct cutter *cutter, const struct buffer *buffer, struct packed *packed)
{
    struct packing *packing = cutter->packing;
    struct hbm_encoding encoding = packed->encoding;
    uint64_t dims[3], done = 0, all = buffer_raw_size(buffer), wide = hbm_dtype_bits(buffer->dtype) / 8;
    int axis = normalise(buffer, &encoding, dims);
    struct rows rows = rows_of(buffer, &encoding, dims, axis);

    for (uint64_t at = 0; at < rows.n;) {
        uint64_t n = take(packing, &rows, rows.n - at), raw = n * rows.raw;
        struct job_piece *piece = add_piece(cutter);
        if (!piece)
            return HBM_E_NO_MEMORY;
        if (raw > all - done) /* the last row of a vector may be shorter */
            raw = all - done;
        memcpy(piece->dims, dims, sizeof(dims));
        if (axis == 1)
            piece->dims[1] = n;
        else if (axis == 2)
            piece->dims[2] = raw / wide;
        piece->raw_offset = buffer->offset + done;
        piece->data_offset = packing->bytes;
        piece->encoding = encoding;
        piece->dtype = buffer->dtype;
        piece->receipt = (uint32_t)(packed - packing->packed);
        uint64_t data = (raw / wide * hbm_dtype_bits(encoding.stored) + 7) / 8;
        packing->bytes += data;
        packed->bytes += data + n * rows.units * unit_bytes(&rows);
        if (rows.units) {
            piece->scale_offset = align(packing->bytes);
            packing->bytes = piece->scale_offset + units_end(&rows, n);
        }
        done += raw;
        at += n;
    }
    return 0;
}

static bool varies(const struct packed *packed)
{
    return hbm_codec_varies(packed->encoding.codec);
}

/* What was measured of a packed buffer; false: it was not, or of another shape. */
static bool find_measure(const struct cutter *cutter, const struct packed *packed, uint64_t elements,
                         struct measures *found)
{
    struct measures left = cutter->measures;

    for (const struct packed *other = cutter->packing->packed; left.n; other++) {
        if (!varies(other))
            continue;
        if (left.each->n_grains > left.n_grains)
            return false;
        if (other == packed) {
            *found = left;
            return left.each->n_grains == elements / JOB_GRAIN + (elements % JOB_GRAIN != 0);
        }
        left.grains += left.each->n_grains;
        left.n_grains -= left.each->n_grains;
        left.each++;
        left.n--;
    }
    return false;
}

/* As many grains as there is room for up to the next multiple of WINDOW, one at least; *bytes of them. */
static uint64_t fitting_grains(const struct job_measured *measured, const uint32_t *grains, uint64_t left, uint64_t at,
                               uint64_t *bytes)
{
    uint64_t space = WINDOW - at % WINDOW, n = 1;

    *bytes = measured->head + grains[0];
    while (n < left && *bytes + grains[n] <= space)
        *bytes += grains[n++];
    return n;
}

static int add_varying(struct cutter *cutter, const struct buffer *buffer, struct packed *packed)
{
    struct packing *packing = cutter->packing;
    uint64_t wide = hbm_dtype_bits(buffer->dtype) / 8, elements = buffer_raw_size(buffer) / wide, bytes;
    struct measures measures;

    if (!find_measure(cutter, packed, elements, &measures))
        return HBM_E_INTERNAL;
    memcpy(packing->codes[packed - packing->packed], measures.each->code, JOB_CODE_BYTES);
    for (uint64_t g = 0; g < measures.each->n_grains;) {
        uint64_t at = align(packing->bytes), left = measures.each->n_grains - g, done = g * JOB_GRAIN;
        uint64_t n = fitting_grains(measures.each, measures.grains + g, left, at, &bytes);
        if (at % WINDOW + bytes > WINDOW && at % WINDOW) {
            at = (at + WINDOW - 1) / WINDOW * WINDOW;
            n = fitting_grains(measures.each, measures.grains + g, left, at, &bytes);
        }
        struct job_piece *piece = add_piece(cutter);
        if (!piece)
            return HBM_E_NO_MEMORY;
        piece->dims[2] = n == left ? elements - done : n * JOB_GRAIN;
        piece->raw_offset = buffer->offset + done * wide;
        piece->data_offset = at;
        piece->scale_offset = packing->bytes = at + bytes;
        piece->encoding = packed->encoding;
        piece->dtype = buffer->dtype;
        piece->receipt = (uint32_t)(packed - packing->packed);
        packed->bytes += bytes;
        g += n;
    }
    return 0;
}

/* Neighbours that stay raw go as one, with the padding between them. */
static int lay_out(struct cutter *cutter, const struct arena *arena)
{
    uint64_t from = 0, to = 0;

    list_for_each (node, &arena->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, arena_node);
        struct packed *packed = (struct packed *)packing_find(cutter->packing, buffer->id);
        bool goes_along = !packed && buffer->offset >= to && buffer->offset - to < HBM_ALIGN;

        if (!goes_along) {
            if (add_raw(cutter, from, to - from))
                return HBM_E_NO_MEMORY;
            from = to = packed ? 0 : buffer->offset;
        }
        int error = !packed ? 0 : varies(packed) ? add_varying(cutter, buffer, packed) : add_encoded(cutter, buffer, packed);
        if (error)
            return error;
        if (!packed && buffer->offset + buffer->size > to)
            to = buffer->offset + buffer->size;
    }
    return add_raw(cutter, from, to - from);
}

/* What is to be measured before anything has a place. */
static int add_unmeasured(struct cutter *cutter, const struct arena *arena)
{
    struct packing *packing = cutter->packing;

    for (uint32_t i = 0; i < packing->n_packed; i++) {
        const struct packed *packed = &packing->packed[i];
        const struct buffer *buffer = varies(packed) ? buffer_get(arena->core, packed->buffer) : NULL;
        if (!buffer)
            continue;
        struct job_piece *piece = add_piece(cutter);
        if (!piece)
            return HBM_E_NO_MEMORY;
        piece->raw_offset = buffer->offset;
        piece->dims[2] = product(buffer->dims, 0, buffer->rank);
        piece->encoding = packed->encoding;
        piece->dtype = buffer->dtype;
        piece->receipt = i;
    }
    packing->unmeasured = packing->n_pieces > 0;
    packing->bytes = packing->unmeasured ? packing->raw_size : 0;
    return 0;
}

static bool read_measures(const struct packing *packing, const void *bytes, size_t size, struct measures *measures)
{
    size_t n = packing->n_pieces, head = n * sizeof(struct job_measured);

    if (size < head)
        return false;
    *measures = (struct measures){.each = bytes,
                                  .n = n,
                                  .grains = (const uint32_t *)((const struct job_measured *)bytes + n),
                                  .n_grains = (size - head) / sizeof(uint32_t)};
    for (size_t i = 0; i < n; i++) /* so that sums stay far from their ends */
        if (measures->each[i].head > WINDOW / 2)
            return false;
    for (size_t i = 0; i < measures->n_grains; i++)
        if (measures->grains[i] > WINDOW / 2)
            return false;
    return true;
}

int packing_lay_out(struct packing *packing, const struct arena *arena, const void *measured, size_t size)
{
    struct cutter cutter = {.packing = packing};

    if (!read_measures(packing, measured, size, &cutter.measures))
        return HBM_E_INTERNAL;
    packing->codes = calloc(packing->n_packed, sizeof(*packing->codes));
    if (!packing->codes)
        return HBM_E_NO_MEMORY;
    free(packing->pieces);
    packing->pieces = NULL;
    packing->n_pieces = 0;
    packing->bytes = 0;
    packing->unmeasured = false;
    return lay_out(&cutter, arena);
}

struct packing *packing_new(const struct arena *arena, const struct parking *park)
{
    _cleanup_(packing_unrefp) struct packing *packing = calloc(1, sizeof(*packing));
    struct cutter cutter = {.packing = packing};

    if (!packing)
        return NULL;
    packing->refs = 1;
    packing->raw_size = arena->extent->size;
    if (choose(packing, arena, park))
        return NULL;
    if (add_unmeasured(&cutter, arena))
        return NULL;
    if (packing->n_packed && !packing->unmeasured && lay_out(&cutter, arena))
        return NULL;
    return TAKE_PTR(packing);
}

int packing_table(const struct packing *packing, bool codes)
{
    size_t pieces = packing->n_pieces * sizeof(*packing->pieces);
    size_t behind = codes && packing->codes ? packing->n_packed * sizeof(*packing->codes) : 0;
    _cleanup_free_ unsigned char *both = behind ? malloc(pieces + behind) : NULL;

    if (!behind)
        return memfd_sealed("hbm-pieces", packing->pieces, pieces);
    if (!both)
        return -ENOMEM;
    memcpy(both, packing->pieces, pieces);
    memcpy(both + pieces, packing->codes, behind);
    return memfd_sealed("hbm-pieces", both, pieces + behind);
}
