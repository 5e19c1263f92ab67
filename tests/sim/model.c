/* The model: what the clients have been told, and so may count on. */
#include "tests/sim/sim.h"

struct known *known_get(uint64_t id)
{
    list_for_each (node, &sim.known)
        if (list_entry(node, struct known, node)->id == id)
            return list_entry(node, struct known, node);
    return NULL;
}

struct known_model *known_model(uint64_t id)
{
    list_for_each (node, &sim.models)
        if (list_entry(node, struct known_model, node)->id == id)
            return list_entry(node, struct known_model, node);
    return NULL;
}

struct held *held_get(uint64_t id)
{
    list_for_each (node, &sim.held)
        if (list_entry(node, struct held, node)->id == id)
            return list_entry(node, struct held, node);
    return NULL;
}

struct known *known_add(const struct buffer *buffer, uint64_t tag)
{
    struct known *known = calloc(1, sizeof(*known));
    const struct arena *arena = buffer->arena;

    CHECK(known && !known_get(buffer->id)); /* an id is given once */
    for (unsigned i = 0; i < GIVEN; i++)
        CHECK(sim.given[i] != buffer->id);
    sim.given[sim.n_given++ % GIVEN] = buffer->id;
    *known = (struct known){.id = buffer->id,
                            .model = buffer->model ? buffer->model->id : 0,
                            .owner = arena->owner,
                            .shared = arena->shared,
                            .keep = buffer->keep,
                            .lost = arena->extent->lost,
                            .mode = arena->mode,
                            .tag = tag,
                            .encoding = buffer->encoding,
                            .version = buffer->version,
                            .arena = arena->id};
    snprintf(known->name, sizeof(known->name), "%.31s", buffer->name ? buffer->name : "");
    list_append(&sim.known, &known->node);
    return known;
}

void known_write(struct known *known, uint64_t tag)
{
    known->was[known->n_was % HISTORY] = known->tag;
    known->until[known->n_was++ % HISTORY] = sim.step;
    known->tag = tag;
}

bool known_had(const struct known *known, uint64_t tag, uint64_t since)
{
    for (unsigned i = 0; i < HISTORY && i < known->n_was; i++)
        if (known->was[i] == tag && known->until[i] >= since)
            return true;
    /* What is no longer written down was, if it was at all, before the oldest that is. */
    bool forgotten = known->n_was > HISTORY && known->until[known->n_was % HISTORY] >= since;
    return known->tag == tag || forgotten;
}

bool may_write(const struct principal *who, const struct known *known)
{
    if (who->admin)
        return true;
    if (owner_equal(who->owner, known->owner))
        return known->mode & 0200;
    return who->owner.listener == known->owner.listener && known->mode & 0002;
}

bool is_leased(const struct known *known)
{
    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        if (held->buffer == known->id || (known->model && held->model == known->model))
            return true;
    }
    return false;
}

bool model_is_leased(const struct known_model *model)
{
    list_for_each (node, &sim.held)
        if (list_entry(node, struct held, node)->model == model->id)
            return true;
    list_for_each (node, &sim.known) {
        const struct known *known = list_entry(node, struct known, node);
        if (known->model == model->id && is_leased(known))
            return true;
    }
    return false;
}

/* ---- Leases ---- */

static void hold(struct held *held, const struct buffer *buffer, const struct lease *lease)
{
    struct holding *holding = &held->holdings[held->n_holdings++];

    CHECK(held->n_holdings <= HOLDINGS);
    *holding = (struct holding){
        .buffer = buffer->id, .form = form_of(buffer), .step = sim.step, .extent = buffer->arena->extent->id};
    for (unsigned i = 0; i < lease->n_mappings; i++)
        if (lease->mappings[i]->arena == buffer->arena)
            holding->slot = lease->mappings[i]->slot;
}

void held_add(struct held *held, const struct lease *lease)
{
    const struct buffer *buffer = lease->buffer;

    CHECK(lease->n_mappings <= HOLDINGS);
    held->id = lease->id;
    held->access = lease->access;
    held->builder = lease->builder;
    held->n_slots = lease->n_mappings;
    for (unsigned i = 0; i < held->n_slots; i++) {
        held->slots[i] = lease->mappings[i]->slot;
        held->on_gpu |= lease->mappings[i]->arena->device->is_cuda; /* a peer that it lies with meanwhile has it mapped for nobody */
    }
    if (buffer) {
        held->part = buffer->parent ? buffer->id : 0;
        held->buffer = buffer->parent ? buffer->parent->id : buffer->id;
        hold(held, buffer, lease);
    } else {
        held->model = lease->model->id;
        list_for_each (node, &lease->model->buffers)
            hold(held, list_entry(node, struct buffer, model_node), lease);
    }
    list_append(&sim.held, &held->node);
}

void held_drop(struct held *held)
{
    CHECK(held);
    list_unlink(&held->node);
    free(held);
}

void model_give_up(const struct client *client)
{
    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        if (held->builder && held->client == client)
            known_model(held->model)->listed = false;
    }
}

/* ---- Restarts ---- */

static void forget_model(struct known_model *model)
{
    list_for_each_safe (node, &sim.known) {
        struct known *known = list_entry(node, struct known, node);
        if (known->model == model->id)
            known->freed = true, known->model = 0, known->keep = false;
    }
    list_for_each_safe (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->model != model->id)
            continue;
        client_leaves(held);
        held_drop(held);
    }
    list_unlink(&model->node);
    free(model);
}

void model_forget(void)
{
    memset(sim.given, 0, sizeof(sim.given)); /* what is there will be met as new */
    while (!list_empty(&sim.held))
        held_drop(list_entry(list_first(&sim.held), struct held, node));
    while (!list_empty(&sim.models))
        forget_model(list_entry(list_first(&sim.models), struct known_model, node));
    while (!list_empty(&sim.known)) {
        struct known *known = list_entry(list_first(&sim.known), struct known, node);
        list_unlink(&known->node);
        free(known);
    }
}

static void meet_model(const struct model *model)
{
    struct known_model *known = known_model(model->id);

    CHECK(model->state == MODEL_SEALED);
    if (!known) {
        CHECK(sim.doing.makes);
        known = calloc(1, sizeof(*known));
        *known =
            (struct known_model){.id = model->id, .owner = model->owner, .shared = model->shared, .sealed = true};
        list_append(&sim.models, &known->node);
    }
    CHECK(known->listed == model->listed || sim.doing.any);
    known->listed = model->listed;
    known->sealed = true;
    if (sim.doing.renames)
        snprintf(known->name, sizeof(known->name), "%.15s", model->name);
}

/* cuda-ipc memory goes with the worker, and the worker with its owner. */
static bool is_lost(const struct extent *extent)
{
    for (unsigned i = 0; i < sim.n_lost; i++)
        if (sim.lost[i] == extent->id)
            return true;
    return extent->kind == JOB_EXTENT_CUDA_IPC;
}

static void meet_buffer(const struct buffer *buffer)
{
    struct known *known = known_get(buffer->id);
    const struct extent *extent = buffer->arena->extent;
    struct form form = form_there(buffer);

    if (!known) {
        CHECK(sim.doing.makes);
        uint64_t tag = extent->lost ? 0 : contents_read(extent_fd(extent), &form);
        known = known_add(buffer, tag);
        known->opaque = tag == UINT64_MAX;
    }
    known->lost |= is_lost(extent);
    if (sim.doing.renames)
        snprintf(known->name, sizeof(known->name), "%.31s", buffer->name ? buffer->name : "");
}

static void meet_lease(const struct lease *lease)
{
    struct held *held = held_get(lease->id);

    if (held) {
        held->builder = lease->builder; /* a builder's is one like others, once the model is sealed */
        return;
    }
    CHECK(sim.doing.any);
    held = calloc(1, sizeof(*held));
    for (unsigned i = 0; i < CLIENTS; i++)
        if (sim.clients[i].session == lease->session->id)
            held->client = &sim.clients[i];
    CHECK(held->client);
    held_add(held, lease);
}

/* Only what the dying owner was about may be gone. */
static void miss_what_went(void)
{
    list_for_each_safe (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        if (lease_get(core(), held->id) || !client_session(held->client))
            continue;
        trace("  client %td has lost lease %llx", held->client - sim.clients, number(held->id));
        CHECK(sim.doing.any &&
              (sim.doing.lease == held->id || held->client->state == CLIENT_GONE || !held->delivered));
        client_leaves(held);
        held_drop(held);
    }
    list_for_each_safe (node, &sim.models) {
        struct known_model *model = list_entry(node, struct known_model, node);
        if (model_get(core(), model->id))
            continue;
        CHECK(!model->listed || sim.doing.frees);
        forget_model(model);
    }
    list_for_each (node, &sim.known) {
        struct known *known = list_entry(node, struct known, node);
        if (!buffer_get(core(), known->id) && known->keep && !known->freed) {
            trace("  buffer %llx \"%s\" has not come back", number(known->id), known->name);
            CHECK(sim.doing.frees);
        }
        known->freed |= !buffer_get(core(), known->id) && sim.doing.frees;
    }
}

void model_meets_restart(void)
{
    list_for_each_safe (node, &sim.models) {
        struct known_model *model = list_entry(node, struct known_model, node);
        if (!model->sealed && !model_get(core(), model->id))
            forget_model(model);
    }
    list_for_each (node, &core()->models)
        meet_model(list_entry(node, struct model, node));
    list_for_each (node, &core()->buffers)
        if (!list_entry(node, struct buffer, node)->parent)
            meet_buffer(list_entry(node, struct buffer, node));
    list_for_each (node, &core()->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->leases)
            meet_lease(list_entry(inner, struct lease, node));
    miss_what_went();
}
