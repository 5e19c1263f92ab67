/* What the core answers: by it, and by nothing else, the model learns. */
#include <fcntl.h>

#include "tests/sim/sim.h"

/* ---- Leases ---- */

static int token_fd(const struct mapping *mapping)
{
    int fd = mapping->present ? extent_fd(mapping->extent) : -1;

    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static void send_lease(const struct ask *ask, const struct lease *lease)
{
    struct letter *letter = calloc(1, sizeof(*letter));

    *letter = (struct letter){.client = ask->client,
                              .incarnation = ask->incarnation,
                              .lease = lease->id,
                              .before = ask->before,
                              .locks = !ask->unlocked,
                              .n = lease->n_mappings};
    CHECK(lease->n_mappings <= HOLDINGS);
    for (unsigned i = 0; i < letter->n; i++) {
        const struct mapping *mapping = lease->mappings[i];
        letter->at[i].slot = mapping->slot;
        letter->at[i].arena = mapping->arena->id;
        letter->at[i].present = mapping->present;
        letter->at[i].access = mapping->access;
        letter->at[i].fd = token_fd(mapping);
        CHECK(!mapping->present || mapping->extent == mapping->arena->extent);
    }
    list_append(&sim.letters, &letter->node);
}

static struct held *record(const struct ask *ask, const struct lease *lease)
{
    struct held *held = calloc(1, sizeof(*held));

    CHECK(lease->session->id == ask->client->session);
    held->client = ask->client;
    held_add(held, lease);
    sim.count.grants++;
    return held;
}

/* Who shares memory trusts each other: else it is a copy of one's own. */
static bool may_map(const struct principal *who, const struct known *known)
{
    return owner_equal(who->owner, known->owner) || who->admin || may_write(who, known) ||
           (known->shared && known->owner.listener == who->owner.listener);
}

static void meet_copy(const struct ask *ask, const struct buffer *copy)
{
    const struct known *original = known_get(ask->id); /* NULL: it is of scales */
    struct form form = {.size = copy->size, .encoding = copy->encoding};
    bool whole =
        original && !original->opaque && !original->damaged && !hbm_codec_scale_bytes(copy->encoding.codec);
    uint64_t tag = whole ? contents_read(copy->arena->extent->fd, &form) : 0;

    CHECK(owner_equal(copy->arena->owner, ask->client->who.owner) && !copy->keep && !copy->name);
    CHECK(!whole || known_had(original, tag, ask->step));
    known_add(copy, tag)->opaque = !whole;
}

static void got_lease(const struct ask *ask, const struct lease *lease)
{
    const struct buffer *buffer = lease->buffer;

    if (ask->kind == ASK_ALLOC) {
        known_add(buffer, 0);
    } else if (buffer && !buffer->parent && !known_get(buffer->id)) {
        meet_copy(ask, buffer);
    } else if (buffer && buffer->parent && !known_get(buffer->parent->id)) {
        CHECK(!"a lease on scales of nothing known");
    }
    struct held *held = record(ask, lease);
    for (unsigned i = 0; i < held->n_holdings && !held->part; i++) {
        const struct known *known = known_get(held->holdings[i].buffer);
        CHECK(known && !known->freed && may_map(&ask->client->who, known));
        CHECK(held->access == HBM_RO || ask->kind == ASK_ALLOC || may_write(&ask->client->who, known));
    }
    send_lease(ask, lease);
}

/* Right now: who waited for the memory of the one that it replaces is granted this one before its builder is answered. */
static bool is_being_committed(uint64_t model)
{
    const struct held *builder = held_get(sim.doing.lease);

    return builder && builder->builder && builder->model == model;
}

static void got_model(const struct ask *ask, const struct lease *lease)
{
    struct model *model = lease->model;

    if (lease->builder) {
        struct known_model *known = calloc(1, sizeof(*known));
        *known = (struct known_model){
            .id = model->id, .owner = model->owner, .shared = model->shared, .listed = model->listed};
        snprintf(known->name, sizeof(known->name), "%.15s", model->name);
        list_append(&sim.models, &known->node);
        list_for_each (node, &model->buffers) {
            struct buffer *buffer = list_entry(node, struct buffer, model_node);
            known_add(buffer, 0)->model = model->id;
            CHECK(owner_equal(buffer->arena->owner, ask->client->who.owner));
        }
    }
    CHECK(known_model(model->id) && (lease->builder || known_model(model->id)->sealed || is_being_committed(model->id)));
    got_lease(ask, lease);
}

static void got_lock(const struct ask *ask, const uint64_t fetched[2])
{
    struct letter *letter = calloc(1, sizeof(*letter));
    struct session *session = client_session(ask->client);

    *letter = (struct letter){.client = ask->client, .incarnation = ask->incarnation, .n = ask->n_slots};
    for (unsigned i = 0; i < ask->n_slots; i++) {
        const struct mapping *mapping = mapping_by_slot(session, ask->slots[i]);
        CHECK(fetched[i / 64] >> (i % 64) & 1 && mapping && mapping->present);
        letter->at[i].slot = ask->slots[i];
        letter->at[i].fd = token_fd(mapping);
    }
    list_append(&sim.letters, &letter->node);
}

static void got_early(const struct ask *ask, const uint64_t *coming)
{
    static const uint64_t fetched[2] = {1};
    struct view *view = client_view(ask->client, ask->slots[0]);

    if (!*coming) {
        got_lock(ask, fetched);
        return;
    }
    const struct mapping *mapping = mapping_by_slot(client_session(ask->client), ask->slots[0]);
    CHECK(view && view->busy && mapping && !mapping->present && mapping->early && mapping->early->fd >= 0);
    CHECK(mapping->early != mapping->arena->extent && owner_equal(mapping->early->account->owner, mapping->arena->owner));
    view->early = EARLY_COMES;
}

/* It has the memory mapped all the same, until it says that it has not. */
static void arrives_not(const struct ask *ask)
{
    struct view *view = client_view(ask->client, ask->slots[0]);

    if (view)
        view->early = EARLY_FAILED;
}

static void refused_lock(const struct ask *ask)
{
    for (unsigned i = 0; i < ask->n_slots; i++) {
        struct view *view = client_view(ask->client, ask->slots[i]);
        if (view)
            view->busy = false;
    }
}

/* ---- The rest ---- */

static void committed(const struct ask *ask, int error)
{
    struct held *held = held_get(ask->id);

    if (lease_get(core(), ask->id)) { /* refused as a whole: it goes on building */
        CHECK(error);
        return;
    }
    struct known_model *model = held ? known_model(held->model) : NULL;
    CHECK(held && model && held->builder);
    model->sealed = ask->commits && !error;
    list_for_each (node, &sim.models) {
        struct known_model *old = list_entry(node, struct known_model, node);
        if (model->sealed && old != model && old->listed && !strcmp(old->name, model->name) &&
            old->shared == model->shared && owner_equal(owner_scope(old->owner, old->shared), owner_scope(model->owner, model->shared)))
            old->listed = false;
    }
    model->listed = model->sealed;
    held_drop(held);
}

static void detached(struct held *held)
{
    CHECK(held);
    if (held->builder) /* given up */
        known_model(held->model)->listed = false;
    held_drop(held);
}

static void freed(uint64_t id)
{
    struct known *known = known_get(id);

    CHECK(known && !known->freed && !is_leased(known)); /* BUSY while leased */
    known->freed = true;
}

static void renamed(const struct ask *ask)
{
    struct known_model *model = known_model(ask->id);
    struct known *known = known_get(ask->id);

    CHECK(model || known);
    if (known)
        snprintf(known->name, sizeof(known->name), "%.31s", ask->to);
    list_for_each (node, &sim.known) {
        struct known *each = list_entry(node, struct known, node);
        char tensor[32];
        if (!model || each->model != model->id)
            continue;
        snprintf(tensor, sizeof(tensor), "%s", strchr(each->name, '/'));
        snprintf(each->name, sizeof(each->name), "%.15s%.15s", ask->to, tensor);
    }
    if (model)
        snprintf(model->name, sizeof(model->name), "%.15s", ask->to);
}

static void got_op(const struct ask *ask, const struct op *op)
{
    struct running *running = calloc(1, sizeof(*running));

    *running = (struct running){.id = op->id,
                                .step = ask->step,
                                .recodes = !strcmp(op->verb, "compress") || !strcmp(op->verb, "decompress") || !strcmp(op->verb, "advise-codec"),
                                .hashes = !strcmp(op->verb, "hash")};
    CHECK(owner_equal(op->who.owner, ask->call.who.owner));
    for (size_t i = 0; i < op->n_rows && i < sizeof(running->originals) / sizeof(*running->originals);
         i++, running->n++)
        running->originals[i] = op->rows[i].buffer;
    for (size_t i = 0; !strcmp(op->verb, "free") && i < op->n_rows; i++)
        freed(op->rows[i].buffer);
    list_append(&sim.running, &running->node);
}

static void removed(uint64_t id)
{
    struct known_model *model = known_model(id);

    CHECK(model && model->sealed && !model_is_leased(model));
    model->listed = false;
}

static void succeeded(const struct ask *ask, void *result)
{
    switch (ask->kind) {
    case ASK_ALLOC:
    case ASK_ATTACH:
        got_lease(ask, result);
        break;
    case ASK_MODEL:
        got_model(ask, result);
        break;
    case ASK_DETACH:
        detached(held_get(ask->id));
        break;
    case ASK_FREE:
        freed(ask->id);
        break;
    case ASK_LOCK:
        got_lock(ask, result);
        break;
    case ASK_EARLY:
        got_early(ask, result);
        break;
    case ASK_ARRIVED:
        got_lock(ask, (const uint64_t[2]){1});
        break;
    case ASK_OP:
        got_op(ask, result);
        break;
    case ASK_RENAME:
        renamed(ask);
        break;
    case ASK_RM:
        removed(ask->id);
        break;
    case ASK_COMMIT:
    case ASK_KICK:
        break;
    }
}

void answered(struct call *call, int error, void *result)
{
    struct ask *ask = container_of(call, struct ask, call);
    bool here = !ask->client || client_is(ask->client, ask->incarnation);

    list_unlink(&ask->node);
    sim.count.answers++;
    sim.count.refusals += error != 0;
    if (error)
        trace("  answer to %d of step %llu: %s: %s", ask->kind, (unsigned long long)ask->step,
              hbm_error_name(error), call->detail);
    CHECK(error <= 0 && error != HBM_E_INTERNAL && memchr(call->detail, 0, sizeof(call->detail)));
    CHECK(sim.world.dead || error != HBM_E_SHUTTING_DOWN);
    if (!sim.world.dead) {
        CHECK(error || !ask->client || here); /* nothing is granted to who has gone */
        if (ask->kind == ASK_COMMIT && here)
            committed(ask, error);
        if (!error)
            succeeded(ask, result);
        else if ((ask->kind == ASK_LOCK || ask->kind == ASK_EARLY) && here)
            refused_lock(ask);
        else if (ask->kind == ASK_ARRIVED && here)
            arrives_not(ask);
    }
    free(ask);
}
