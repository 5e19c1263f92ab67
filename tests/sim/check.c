/* What must hold after every step, and what must be left when all has come to rest. */
#include <inttypes.h>
#include <sys/stat.h>

#include "daemon/core/observation.h"
#include "tests/sim/sim.h"

static uint64_t ino_of(int fd)
{
    struct stat status;

    CHECK(!fstat(fd, &status));
    return status.st_ino;
}

/* ---- Buffers ---- */

/* Had waited for the change that this step has made. */
static bool is_fresh(const struct holding *holding, const struct arena *arena)
{
    return holding->step == sim.step && holding->extent == arena->extent->id;
}

static bool has_writer(const struct arena *arena)
{
    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        for (unsigned i = 0; i < held->n_holdings; i++) {
            const struct holding *holding = &held->holdings[i];
            const struct known *known = known_get(holding->buffer);
            if (held->access == HBM_RW && known && known->arena == arena->id && !holding->frozen &&
                !is_fresh(holding, arena))
                return true;
        }
    }
    return false;
}

/* Its arena took another form: whoever has it mapped keeps the old one. */
static void freeze(const struct arena *arena)
{
    list_for_each (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        for (unsigned i = 0; i < held->n_holdings; i++) {
            struct holding *holding = &held->holdings[i];
            const struct known *known = known_get(holding->buffer);
            if (!known && held->part)
                known = known_get(held->buffer);
            if (holding->frozen || !known || known->arena != arena->id || is_fresh(holding, arena))
                continue;
            holding->frozen = true;
            holding->tag = known->tag;
            struct view *view = held->delivered ? client_view(held->client, holding->slot) : NULL;
            if (view)
                view->frozen = true;
        }
    }
}

/* Memory that was one's never becomes another's, whatever extent it is by then. */
static void check_owner(const struct arena *arena)
{
    struct memory *memory = &sim.memory[arena->extent->id % MEMORY];

    if (arena->extent->fd < 0 || memory->extent == arena->extent->id)
        return;
    *memory = (struct memory){arena->extent->id, ino_of(arena->extent->fd), arena->owner};
    for (unsigned i = 0; i < MEMORY; i++)
        CHECK(sim.memory[i].ino != memory->ino || owner_equal(sim.memory[i].owner, arena->owner));
}

static void check_form(struct known *known, const struct buffer *buffer)
{
    if (!memcmp(&known->encoding, &buffer->encoding, sizeof(known->encoding)) && known->version == buffer->version)
        return;
    CHECK(sim.recoded == sim.step || sim.doing.any); /* forms change by compress and decompress alone */
    CHECK(!has_writer(buffer->arena));
    CHECK(buffer->version > known->version);
    freeze(buffer->arena);
    known->encoding = buffer->encoding;
    known->version = buffer->version;
}

static void check_buffer(struct known *known, const struct buffer *buffer)
{
    const struct arena *arena = buffer->arena;
    const struct extent *extent = arena->extent;
    struct form form = form_there(buffer);

    CHECK(owner_equal(arena->owner, known->owner) && arena->shared == known->shared && arena->mode == known->mode);
    CHECK(buffer->keep == known->keep && (buffer->model ? buffer->model->id : 0) == known->model);
    CHECK(!strcmp(buffer->name ? buffer->name : "", known->name));
    CHECK(!buffer->model || !strncmp(known->name, buffer->model->name, strlen(buffer->model->name)));
    for (unsigned i = 0; i < PARTS && !known->opaque; i++)
        CHECK(part_has(i, buffer->encoding.codec) == !!buffer->parts[i]);
    CHECK(form.offset + form.size <= extent->size);
    CHECK(extent->lost == known->lost);
    CHECK(owner_equal(extent->account->owner, known->owner));  /* what was exported stays with its owner */
    /* What may be written where it lies is hashed no more: whatever became of it is what it is. */
    if (known->damaged && extent->exported && !extent->has_checksum)
        known->opaque = true, known->damaged = false;
    CHECK(!known->damaged || arena_tier(arena) != HBM_TIER_DEVICE); /* seen on its way back */
    if (!known->opaque && !known->lost && !known->damaged)
        CHECK(contents_read(extent_fd(extent), &form) == known->tag);
}

/* Every batch was of all its elements, which the world counts in one bin. */
static void check_observations(void)
{
    uint64_t observed = 0, charged = 0;

    list_for_each (node, &core()->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        const struct observation *observation = buffer->observation;
        uint64_t elements = 0;
        if (!observation)
            continue;
        hbm_shape_elements(buffer->dims, buffer->rank, &elements);
        CHECK(observation->buffer == buffer && observation_get(core(), observation->id) == observation);
        CHECK(observation->seen.batches && observation->seen.elements == observation->seen.batches * elements);
        CHECK(observation->bins && observation->bins[0x3f80] == observation->seen.elements);
        observed++;
    }
    list_for_each (node, &core()->accounts)
        charged += list_entry(node, struct account, node)->use[ACCOUNT_OBSERVATIONS];
    CHECK(observed == charged);
}

static void check_known(void)
{
    list_for_each (node, &sim.known) {
        struct known *known = list_entry(node, struct known, node);
        struct buffer *buffer = buffer_get(core(), known->id);
        if (buffer)
            check_form(known, buffer);
    }
    list_for_each_safe (node, &sim.known) {
        struct known *known = list_entry(node, struct known, node);
        struct buffer *buffer = buffer_get(core(), known->id);
        const struct known_model *model = known->model ? known_model(known->model) : NULL;
        bool lives = is_leased(known) || (known->keep && !known->freed) ||
                     (model && (model->listed || model_is_leased(model)));
        if (lives != (buffer != NULL))
            trace("buffer %llx \"%s\" of model %llx %s", number(known->id), known->name, number(known->model),
                  lives ? "is gone" : "is still there");
        CHECK(lives == (buffer != NULL));
        if (buffer) {
            check_buffer(known, buffer);
            continue;
        }
        list_unlink(&known->node);
        free(known);
    }
    list_for_each (node, &core()->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        CHECK(known_get(buffer->parent ? buffer->parent->id : buffer->id));
    }
}

/* What is kept of it is what a walk over its buffers gives. */
static void check_weight(const struct model *model)
{
    uint64_t all = 0, away = 0, leases = 0;

    list_for_each (node, &model->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, model_node);
        leases += buffer->n_leases;
        FOR_EACH_PART(part, buffer)
            leases += part->n_leases;
        all += buffer->size;
        away += arena_tier(buffer->arena) != HBM_TIER_DEVICE || buffer->arena->transition ? buffer->size : 0;
    }
    CHECK(model->weight == all && model->weight_away == away && model->n_buffer_leases == leases);
}

static void check_models(void)
{
    list_for_each_safe (node, &sim.models) {
        struct known_model *known = list_entry(node, struct known_model, node);
        const struct model *model = model_get(core(), known->id);
        CHECK((known->listed || model_is_leased(known)) == (model != NULL));
        if (model) {
            CHECK(model->listed == known->listed && !strcmp(model->name, known->name));
            CHECK(owner_equal(model->owner, known->owner) && (model->state == MODEL_SEALED) == known->sealed);
            continue;
        }
        list_unlink(&known->node);
        free(known);
    }
    list_for_each (node, &core()->models) {
        const struct model *model = list_entry(node, struct model, node);
        CHECK(known_model(model->id) || (model->state == MODEL_BUILDING && !model->builder_lease));
        check_weight(model);
    }
}

/* ---- Names ---- */

static bool is_in(struct owner scope, struct owner owner, bool shared)
{
    return owner_equal(scope, owner_scope(owner, shared));
}

static void check_name(struct owner scope, const char *name)
{
    const struct buffer *found = names_find(&core()->buffer_names, scope, name);
    const struct known *wanted = NULL;

    list_for_each (node, &sim.known) {
        const struct known *known = list_entry(node, struct known, node);
        const struct known_model *model = known->model ? known_model(known->model) : NULL;
        if (strcmp(known->name, name) || !is_in(scope, known->owner, known->shared) || (model && !model->listed))
            continue;
        CHECK(!wanted); /* one of a name */
        wanted = known;
    }
    if (found && found->parent) /* a part: by its parent's name */
        CHECK(!wanted && !strncmp(found->name, found->parent->name, strlen(found->parent->name)));
    else
        CHECK((found ? found->id : 0) == (wanted ? wanted->id : 0));
}

static void check_names(void)
{
    static const char *const names[] = {"a", "b", "a.scale", "c/d", "m/x", "m/y", "n/x", "a@fp16", "z"};
    static const struct owner scopes[] = {{0, 1000}, {0, 1001}, {1, 1000}, {0, 0}, {0, UINT32_MAX}};

    check_name(scopes[random_below(&sim.random, 5)], names[random_below(&sim.random, 9)]);
}

/* ---- Leases and sessions ---- */

static void check_view(const struct client *client, struct session *session, const struct view *view)
{
    const struct mapping *mapping = mapping_by_slot(session, view->slot);
    uint64_t word = client->words[view->slot];

    CHECK(mapping && mapping->access == view->access);
    CHECK(view->present == !(word & LOCKWORD_AWAY));
    if (!mapping->arena != view->frozen)
        trace("client %td slot %u arena %llx: %s", client - sim.clients, view->slot, number(view->arena),
              view->frozen ? "not retired" : "retired");
    CHECK(!mapping->arena == view->frozen);
    if (!view->present)
        return;
    /* Nothing is moved behind the back of who has it mapped. */
    CHECK(mapping->present);
    CHECK(view->frozen || mapping->extent == mapping->arena->extent);
    CHECK(mapping->extent->tier == HBM_TIER_DEVICE ||
          (mapping->extent->tier == HBM_TIER_HOST && mapping->extent->exported));
    CHECK((mapping->extent->tier == HBM_TIER_HOST) == !!(word & LOCKWORD_HOST));
    /* It is live or in place, or was when it was mapped: as long as nobody has moved it since. */
    CHECK(mapping->access == HBM_RO || mapping->extent->tier == HBM_TIER_DEVICE || !mapping->extent->has_checksum);
    CHECK(view->frozen || mapping->extent->device == mapping->arena->device);
    if (mapping->extent->fd >= 0)
        CHECK(ino_of(mapping->extent->fd) == view->ino);
}

static void check_words(const struct client *client, const struct session *session)
{
    list_for_each (node, &session->mappings) {
        const struct mapping *mapping = list_entry(node, struct mapping, session_node);
        bool asked = client->words[mapping->slot] & LOCKWORD_RECLAIM;
        CHECK(session->slots[mapping->slot] == mapping && mapping->n_leases);
        CHECK(!mapping->reclaimed || (mapping->arena && mapping->arena->reclaim));
        CHECK(!asked || mapping->reclaimed);
        CHECK(mapping->extent->refs && (!mapping->arena || arena_get(core(), mapping->arena->id)));
    }
}

/* Quiescent: its process has ended, and the driver lists it no more. */
static bool may_be_released(const struct client *client)
{
    bool holds = false, on_gpu = false;

    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        if (held->client != client)
            continue;
        holds = true;
        on_gpu |= held->on_gpu && held->access == HBM_RW;
    }
    if (client->state != CLIENT_GONE)
        return false;
    if (client->clean || !holds || (client->process_ended && !on_gpu))
        return true;
    return client->process_ended && (!client->listed || sim.world.now >= client->ended_at + 10000) &&
           (client->pid > 0 || sim.world.now >= client->ended_at + 10000);
}

static bool is_as_it_should_be(const struct client *client, const struct session *session)
{
    switch (client->state) {
    case CLIENT_NONE:
        return false;
    case CLIENT_GREETS:
    case CLIENT_UP:
        return session->state == SESSION_OPEN;
    case CLIENT_DOWN:
        return session->state == SESSION_DETACHED;
    case CLIENT_GONE:
        break;
    }
    return session->state == SESSION_QUARANTINED || session->free_when_stored || client->unheard;
}

static void check_session(struct client *client)
{
    const struct session *session = client_session(client);

    if (session) {
        CHECK(is_as_it_should_be(client, session));
        return;
    }
    CHECK(client->state == CLIENT_NONE || may_be_released(client));
    list_for_each_safe (node, &sim.held)
        if (list_entry(node, struct held, node)->client == client)
            held_drop(list_entry(node, struct held, node));
    if (client->process_ended || client->clean)
        client_forget(client);
}

static void check_page(const struct client *client)
{
    struct session *session = client_session(client);

    if (!session || !client->words || client->clean)
        return;
    check_words(client, session);
    for (unsigned i = 0; i < VIEWS; i++)
        if (client->views[i].leases)
            check_view(client, session, &client->views[i]);
}

static void check_leases(void)
{
    unsigned n = 0, leases = 0;

    list_for_each (node, &sim.held) {
        const struct held *held = list_entry(node, struct held, node);
        const struct lease *lease = lease_get(core(), held->id);
        CHECK(lease && lease->session->id == held->client->session && lease->access == held->access);
        CHECK((lease->model ? lease->model->id : 0) == held->model && lease->builder == held->builder);
        CHECK(held->part ? lease->buffer->id == held->part
                         : !lease->buffer || lease->buffer->id == held->buffer);
        n++;
    }
    list_for_each (node, &core()->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->leases)
            leases++;
    CHECK(n == leases && n == core()->n_leases);
    list_for_each (node, &core()->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        unsigned own = 0;
        list_for_each (inner, &sim.held) {
            const struct held *held = list_entry(inner, struct held, node);
            own += buffer->parent ? held->part == buffer->id
                                  : !held->part && held->buffer == buffer->id;
        }
        CHECK(buffer->n_leases == own);
    }
}

/* ---- Memory ---- */

static bool is_listed(const struct arena *arena)
{
    const struct extent *extent = arena->extent;
    const struct device *device = extent->tier == HBM_TIER_DEVICE ? extent->device : arena->device;

    list_for_each (node, &device->recent[extent->tier][arena->priority])
        if (list_entry(node, struct arena, recent_node) == arena)
            return true;
    return false;
}

/* What the daemon moves by itself: nothing that was never to be, and nobody is refused for it. */
static void check_pressure(const struct arena *arena)
{
    const struct transition *moves = arena->transition;

    CHECK(is_listed(arena));
    CHECK(!moves || !moves->gives_way || moves->cancelled || arena->priority != PRIORITY_NEVER);
}

static void check_arenas(void)
{
    list_for_each (node, &core()->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        CHECK(!list_empty(&arena->buffers) && arena->extent->refs);
        /* Elsewhere than on its own device it is device memory, which clients have not mapped. */
        CHECK(arena->device == arena->extent->device || arena_tier(arena) == HBM_TIER_PEER);
        CHECK(!arena->reclaim || arena->transition);
        CHECK(!arena->live || (arena_tier(arena) == HBM_TIER_HOST && arena_is_leased(arena)));
        check_pressure(arena);
        check_owner(arena);
        for (const struct list *other = node->next; other != &core()->arenas; other = other->next)
            CHECK(list_entry(other, struct arena, node)->extent != arena->extent);
    }
    list_for_each (node, &core()->devices) {
        const struct device *device = list_entry(node, struct device, node);
        for (unsigned tier = 0; tier < HBM_TIERS; tier++)
            CHECK(device->used[tier] <= device->capacity[tier]);
        CHECK(device->pooled <= device->used[HBM_TIER_HOST]);
        CHECK(device->ahead.bytes <= device->pooled);
    }
}

void check_all(void)
{
    for (unsigned i = 0; i < CLIENTS; i++)
        check_session(&sim.clients[i]);
    check_known();
    check_observations();
    check_models();
    for (unsigned i = 0; i < CLIENTS; i++)
        check_page(&sim.clients[i]);
    for (unsigned i = 0; i < CLIENTS; i++)
        if (sim.clients[i].state != CLIENT_NONE && client_writes_on(&sim.clients[i]))
            client_looks(&sim.clients[i]);
    check_leases();
    check_names();
    check_arenas();
}

/* ---- At rest ---- */

struct census {
    const struct extent *seen[512];
    size_t n;
};

static void note(struct census *census, const struct extent *extent)
{
    for (size_t i = 0; i < census->n; i++)
        if (census->seen[i] == extent)
            return;
    CHECK(census->n < 512);
    census->seen[census->n++] = extent;
}

static void check_device(const struct census *census, const struct device *device)
{
    uint64_t used[HBM_TIERS] = {0};

    for (size_t i = 0; i < census->n; i++)
        if (census->seen[i]->device == device && !census->seen[i]->uncounted)
            used[census->seen[i]->tier] += census->seen[i]->size;
    used[HBM_TIER_HOST] += device->pooled;
    for (unsigned tier = 0; tier < HBM_TIERS; tier++)
        CHECK(device->used[tier] == used[tier]);
}

static void check_account(const struct census *census, const struct account *account)
{
    uint64_t bytes[HBM_TIERS] = {0};
    unsigned buffers = 0, sessions = 0, objects = 0;

    for (size_t i = 0; i < census->n; i++) {
        if (census->seen[i]->account != account)
            continue;
        bytes[census->seen[i]->tier] += census->seen[i]->uncounted ? 0 : census->seen[i]->size;
        objects += census->seen[i]->fd >= 0;
    }
    list_for_each (node, &core()->models) {
        const struct model *model = list_entry(node, struct model, node);
        objects += model->metadata_fd >= 0 && owner_equal(model->owner, account->owner);
    }
    list_for_each (node, &core()->buffers)
        buffers += owner_equal(list_entry(node, struct buffer, node)->arena->owner, account->owner);
    list_for_each (node, &core()->sessions)
        sessions += list_entry(node, struct session, node)->account == account;
    for (unsigned tier = 0; tier < HBM_TIERS; tier++)
        CHECK(account->use[tier] == bytes[tier]);
    CHECK(account->use[ACCOUNT_OBJECTS] == objects);
    CHECK(account->use[ACCOUNT_BUFFERS] == buffers && account->use[ACCOUNT_SESSIONS] == sessions &&
          !account->use[ACCOUNT_OPS]);
}

static unsigned kept_as(const char *name)
{
    unsigned n = 0;

    list_for_each (node, &sim.world.store)
        n += !strcmp(list_entry(node, struct kept, node)->name, name);
    return n;
}

/* The store has every extent, session and model's metadata once, and nothing else. */
static void check_store(const struct census *census)
{
    char name[STORE_NAME_MAX];
    unsigned n = 0, kept = 0;

    for (size_t i = 0; i < census->n; i++) {
        if (census->seen[i]->fd < 0)
            continue;
        extent_store_name(census->seen[i], name);
        CHECK(kept_as(name) == 1);
        n++;
    }
    list_for_each (node, &core()->sessions) {
        const struct session *session = list_entry(node, struct session, node);
        CHECK(kept_as(session->store_pidfd.name) == 1 && kept_as(session->store_page.name) == 1);
        n += 2;
    }
    list_for_each (node, &core()->models)
        n += list_entry(node, struct model, node)->metadata_fd >= 0;
    list_for_each (node, &sim.world.store)
        kept++;
    CHECK(kept == n);
}

void check_at_rest(void)
{
    struct census census = {0};

    CHECK(list_empty(&core()->memory_waiters));
    list_for_each (node, &core()->arenas) {
        const struct arena *arena = list_entry(node, struct arena, node);
        CHECK(!arena->transition && !arena->reclaim && list_empty(&arena->waiters) && list_empty(&arena->early_waiters) &&
              !arena->wanted);
        note(&census, arena->extent);
    }
    list_for_each (node, &core()->sessions)
        list_for_each (inner, &list_entry(node, struct session, node)->mappings) {
            const struct mapping *mapping = list_entry(inner, struct mapping, session_node);
            CHECK(!mapping->reclaimed);
            note(&census, mapping->extent);
            if (mapping->early)
                note(&census, mapping->early);
        }
    list_for_each (node, &core()->devices)
        check_device(&census, list_entry(node, struct device, node));
    list_for_each (node, &core()->accounts)
        check_account(&census, list_entry(node, struct account, node));
    check_store(&census);
    world_digest(&sim.world);
}
