#include "daemon/core/readopt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/message_ids.h"
#include "daemon/core/names.h"
#include "daemon/core/observation.h"
#include "daemon/core/packing.h"
#include "daemon/core/recency.h"
#include "daemon/core/weight.h"

static struct owner unpack_owner(struct unpack *unpack)
{
    uint32_t listener = unpack_u32(unpack);

    return (struct owner){listener, unpack_u32(unpack)};
}

static int drop_row(struct readopt *readopt, const struct ledger_row *row, const char *why)
{
    log_warning("ledger: the %s 0x%016" PRIx64 " does not come back: %s",
                row->type == LEDGER_EXTENT  ? "extent"
                : row->type == LEDGER_ARENA ? "arena"
                : row->type == LEDGER_MODEL ? "model"
                                            : "buffer",
                row->id, why);
    ledger_drop(readopt->core, row->id);
    return 0;
}

/* Under its name again, unless another has it now. 0 or -ENOMEM. */
static int list_again(void **names, struct owner scope, const char *name, void *object, bool *listed)
{
    int error = names_add(names, scope, name, object);

    *listed = !error;
    return error == -EEXIST ? 0 : error;
}

/* ---- Extents ---- */

/* A device that is configured no longer still has a name, and arenas that are lost with it. */
static struct device *device_of(struct core *core, const char *uuid)
{
    static const uint64_t nothing[HBM_TIERS];

    list_for_each (node, &core->devices) {
        struct device *device = list_entry(node, struct device, node);
        if (!strcmp(device->uuid, uuid))
            return device;
    }
    struct device *device = device_add(core, uuid, "not there any more", false, nothing);
    if (device) {
        device->state = DEVICE_FAILED;
        snprintf(device->worker_why, sizeof(device->worker_why), "it was not found when the daemon started");
    }
    return device;
}

/* Since version 7; NULL where it is not packed. 0 or -ENOMEM. */
static int read_packing(struct unpack *in, struct packing **ret)
{
    uint32_t n = unpack_later_u32(in);
    _cleanup_(packing_unrefp) struct packing *packing = n ? calloc(1, sizeof(*packing)) : NULL;

    if (!n)
        return 0;
    if (!packing)
        return -ENOMEM;
    packing->refs = 1;
    packing->raw_size = unpack_u64(in);
    packing->bytes = unpack_u64(in);
    if (in->left / sizeof(struct hbm_encoding) < n) {
        in->failed = true;
        return 0;
    }
    packing->packed = calloc(n, sizeof(*packing->packed));
    if (!packing->packed)
        return -ENOMEM;
    for (; packing->n_packed < n; packing->n_packed++) {
        struct packed *packed = &packing->packed[packing->n_packed];
        packed->buffer = unpack_u64(in);
        packed->bytes = unpack_u64(in);
        unpack_bytes(in, &packed->encoding, sizeof(packed->encoding));
    }
    packing->n_pieces = unpack_u32(in);
    if (in->left / sizeof(*packing->pieces) < packing->n_pieces) {
        in->failed = true;
        return 0;
    }
    packing->pieces = calloc(packing->n_pieces + 1u, sizeof(*packing->pieces));
    if (!packing->pieces)
        return -ENOMEM;
    unpack_bytes(in, packing->pieces, packing->n_pieces * sizeof(*packing->pieces));
    *ret = TAKE_PTR(packing);
    return 0;
}

int readopt_extent(struct readopt *readopt, struct ledger_row *row)
{
    struct unpack *in = &row->payload;
    const char *uuid = unpack_text(in);
    struct owner owner = unpack_owner(in);
    uint32_t tier = unpack_u32(in), kind = unpack_u32(in);
    uint64_t size = unpack_u64(in);
    bool has_checksum = unpack_u32(in);
    uint64_t checksum = unpack_u64(in);
    uint64_t spill_key = in->left < sizeof(spill_key) ? 0 : unpack_u64(in); /* since version 3 */
    bool exported = unpack_later_u32(in); /* since version 4 */
    char name[STORE_NAME_MAX];

    if (in->failed || !uuid || tier >= HBM_TIERS)
        return drop_row(readopt, row, "its row is damaged");
    _cleanup_(packing_unrefp) struct packing *packing = NULL;
    int error = read_packing(in, &packing);
    if (error)
        return error;
    if (in->failed || (packing && !packing_is_sound(packing, size)))
        return drop_row(readopt, row, "its row is damaged");
    struct device *device = device_of(readopt->core, uuid);
    struct extent *extent =
        device ? extent_adopt(readopt->core, row->id, device, owner, tier, kind, size, -1) : NULL;
    if (!extent)
        return -ENOMEM;
    extent_store_name(extent, name);
    /* Without its key a spill file is noise: what the store has of it goes with the rest that nobody takes. */
    if (!spill_key || spill_key == readopt->core->spill_key)
        extent->fd = readopt_take_memory(readopt, name, device, kind, size);
    else
        log_error("the key of a spill file did not come back, and so its %" PRIu64 " bytes do not either", size);
    extent->spill_key = spill_key;
    if (extent->fd >= 0)
        extent_count_stored(extent);
    extent->lost = extent->fd < 0 || device->state == DEVICE_FAILED;
    if (extent->fd < 0 && kind != JOB_EXTENT_CUDA_IPC) /* a block may live on in a client's mapping */
        extent_discount(extent);
    extent->has_checksum = has_checksum;
    extent->checksum = checksum;
    extent->exported = exported;
    extent->packing = TAKE_PTR(packing);
    return 0;
}

/* ---- Arenas ---- */

int readopt_arena(struct readopt *readopt, struct ledger_row *row)
{
    struct core *core = readopt->core;
    struct unpack *in = &row->payload;
    struct owner owner = unpack_owner(in);
    bool shared = unpack_u32(in);
    uint32_t mode = unpack_u32(in), handle = unpack_u32(in);
    const char *group = unpack_text(in);
    struct extent *extent = idmap_get(&core->ids, unpack_u64(in), ID_EXTENT);
    bool live = unpack_later_u32(in); /* since version 4 */
    uint32_t priority = unpack_later_u32(in); /* since version 5 */
    const char *home = in->left < sizeof(uint32_t) ? NULL : unpack_text(in); /* since version 6 */
    struct device *device = home ? device_of(core, home) : extent ? extent->device : NULL;

    if (in->failed || !group || !extent) {
        log_write(LOG_LEVEL_ERROR, MESSAGE_LOST,
                  "LOST: nothing is known of the memory of arena 0x%016" PRIx64 " (group %s)", row->id,
                  group ? group : "");
        core->counters.lost++;
        return drop_row(readopt, row, "its memory is unknown");
    }
    struct arena *arena = device ? calloc(1, sizeof(*arena)) : NULL;
    if (!arena || idmap_put(&core->ids, row->id, arena) < 0) {
        free(arena);
        return -ENOMEM;
    }
    arena->id = row->id;
    arena->core = core;
    arena->owner = owner;
    arena->shared = shared;
    arena->mode = mode;
    arena->handle = handle;
    snprintf(arena->group, sizeof(arena->group), "%s", group);
    arena->device = device;
    arena->extent = extent_ref(extent);
    arena->live = live;
    arena->priority = priority && priority <= PRIORITIES ? priority - 1 : PRIORITY_NORMAL;
    list_init(&arena->buffers);
    list_init(&arena->mappings);
    list_init(&arena->waiters);
    list_init(&arena->early_waiters);
    list_append(&core->arenas, &arena->node);
    list_init(&arena->recent_node);
    recency_note(arena);
    return 0;
}

/* ---- Models ---- */

int readopt_model(struct readopt *readopt, struct ledger_row *row)
{
    struct core *core = readopt->core;
    struct unpack *in = &row->payload;
    struct owner owner = unpack_owner(in);
    bool shared = unpack_u32(in);
    uint32_t mode = unpack_u32(in);
    const char *name = unpack_text(in), *key = unpack_text(in);
    uint32_t state = unpack_u32(in);
    bool listed = unpack_u32(in);
    uint64_t layout_hash = unpack_u64(in);
    uint32_t metadata_bytes = unpack_u32(in);
    char store[STORE_NAME_MAX];

    if (in->failed || !name || !key)
        return drop_row(readopt, row, "its row is damaged");
    if (state != MODEL_SEALED)
        return drop_row(readopt, row, "it was being built");
    struct model *model = calloc(1, sizeof(*model));
    if (!model || idmap_put(&core->ids, row->id, model) < 0) {
        free(model);
        return -ENOMEM;
    }
    *model = (struct model){.id = row->id,
                            .core = core,
                            .owner = owner,
                            .shared = shared,
                            .mode = mode,
                            .state = state,
                            .layout_hash = layout_hash};
    snprintf(model->name, sizeof(model->name), "%s", name);
    snprintf(model->key, sizeof(model->key), "%s", key);
    snprintf(store, sizeof(store), "m-%016" PRIx64, model->id);
    model->metadata_fd = metadata_bytes ? readopt_take_sized(readopt, store, metadata_bytes) : -1;
    model->metadata_bytes = model->metadata_fd >= 0 ? metadata_bytes : 0;
    list_init(&model->buffers);
    list_init(&model->waiters);
    list_append(&core->models, &model->node);
    core->n_models++;
    if (model->metadata_fd >= 0 && core->keeps) {
        struct account *account = account_of(core, owner);
        if (!account)
            return -ENOMEM;
        account_charge_anyway(account, ACCOUNT_OBJECTS, 1);
        model->is_object = true;
    }
    return listed ? list_again(&core->model_names, owner_scope(owner, shared), model->name, model, &model->listed) : 0;
}

/* Of an arena's buffers that are the model's, one is to be counted: the first, wherever in the table it comes. */
static bool stands_for_its_arena(const struct buffer *buffer)
{
    list_for_each (node, &buffer->arena->buffers) {
        const struct buffer *first = list_entry(node, struct buffer, arena_node);
        if (first->model == buffer->model) /* a part, which has none, may lie before it */
            return first == buffer;
    }
    return false;
}

int readopt_model_order(struct readopt *readopt, struct ledger_row *row)
{
    struct model *model = model_get(readopt->core, row->id);
    struct unpack *in = &row->payload;

    unpack_owner(in);
    unpack_u32(in);
    unpack_u32(in);
    unpack_text(in);
    unpack_text(in);
    unpack_u32(in);
    unpack_u32(in);
    unpack_u64(in);
    unpack_u32(in);
    for (uint32_t left = unpack_u32(in); left && model && !in->failed; left--) {
        struct buffer *buffer = buffer_get(readopt->core, unpack_u64(in));
        if (!buffer || buffer->model != model || !list_empty(&buffer->model_node))
            continue;
        list_append(&model->buffers, &buffer->model_node);
        model->n_buffers++;
        weight_add(buffer);
        model->n_arenas += stands_for_its_arena(buffer);
    }
    return 0;
}

/* ---- Buffers ---- */

static void insert_by_offset(struct arena *arena, struct buffer *buffer)
{
    struct list *after = arena->buffers.prev;

    while (after != &arena->buffers && list_entry(after, struct buffer, arena_node)->offset > buffer->offset)
        after = after->prev;
    list_append(after->next, &buffer->arena_node);
}

static void read_form(struct unpack *in, struct buffer *buffer)
{
    buffer->dtype = unpack_u32(in);
    buffer->rank = unpack_u32(in);
    unpack_bytes(in, buffer->dims, sizeof(buffer->dims));
    buffer->offset = unpack_u64(in);
    buffer->size = unpack_u64(in);
    unpack_bytes(in, &buffer->encoding, sizeof(buffer->encoding));
    buffer->version = unpack_u32(in);
    buffer->keep = unpack_u32(in);
    buffer->has_receipt = unpack_u32(in);
    unpack_bytes(in, &buffer->receipt, sizeof(buffer->receipt));
    if (in->left >= sizeof(buffer->park)) /* since version 7 */
        unpack_bytes(in, &buffer->park, sizeof(buffer->park));
    if (!hbm_codec_name(buffer->park.encoding.codec)) /* a newer build's */
        buffer->park = (struct parking){0};
    if (in->left >= sizeof(buffer->quality)) /* since version 8 */
        unpack_bytes(in, &buffer->quality, sizeof(buffer->quality));
}

int readopt_buffer(struct readopt *readopt, struct ledger_row *row)
{
    struct core *core = readopt->core;
    struct unpack *in = &row->payload;
    struct arena *arena = arena_get(core, unpack_u64(in));
    uint64_t model_id = unpack_u64(in);
    struct model *model = model_id ? model_get(core, model_id) : NULL;
    _cleanup_free_ struct buffer *buffer = calloc(1, sizeof(*buffer));

    uint64_t parent = unpack_u64(in); /* linked later */
    const char *name = unpack_text(in);
    bool listed = unpack_u32(in);
    _cleanup_free_ char *copy = name ? strdup(name) : NULL;
    if (!buffer || (name && !copy))
        return -ENOMEM;
    read_form(in, buffer);
    if (in->failed || buffer->rank > HBM_RANK_MAX)
        return drop_row(readopt, row, "its row is damaged");
    if (model_id && !model) { /* half of it was made, or half removed: that is not worth a line a buffer */
        ledger_drop(core, row->id);
        return 0;
    }
    if (!arena)
        return drop_row(readopt, row, "its arena does not either");
    struct account *account = account_of(core, arena->owner);
    if (!account || idmap_put(&core->ids, row->id, buffer) < 0)
        return -ENOMEM;
    buffer->id = row->id;
    buffer->core = core;
    buffer->arena = arena;
    buffer->model = model;
    buffer->name = TAKE_PTR(copy);
    list_init(&buffer->model_node);
    list_append(&core->buffers, &buffer->node);
    insert_by_offset(arena, buffer);
    account_charge_anyway(account, ACCOUNT_BUFFERS, 1);
    core->n_buffers++;
    struct buffer *kept = TAKE_PTR(buffer); /* the catalog's now */
    /* A model that lost its name to another has lost its buffers' names too; a part's follows its parent's. */
    if (!listed || !kept->name || parent || (model && !model->listed))
        return 0;
    return list_again(&core->buffer_names, owner_scope(arena->owner, arena->shared), kept->name, kept, &kept->listed);
}

static bool has_parts(const struct buffer *buffer)
{
    FOR_EACH_PART(part, buffer)
        return part;
    return false;
}

int readopt_part(struct readopt *readopt, struct ledger_row *row)
{
    struct buffer *buffer = buffer_get(readopt->core, row->id);
    struct unpack *in = &row->payload;

    char ignored[HBM_DETAIL_MAX];

    unpack_u64(in);
    unpack_u64(in);
    struct buffer *parent = buffer_get(readopt->core, unpack_u64(in));
    if (!buffer || !parent || parent == buffer || parent->arena != buffer->arena)
        return 0;
    unsigned part = part_of_dtype(buffer->dtype, parent->encoding.codec);
    if (parent->parts[part] || parent->parent || has_parts(buffer)) /* one each, and a part has none */
        return 0;
    buffer->parent = parent;
    parent->parts[part] = buffer;
    int error = buffer->name && parent->listed ? buffer_list(buffer, ignored) : 0;
    return error == HBM_E_NO_MEMORY ? -ENOMEM : 0;
}

/* ---- What was observed of buffers ---- */

/* False: memory is out. */
static bool read_bins(struct unpack *in, struct observation *observation)
{
    if (!observation->seen.imported && !(observation->bins = calloc(JOB_OBSERVE_BINS, sizeof(*observation->bins))))
        return false;
    for (uint32_t left = unpack_u32(in); left && !in->failed; left--) {
        uint32_t bin = unpack_u32(in);
        uint64_t count = unpack_u64(in);

        if (bin < JOB_OBSERVE_BINS && observation->bins)
            observation->bins[bin] = count;
    }
    return true;
}

static int drop_observation(struct readopt *readopt, struct ledger_row *row, struct observation *observation)
{
    free(observation->bins);
    free(observation);
    return row ? drop_row(readopt, row, "its row is damaged") : -ENOMEM;
}

int readopt_observation(struct readopt *readopt, struct ledger_row *row)
{
    struct core *core = readopt->core;
    struct unpack *in = &row->payload;
    struct buffer *buffer = buffer_get(core, unpack_u64(in));

    if (!buffer || buffer->observation)
        return drop_row(readopt, row, buffer ? "its buffer has another" : "its buffer does not either");
    struct account *account = account_of(core, buffer->arena->owner);
    struct observation *observation = account ? calloc(1, sizeof(*observation)) : NULL;
    if (!observation)
        return -ENOMEM;
    unpack_bytes(in, &observation->seen, sizeof(observation->seen));
    if (!read_bins(in, observation))
        return drop_observation(readopt, NULL, observation);
    if (in->failed)
        return drop_observation(readopt, row, observation);
    if (idmap_put(&core->ids, row->id, observation) < 0)
        return drop_observation(readopt, NULL, observation);
    observation->id = row->id;
    observation->buffer = buffer;
    buffer->observation = observation;
    account_charge_anyway(account, ACCOUNT_OBSERVATIONS, 1);
    return 0;
}
