#include "daemon/core/model_build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/fd_reserve.h"
#include "daemon/core/hold.h"
#include "daemon/core/ledger.h"
#include "daemon/core/names.h"
#include "daemon/core/weight.h"
#include "proto/memfd.h"

#define BUFFERS_A_TURN 2048u /* then others are served */
#define TURN_MS 1

struct build {
    struct core *core;
    struct call *call;
    struct model *model;
    struct table table; /* into bytes */
    void *bytes;
    uint64_t *offsets;  /* of each buffer in its arena */
    struct extent_create *creates;
    struct arena **arenas; /* of the groups; NULL: no buffer of it is made yet */
    struct transition hold; /* of these: nobody moves what is half there */
    uint32_t made;          /* buffers */
    struct timer timer;     /* the next turn */
    struct model_wait gone; /* the daemon ends in between */
    struct store_request store_metadata;
    size_t waiting; /* creates and stores under way, plus one while they are being started */
    uint32_t flags; /* as it was asked for */
    bool unlocked;  /* the builder fills by transfers and maps nothing */
    int error;
    char detail[HBM_DETAIL_MAX];
};

static void build_free(struct build *build)
{
    list_unlink(&build->gone.node);
    timer_stop(build->core, &build->timer);
    transition_clear(&build->hold);
    for (uint32_t i = 0; build->creates && i < build->table.header->n_arenas; i++)
        extent_unref(build->creates[i].extent);
    free(build->arenas);
    free(build->creates);
    free(build->offsets);
    free(build->bytes);
    free(build);
}

static void give_up(struct build *build, int error, const char *detail)
{
    list_unlink(&build->gone.node);
    model_free(build->model);
    call_refuse(build->call, error, "%s", detail);
    build_free(build);
}

/* ---- The table against the rules ---- */

static int by_name(const void *left, const void *right, void *strings)
{
    const struct table_buffer *const *a = left, *const *b = right;

    return strcmp((const char *)strings + (*a)->name, (const char *)strings + (*b)->name);
}

static int check_names(const struct table *table, const char *model, char *detail)
{
    uint32_t n = table->header->n_buffers;
    _cleanup_free_ const struct table_buffer **sorted = calloc(n + 1, sizeof(*sorted));
    const char *why;

    if (!sorted) {
        snprintf(detail, HBM_DETAIL_MAX, OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        char full[2 * HBM_NAME_MAX];
        const char *name = table->strings + table->buffers[i].name;
        snprintf(full, sizeof(full), "%s/%s", model, name);
        if (!name_is_valid(full, &why)) {
            snprintf(detail, HBM_DETAIL_MAX, "tensor %.100s: %s", name, why);
            return HBM_E_INVALID;
        }
        sorted[i] = &table->buffers[i];
    }
    qsort_r(sorted, n, sizeof(*sorted), by_name, (void *)table->strings);
    for (uint32_t i = 1; i < n; i++) {
        if (by_name(&sorted[i - 1], &sorted[i], (void *)table->strings) == 0) {
            snprintf(detail, HBM_DETAIL_MAX, "two tensors are named %.200s", table->strings + sorted[i]->name);
            return HBM_E_INVALID;
        }
    }
    return 0;
}

/* Places the buffers of each arena one after the other, aligned; sizes[] gets the arenas' sizes. */
static int place(const struct table *table, uint64_t *offsets, uint64_t *sizes, char *detail)
{
    for (uint32_t i = 0; i < table->header->n_buffers; i++) {
        const struct table_buffer *row = &table->buffers[i];
        uint64_t *end = &sizes[row->arena];
        if (row->encoding.codec != HBM_CODEC_RAW) {
            snprintf(detail, HBM_DETAIL_MAX, "tensor %.200s: a publisher's tensors are raw", table->strings + row->name);
            return HBM_E_INVALID;
        }
        offsets[i] = (*end + HBM_ALIGN - 1) / HBM_ALIGN * HBM_ALIGN;
        if (offsets[i] < *end || __builtin_add_overflow(offsets[i], row->size, end)) {
            snprintf(detail, HBM_DETAIL_MAX, "the size of group %.100s overflows 64 bits", table->strings + table->arenas[row->arena].group);
            return HBM_E_INVALID;
        }
    }
    return 0;
}

static uint64_t layout_hash(const struct table *table)
{
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < table->header->n_buffers; i++) {
        const struct table_buffer *row = &table->buffers[i];
        const char *name = table->strings + row->name, *group = table->strings + table->arenas[row->arena].group;
        uint32_t form[2] = {row->dtype, row->rank};
        XXH3_64bits_update(&state, name, strlen(name) + 1);
        XXH3_64bits_update(&state, group, strlen(group) + 1);
        XXH3_64bits_update(&state, form, sizeof(form));
        XXH3_64bits_update(&state, row->dims, row->rank * sizeof(row->dims[0]));
    }
    return XXH3_64bits_digest(&state);
}

/* ---- The memory ---- */

/* The group's, held until all buffers are made. A group without buffers is nothing that anyone could keep. NULL: memory is
 * out. */
static struct arena *arena_of_group(struct build *build, uint32_t group)
{
    struct model *model = build->model;
    struct arena *arena = build->arenas[group];

    if (arena)
        return arena;
    arena = arena_new(build->core, model->owner, model->shared, model->mode, HBM_HANDLE_FD,
                      build->table.strings + build->table.arenas[group].group, build->creates[group].extent);
    if (!arena)
        return NULL;
    build->creates[group].extent = NULL; /* the arena's now */
    build->arenas[group] = arena;
    arena_prefer(arena, build->flags);
    arena->transition = &build->hold;
    build->hold.plans[build->hold.n++].arena = arena->id;
    model->n_arenas++;
    return arena;
}

static int make_buffer(struct build *build, uint32_t i)
{
    const struct table_buffer *row = &build->table.buffers[i];
    struct model *model = build->model;
    struct arena *arena = arena_of_group(build, row->arena);
    char name[2 * HBM_NAME_MAX];
    int error = 0;

    if (!arena) {
        snprintf(build->detail, sizeof(build->detail), OWNER_OUT_OF_MEMORY);
        return HBM_E_NO_MEMORY;
    }
    snprintf(name, sizeof(name), "%s/%s", model->name, build->table.strings + row->name);
    struct buffer_spec spec = {.name = name,
                               .unlisted = !model->listed,
                               .dtype = row->dtype,
                               .rank = row->rank,
                               .dims = row->dims,
                               .offset = build->offsets[i],
                               .size = row->size};
    struct buffer *buffer = buffer_new(arena, &spec, &error, build->detail);
    if (!buffer) {
        if (list_empty(&arena->buffers))
            arena_free(arena);
        return error;
    }
    buffer->model = model;
    list_append(&model->buffers, &buffer->model_node);
    model->n_buffers++;
    weight_add(buffer);
    ledger_put_buffer(build->core, buffer);
    return 0;
}

static void all_made(struct build *build)
{
    struct call *call = build->call;
    struct model *model = build->model;
    int error = 0;
    struct lease *lease = lease_new_model(call->session, model, HBM_RW, build->unlocked ? WIRE_UNLOCKED : 0, &error, build->detail);

    if (!lease) {
        give_up(build, error, build->detail);
        return;
    }
    list_unlink(&build->gone.node); /* an answer that cannot be sent ends the model, which is nothing to answer again */
    transition_let_go(&build->hold);
    lease->builder = true;
    model->builder_lease = lease->id;
    event_emit(&build->core->events, "model.building", model->id, model->name, model->owner.listener, model->owner.uid,
               call->session->pid, "%u buffers in %u groups", model->n_buffers, model->n_arenas);
    call_done(call, lease);
    build_free(build);
}

/* Their rows too: without the model's, which its builder's commit writes, none of them comes back. */
static void make_some(struct timer *timer)
{
    struct build *build = container_of(timer, struct build, timer);
    uint32_t n = build->table.header->n_buffers, left = n - build->made;
    uint32_t end = build->made + (left < BUFFERS_A_TURN ? left : BUFFERS_A_TURN);
    int error = build->error;

    if (!error && !build->call->session) {
        error = HBM_E_DISCONNECTED;
        snprintf(build->detail, sizeof(build->detail), "the session went away");
    }
    ledger_begin(build->core);
    while (!error && build->made < end)
        error = make_buffer(build, build->made++);
    ledger_end(build->core);
    if (error)
        give_up(build, error, build->detail);
    else if (end < n)
        timer_arm(build->core, &build->timer, TURN_MS);
    else
        all_made(build);
}

/* Nothing but the daemon's end takes a model from whoever makes it. */
static void model_gone(struct model_wait *wait)
{
    struct build *build = container_of(wait, struct build, gone);

    call_refuse(build->call, HBM_E_SHUTTING_DOWN, "the daemon ends");
    build_free(build);
}

static void one_done(struct build *build)
{
    if (--build->waiting)
        return;
    list_append(&build->model->waiters, &build->gone.node);
    make_some(&build->timer);
}

static void fail(struct build *build, int error, const char *detail)
{
    if (build->error)
        return;
    build->error = error;
    snprintf(build->detail, sizeof(build->detail), "%s", detail);
}

static void created(struct extent_create *create)
{
    struct build *build = create->context;

    if (create->error)
        fail(build, create->error, create->detail);
    one_done(build);
}

static void metadata_stored(struct store_request *request)
{
    struct build *build = container_of(request, struct build, store_metadata);

    if (request->refused)
        fail(build, HBM_E_LIMIT, STORE_IS_FULL);
    one_done(build);
}

static int keep_metadata(struct build *build)
{
    const struct table *table = &build->table;
    struct core *core = build->core;
    struct model *model = build->model;

    if (!table->header->metadata_bytes)
        return 0;
    int error = core->keeps ? account_charge(build->call->session->account, ACCOUNT_OBJECTS, 1, build->detail) : 0;
    if (error)
        return error;
    model->is_object = core->keeps;
    model->metadata_fd = memfd_sealed("hbm-metadata", table->metadata, table->header->metadata_bytes);
    if (model->metadata_fd < 0) {
        bool ran_out = fd_ran_out(-model->metadata_fd);
        model->metadata_fd = -1;
        snprintf(build->detail, sizeof(build->detail), "%s", ran_out ? FD_RAN_OUT : "the owner cannot keep the model's metadata");
        return ran_out ? HBM_E_LIMIT : HBM_E_NO_MEMORY;
    }
    model->metadata_bytes = (uint32_t)table->header->metadata_bytes;
    build->store_metadata.fd = model->metadata_fd;
    build->store_metadata.use = STORE_NEW;
    build->store_metadata.done = metadata_stored;
    snprintf(build->store_metadata.name, STORE_NAME_MAX, "m-%016" PRIx64, model->id);
    build->waiting++;
    core->env.store(core->env.context, &build->store_metadata);
    return 0;
}

static void start_creates(struct build *build, struct device *device, const uint64_t *sizes)
{
    for (uint32_t i = 0; i < build->table.header->n_arenas; i++) {
        build->creates[i] = (struct extent_create){.core = build->core,
                                                   .device = device,
                                                   .account = build->call->session->account,
                                                   .tier = HBM_TIER_DEVICE,
                                                   .kind = JOB_EXTENT_DEVICE,
                                                   .size = sizes[i],
                                                   .wait_ms = build->core->limits.memory_wait_ms,
                                                   .done = created,
                                                   .context = build};
        build->waiting++;
        extent_create_start(&build->creates[i]);
    }
}

static struct build *build_new(struct core *core, struct call *call, const struct publish_args *args, bool listed)
{
    const struct table_header *header = args->table.header;
    struct build *build = calloc(1, sizeof(*build));
    size_t size = (size_t)((const char *)args->table.metadata - (const char *)header) + header->metadata_bytes;
    const char *why;

    if (!build)
        return NULL;
    build->core = core;
    build->call = call;
    build->flags = args->flags;
    build->unlocked = args->flags & WIRE_UNLOCKED;
    build->bytes = malloc(size);
    build->offsets = calloc(header->n_buffers + 1, sizeof(*build->offsets));
    build->creates = calloc(header->n_arenas + 1, sizeof(*build->creates));
    build->arenas = calloc(header->n_arenas + 1, sizeof(struct arena *));
    build->hold = (struct transition){.core = core, .verb = "publish", .plans = calloc(header->n_arenas + 1, sizeof(struct plan))};
    list_init(&build->gone.node);
    build->gone.ready = model_gone;
    list_init(&build->timer.node);
    build->timer.fire = make_some;
    build->model = model_new(core, call->who.owner, args->flags & WIRE_SHARED, args->mode, args->name, args->key);
    if (build->bytes) {
        memcpy(build->bytes, header, size);
        table_open(&build->table, build->bytes, size, &why);
    }
    char ignored[HBM_DETAIL_MAX];
    if (build->bytes && build->offsets && build->creates && build->arenas && build->hold.plans && build->model && (!listed || !model_list(build->model, ignored))) {
        build->model->layout_hash = layout_hash(&build->table);
        return build;
    }
    if (build->model)
        model_free(build->model);
    free(build->hold.plans);
    free(build->arenas);
    free(build->creates);
    free(build->offsets);
    free(build->bytes);
    free(build);
    return NULL;
}

void model_build(struct core *core, struct call *call, const struct publish_args *args, bool listed)
{
    struct device *device = listener_device(core, &call->who, args->device);
    _cleanup_free_ uint64_t *sizes = calloc(args->table.header->n_arenas + 1, sizeof(*sizes));
    char detail[HBM_DETAIL_MAX] = "";
    int error = check_names(&args->table, args->name, detail);

    int unready = device_check_ready(device, detail);
    if (unready) {
        call_refuse(call, unready, "%s", detail);
        return;
    }
    struct build *build = error || !sizes ? NULL : build_new(core, call, args, listed);
    if (!build) {
        call_refuse(call, error ? error : HBM_E_NO_MEMORY, "%s", error ? detail : OWNER_OUT_OF_MEMORY);
        return;
    }
    error = place(&build->table, build->offsets, sizes, build->detail);
    build->waiting = 1;
    if (!error)
        error = keep_metadata(build);
    if (error)
        build->error = error;
    else
        start_creates(build, device, sizes);
    one_done(build);
}

void model_remember(struct model *model)
{
    struct arena *last = NULL;

    ledger_put_model(model->core, model);
    list_for_each(node, &model->buffers) {
        struct arena *arena = list_entry(node, struct buffer, model_node)->arena;
        if (arena != last)
            ledger_put_arena(model->core, arena);
        last = arena;
    }
}
