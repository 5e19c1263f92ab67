/* What clients and operators ask for: mostly sense, now and then none. */
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "tests/sim/sim.h"

static unsigned below(unsigned n)
{
    return random_below(&sim.random, n);
}

static bool one_in(unsigned n)
{
    return random_one_in(&sim.random, n);
}

#define ONE_OF(array) ((array)[below(sizeof(array) / sizeof((array)[0]))])

/* One that the asker sees, mostly; rather one that is being moved. */
static const struct buffer *any_buffer(const struct client *client)
{
    const struct buffer *chosen = NULL;
    bool blind = one_in(12), moving = one_in(2);
    unsigned n = 0;

    list_for_each (node, &core()->buffers) {
        const struct buffer *buffer = list_entry(node, struct buffer, node);
        if (!blind && client && !buffer_visible(buffer, &client->who))
            continue;
        if (moving && buffer->arena->transition)
            return buffer;
        if (one_in(++n))
            chosen = buffer;
    }
    return chosen;
}

static const char *a_name(void)
{
    static const char *const names[] = {"a", "b", "c/d", "a.scale", "a.zero", "z", "a@fp16", "m/x", "n/x.scale"},
                             *const bad[] = {"", "..", "x*", "q:r", "a//b", "\xff"};
    return one_in(16) ? ONE_OF(bad) : ONE_OF(names);
}

static const char *a_model(void)
{
    static const char *const names[] = {"m", "n", "m", "n", "m", "n", "m", "n", "o", "m/x", "~1000/m", ""};
    return ONE_OF(names);
}

/* The name of something that is there, as its owner says it. */
static const char *a_name_in_use(const struct client *client)
{
    const struct buffer *buffer = any_buffer(client);

    return buffer && buffer->name ? buffer->name : a_name();
}

static const char *a_selector(const struct client *client)
{
    static const char *const names[] = {"a",       "*", "m/*",    "model:m", "model:n", "group:g", "~1000/a",
                                        "a.scale", "?", "id:0x0", "[",       "m/x",     "n/y",     "nothing"};
    static char text[HBM_NAME_MAX + 16];
    const struct buffer *buffer = any_buffer(client);

    if (!buffer || one_in(6))
        return ONE_OF(names);
    if (buffer->model && one_in(2))
        snprintf(text, sizeof(text), one_in(2) ? "model:%s" : "%s/*", buffer->model->name);
    else if (buffer->name && one_in(2))
        snprintf(text, sizeof(text), "%s", buffer->name);
    else
        snprintf(text, sizeof(text), "id:0x%016llx", (unsigned long long)buffer->id);
    return text;
}

static struct session *session_of(const struct client *client)
{
    return client ? client_session(client) : NULL;
}

static struct ask *ask_new(enum ask_kind kind, struct client *client)
{
    static const struct principal operator= {.owner = {0, 0}, .admin = true};
    struct ask *ask = calloc(1, sizeof(*ask));

    CHECK(ask);
    *ask = (struct ask){.kind = kind, .client = client, .step = sim.step};
    if (client) {
        ask->incarnation = client->incarnation;
        ask->before = client->releases;
    }
    list_append(&sim.asks, &ask->node);
    call_init(&ask->call, client ? client->who : operator, session_of(client), answered);
    return ask;
}

/* ---- Memory ---- */

static void ask_alloc(struct client *client)
{
    static const uint64_t rows[] = {1, 2, 4, 16, 64, 100};
    static const uint32_t dtypes[] = {HBM_F32, HBM_F32, HBM_BF16, HBM_F16, HBM_U8};
    static const uint32_t modes[] = {0600, 0644, 0666, 0640, 0444};
    struct alloc_args args = {.dims = {ONE_OF(rows), 64},
                              .rank = 2,
                              .dtype = ONE_OF(dtypes),
                              .device = one_in(40) ? 2 : below(2),
                              .mode = ONE_OF(modes),
                              .handle = one_in(8) ? HBM_HANDLE_CUDA_IPC : HBM_HANDLE_FD,
                              .flags =
                                  (one_in(2) ? WIRE_KEEP : 0) | (client->who.admin && one_in(3) ? WIRE_SHARED : 0)};

    if (one_in(40))
        args.dims[0] = UINT64_MAX / (1 + below(1000));
    snprintf(args.name, sizeof(args.name), "%s", args.flags & WIRE_KEEP || one_in(2) ? a_name() : "");
    snprintf(args.group, sizeof(args.group), "%s", one_in(2) ? "" : "g");
    trace("client %td allocates \"%s\" %llu x 64 on %u, flags %u", client - sim.clients, args.name,
          (unsigned long long)args.dims[0], args.device, args.flags);
    verb_alloc(core(), &ask_new(ASK_ALLOC, client)->call, &args);
}

static uint32_t a_timeout(void)
{
    static const uint32_t timeouts[] = {0, 50, 1000, UINT32_MAX};
    return ONE_OF(timeouts);
}

static void ask_attach(struct client *client)
{
    struct attach_args args = {
        .access = one_in(2) ? HBM_RW : HBM_RO, .flags = (one_in(3) ? WIRE_UNLOCKED : 0) | (one_in(4) ? WIRE_IN_PLACE : 0), .timeout_ms = a_timeout()};
    const struct buffer *buffer = any_buffer(client);
    struct ask *ask = ask_new(ASK_ATTACH, client);

    if (buffer && one_in(2))
        args.id = buffer->id;
    else
        snprintf(args.name, sizeof(args.name), "%s", a_name_in_use(client));
    if (!args.id)
        buffer = names_resolve(&core()->buffer_names, &client->who, args.name);
    ask->id = buffer ? buffer->id : 0;
    ask->unlocked = args.flags & WIRE_UNLOCKED;
    trace("client %td attaches %llx \"%s\" %s%s", client - sim.clients, number(ask->id), args.name,
          args.access ? "rw" : "ro", ask->unlocked ? " unlocked" : "");
    verb_attach(core(), &ask->call, &args);
}

void ask_lock(struct client *client, const uint32_t *slots, uint32_t n)
{
    struct ask *ask = ask_new(ASK_LOCK, client);

    memcpy(ask->slots, slots, n * sizeof(*slots));
    ask->n_slots = n;
    trace("client %td locks %u slots from %u", client - sim.clients, n, slots[0]);
    verb_lock(core(), &ask->call, slots, n, a_timeout());
}

void ask_early(struct client *client, uint32_t slot)
{
    struct ask *ask = ask_new(ASK_EARLY, client);

    ask->slots[0] = slot;
    ask->n_slots = 1;
    trace("client %td locks slot %u early", client - sim.clients, slot);
    verb_lock_early(core(), &ask->call, slot, a_timeout());
}

/* What libhbm says next of memory that came without its bytes. */
static void go_on_early(struct client *client, struct view *view)
{
    struct session *session = client_session(client);
    bool failed = view->early == EARLY_FAILED;

    view->early = EARLY_NOT;
    if (failed) {
        view->busy = false;
        client->last_release[view->slot] = ++client->releases;
        verb_released(core(), session, view->slot);
        return;
    }
    struct ask *ask = ask_new(ASK_ARRIVED, client);
    ask->slots[0] = view->slot;
    ask->n_slots = 1;
    verb_arrived(core(), &ask->call, view->slot, a_timeout());
}

static struct held *any_held(const struct client *client)
{
    struct held *chosen = NULL;
    unsigned n = 0;

    list_for_each (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        bool busy = held->client != client || !held->delivered;
        for (unsigned i = 0; i < held->n_slots && !busy; i++)
            busy = client_view(held->client, held->slots[i])->busy;
        if (!busy && one_in(++n))
            chosen = held;
    }
    return chosen;
}

static void ask_detach(struct client *client)
{
    struct held *held = any_held(client);
    struct ask *ask;

    if (!held)
        return;
    trace("client %td detaches %llx", client - sim.clients, number(held->id));
    client_leaves(held);
    ask = ask_new(ASK_DETACH, client);
    ask->id = sim.doing.lease = held->id;
    sim.doing.frees = true; /* what nothing else keeps */
    verb_detach(core(), &ask->call, held->id);
}

static void ask_free(struct client *client)
{
    const struct buffer *buffer = any_buffer(client);
    uint64_t id = buffer ? buffer->id : below(100);
    struct ask *ask = ask_new(ASK_FREE, client);

    ask->id = id;
    sim.doing.frees = true;
    trace("client %td frees %llx", client - sim.clients, number(id));
    verb_free(core(), &ask->call, id);
}

/* ---- Models ---- */

static int a_table(void)
{
    struct table_builder builder = {0};
    unsigned n = 1 + below(3);

    for (unsigned i = 0; i < n; i++)
        CHECK(!table_add_arena(&builder, &(struct table_arena){0}, i ? "h" : "g"));
    for (unsigned i = 0; i < n; i++) {
        struct table_buffer row = {.dims = {1 + below(64), 64}, .rank = 2, .dtype = one_in(2) ? HBM_F32 : HBM_BF16};
        row.arena = below(n);
        CHECK(hbm_shape_bytes(row.dims, row.rank, row.dtype, &row.size));
        CHECK(!table_add_buffer(&builder, &row, i == 0 ? "x" : i == 1 ? "y" : one_in(5) ? "x" : "x.scale"));
    }
    if (one_in(2))
        CHECK(!table_set_metadata(&builder, "metadata", 8));
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    return fd;
}

static void ask_publish(struct client *client)
{
    struct publish_args args = {.mode = one_in(2) ? 0644 : 0600,
                                .device = below(2),
                                .timeout_ms = a_timeout(),
                                .flags = (one_in(3) ? WIRE_WAIT : 0) | (one_in(4) ? WIRE_REPLACE : 0) |
                                         (client->who.admin && one_in(3) ? WIRE_SHARED : 0) |
                                         (one_in(3) ? WIRE_UNLOCKED : 0)};
    struct ask *ask = ask_new(ASK_MODEL, client);
    const char *why = NULL;
    size_t size;
    int fd = a_table();
    void *bytes = memfd_map_sealed(fd, 1 << 20, &size);

    CHECK(bytes && table_open(&args.table, bytes, size, &why));
    snprintf(args.name, sizeof(args.name), "%s", a_model());
    ask->unlocked = args.flags & WIRE_UNLOCKED;
    trace("client %td publishes %s, flags %u", client - sim.clients, args.name, args.flags);
    verb_publish(core(), &ask->call, &args);
    munmap(bytes, size);
    close(fd);
}

static void ask_commit(struct client *client)
{
    struct ask *ask;

    list_for_each (node, &sim.held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->client != client || !held->delivered || !held->builder)
            continue;
        for (unsigned i = 0; i < held->n_slots; i++)
            if (client_view(client, held->slots[i])->busy)
                return;
        client_leaves(held);
        ask = ask_new(ASK_COMMIT, client);
        ask->id = sim.doing.lease = held->id;
        ask->commits = !one_in(6);
        sim.doing.makes = sim.doing.frees = true;
        trace("client %td %s its model", client - sim.clients, ask->commits ? "commits" : "gives up");
        verb_commit(core(), &ask->call, held->id, ask->commits);
        return;
    }
}

static void ask_attach_model(struct client *client)
{
    struct attach_args args = {.access = one_in(4) ? HBM_RW : HBM_RO,
                               .flags = (one_in(3) ? WIRE_UNLOCKED : 0) | (one_in(2) ? WIRE_WAIT : 0) |
                                        (one_in(4) ? WIRE_IN_PLACE : 0),
                               .timeout_ms = a_timeout()};
    struct ask *ask = ask_new(ASK_MODEL, client);

    snprintf(args.name, sizeof(args.name), "%s", a_model());
    ask->unlocked = args.flags & WIRE_UNLOCKED;
    trace("client %td attaches model %s, flags %u", client - sim.clients, args.name, args.flags);
    verb_attach_model(core(), &ask->call, &args);
}

/* ---- Operations ---- */

/* bf16-lossless measures first, which is said elsewhere. */
static uint8_t a_codec(void)
{
    return one_in(9) ? HBM_CODEC_INT8_SPLIT : (uint8_t)(1 + below(8));
}

static void ask_compress(struct ask *ask, const char *sel)
{
    struct compress_args args = {
        .encoding = {.codec = a_codec(), .granularity = one_in(3) ? 0xff : (uint8_t)below(3)},
        .mode = one_in(3) ? WIRE_MODE_COPY : one_in(3) ? WIRE_MODE_PARK : WIRE_MODE_REPLACE};

    if (one_in(6)) {
        args.encoding = (struct hbm_encoding){.codec = HBM_CODEC_INT8, .stored = HBM_I8};
        args.calibration.method = HBM_CALIBRATE_OBSERVED | (one_in(2) ? HBM_CALIBRATE_MSE : HBM_CALIBRATE_MINMAX);
        if (one_in(3))
            snprintf(args.observed, sizeof(args.observed), "%s", a_name());
    }
    args.encoding.group = args.encoding.granularity == HBM_PER_GROUP ? 32 : 0;
    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    if (args.mode == WIRE_MODE_COPY ? one_in(3) : one_in(30))
        snprintf(args.as, sizeof(args.as), "%s", a_name());
    verb_compress(core(), &ask->call, &args);
}

static void ask_advice(struct ask *ask, const char *sel)
{
    struct advise_args args = {.codec = below(8), .min_sqnr_db = one_in(2) ? 30 : 0, .apply = one_in(3)};

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    verb_advise(core(), &ask->call, &args);
}

static void ask_op(struct client *client)
{
    static const char *const what[] = {"offloads", "restores", "compresses", "decompresses",
                                       "hashes",   "sleeps",   "wakes",      "prefetches", "offloads", "demotes",
                                       "advises",  "observes",   "forgets"};
    unsigned verb = one_in(40) ? 10 : one_in(12) ? (one_in(6) ? 12 : 11) : below(10);
    const char *sel = verb == 5 || verb == 6 ? a_model() : a_selector(client);
    struct ask *ask = ask_new(ASK_OP, client);
    const struct parking a_park = {.encoding = {.codec = (uint8_t)(1 + below(8)), .granularity = 0xff}};
    enum hbm_tier tier = one_in(12)  ? HBM_TIER_DEVICE
                         : one_in(4) ? HBM_TIER_PEER
                         : one_in(3) ? HBM_TIER_DISK
                                     : HBM_TIER_HOST;

    trace("%s %td %s %s", client ? "client" : "operator", client ? client - sim.clients : 0, what[verb], sel);
    sim.doing.makes = true;
    switch (verb) {
    case 1:
        verb_restore(core(), &ask->call, sel);
        break;
    case 2:
        ask_compress(ask, sel);
        break;
    case 3:
        verb_decompress(core(), &ask->call, sel);
        break;
    case 4:
        verb_hash(core(), &ask->call, sel);
        break;
    case 5:
        verb_sleep(core(), &ask->call, sel, tier, one_in(3) ? &a_park : NULL);
        break;
    case 6:
        verb_wake(core(), &ask->call, sel);
        break;
    case 7:
        verb_prefetch(core(), &ask->call, sel);
        break;
    case 10:
        ask_advice(ask, sel);
        break;
    case 11:
        verb_observe(core(), &ask->call, sel, 0.5);
        break;
    case 12:
        verb_forget(core(), &ask->call, sel);
        break;
    case 9:
        verb_demote(core(), &ask->call, sel, !one_in(4));
        break;
    default:
        verb_offload(core(), &ask->call, sel, tier, !one_in(4));
        break;
    }
}

/* Slots of its own, and one at random. */
static void say_ahead(struct client *client)
{
    struct session *session = client && client->state == CLIENT_UP ? client_session(client) : NULL;
    uint32_t slots[VIEWS + 1] = {below(LOCKWORD_SLOTS)}, n = 1;

    if (!session)
        return;
    for (unsigned i = 0; i < VIEWS; i++)
        if (client->views[i].leases && !one_in(3))
            slots[n++] = client->views[i].slot;
    trace("client %td will use %u arenas", client - sim.clients, n - 1);
    sim.doing.makes = true;
    verb_ahead(core(), session, slots, n);
}

/* What it will not use soon, some of it wanted all the same; or its order, or whether a window of it may stay. */
static void say_behind(struct client *client)
{
    struct session *session = client && client->state == CLIENT_UP ? client_session(client) : NULL;
    uint32_t slots[VIEWS + 1] = {below(LOCKWORD_SLOTS)}, n = 1;
    uint64_t lease = 0;
    unsigned seen = 0;

    if (!session)
        return;
    for (unsigned i = 0; i < VIEWS; i++) {
        if (!client->views[i].leases || one_in(3))
            continue;
        slots[n++] = client->views[i].slot;
        if (one_in(8))
            atomic_fetch_xor(&client->words[client->views[i].slot], LOCKWORD_WANTED);
    }
    list_for_each (node, &session->leases)
        if (one_in(++seen))
            lease = list_entry(node, struct lease, node)->id;
    trace("client %td leaves %u arenas behind", client - sim.clients, n - 1);
    sim.doing.makes = true;
    if (one_in(4))
        verb_order(core(), session, lease, one_in(3), slots, n);
    if (one_in(4))
        verb_window(core(), &ask_new(ASK_KICK, client)->call, lease, 1 + below(3), one_in(2));
    verb_behind(core(), session, slots, n);
}

static void ask_cancel(struct client *client)
{
    unsigned n = 0;
    uint64_t id = 0;

    list_for_each (node, &sim.running)
        if (one_in(++n))
            id = list_entry(node, struct running, node)->id;
    struct op *op = id ? op_get(core(), id) : NULL;
    if (!op || !client)
        return;
    struct ask *ask = ask_new(ASK_KICK, client);
    trace("client %td cancels %s", client - sim.clients, op->verb);
    verb_op_cancel(core(), &ask->call, id);
}

/* Of what has a name or an id; those that are moved just then too. */
static void ask_priority(struct client *client)
{
    const char *sel = a_selector(client);
    struct ask *ask = ask_new(ASK_KICK, client);
    uint32_t priority = one_in(4) ? PRIORITY_NEVER : below(PRIORITIES + 1);

    trace("client %td gives %s priority %u", client ? client - sim.clients : -1, sel, priority);
    verb_priority(core(), &ask->call, sel, priority);
}

void ask_something(struct client *client)
{
    static void (*const asks[])(struct client *) = {
        ask_alloc,  ask_alloc, ask_attach, ask_attach,       ask_attach, ask_detach,
        ask_detach, ask_free,  ask_commit, ask_attach_model, ask_commit, ask_publish,
        ask_op,     ask_op,    ask_op,     ask_op,           ask_op,     ask_cancel,
        say_ahead,  say_ahead, say_behind, ask_priority,
    };

    if (core()->n_buffers > 40)
        ask_free(client);
    else
        ONE_OF(asks)(client);
}

/* ---- Operators ---- */

static void ask_rm(void)
{
    const char *name = a_model();
    struct ask *ask = ask_new(ASK_RM, NULL);
    struct model *model = names_resolve(&core()->model_names, &ask->call.who, name);

    ask->id = model ? model->id : 0;
    sim.doing.frees = true;
    trace("operator removes model %s", name);
    verb_rm(core(), &ask->call, name);
}

static void ask_rename(void)
{
    const char *name = one_in(3) ? a_model() : a_name_in_use(NULL), *to = one_in(3) ? a_model() : a_name();
    struct ask *ask = ask_new(ASK_RENAME, NULL);
    struct model *model = names_resolve(&core()->model_names, &ask->call.who, name);
    struct buffer *buffer = names_resolve(&core()->buffer_names, &ask->call.who, name);

    ask->id = model ? model->id : buffer ? buffer->id : 0;
    snprintf(ask->to, sizeof(ask->to), "%s", to);
    sim.doing.renames = true;
    trace("operator renames %s to %s", name, to);
    verb_rename(core(), &ask->call, name, to);
}

static void ask_kick(void)
{
    struct client *client = &sim.clients[below(CLIENTS)];
    struct ask *ask = ask_new(ASK_KICK, NULL);

    trace("operator kicks client %td", client - sim.clients);
    if (client->state == CLIENT_DOWN) { /* not back yet: its session ends at once */
        client->state = CLIENT_GONE;
        model_give_up(client);
    }
    verb_kick(core(), &ask->call, client->session);
}

static void ask_free_sel(const char *sel)
{
    struct ask *ask = ask_new(ASK_OP, NULL);

    trace("operator frees %s", sel);
    sim.doing.frees = true;
    verb_free_sel(core(), &ask->call, sel);
}

void ask_as_operator(void)
{
    switch (below(160)) {
    case 0:
        trace("operator drains");
        verb_drain(core(), &ask_new(ASK_OP, NULL)->call, one_in(2) ? NULL : "host");
        break;
    case 1 ... 6:
        ask_kick();
        break;
    case 7 ... 20:
        ask_rm();
        break;
    case 21 ... 50:
        ask_rename();
        break;
    case 51 ... 54:
        ask_priority(NULL);
        break;
    case 55 ... 60:
        ask_free_sel(a_selector(NULL));
        break;
    default:
        ask_op(NULL);
        break;
    }
}

/* Nobody is left: models first, whose buffers go with them. */
void ask_free_all(void)
{
    while (!list_empty(&core()->models)) {
        const struct model *model = list_entry(list_first(&core()->models), struct model, node);
        struct ask *ask = ask_new(ASK_RM, NULL);
        uint64_t id = ask->id = model->id;
        char name[HBM_NAME_MAX];
        ask->call.who.owner = owner_scope(model->owner, model->shared);
        snprintf(name, sizeof(name), "%s", model->name);
        verb_rm(core(), &ask->call, name);
        CHECK(!model_get(core(), id));
    }
    while (!list_empty(&core()->buffers)) {
        const struct buffer *first = list_entry(list_first(&core()->buffers), struct buffer, node);
        uint64_t id = first->parent ? first->parent->id : first->id;
        struct ask *ask = ask_new(ASK_FREE, NULL);
        ask->id = id;
        verb_free(core(), &ask->call, id);
        CHECK(!buffer_get(core(), id));
    }
}

/* ---- Ends of operations ---- */

static void meet_copies(const struct running *running, const struct op *op)
{
    for (size_t i = 0; i < op->n_rows && i < running->n; i++) {
        const struct buffer *copy = buffer_get(core(), op->rows[i].buffer);
        const struct known *original = known_get(running->originals[i]);
        if (op->rows[i].skipped || !copy || known_get(copy->id))
            continue;
        struct form form = form_of(copy);
        uint64_t tag = contents_read(extent_fd(copy->arena->extent), &form);
        CHECK(owner_equal(copy->arena->owner, op->who.owner) && copy->keep);
        CHECK(original && (original->opaque || original->damaged || known_had(original, tag, running->step)));
        known_add(copy, tag)->opaque = original->opaque;
    }
}

static void check_hashes(const struct running *running, const struct op *op)
{
    for (size_t i = 0; i < op->n_rows && i < running->n; i++) {
        const struct known *known = known_get(op->rows[i].buffer);
        if (known && !known->opaque && !known->damaged && op->rows[i].size)
            CHECK(known_had(known, op->rows[i].hash & 0xffffffffffffff, running->step));
    }
}

void asks_poll(void)
{
    for (struct client *client = sim.clients; client < sim.clients + CLIENTS; client++)
        for (unsigned i = 0; i < VIEWS && client->state == CLIENT_UP && !sim.world.dead; i++)
            if (client->views[i].leases && client->views[i].early && one_in(2))
                go_on_early(client, &client->views[i]);
    list_for_each_safe (node, &sim.running) {
        struct running *running = list_entry(node, struct running, node);
        const struct op *op = op_get(core(), running->id);
        if (op && !op_has_ended(op))
            continue;
        if (op && !op->error) {
            if (running->recodes) {
                sim.recoded = sim.step;
                meet_copies(running, op);
            } else if (running->hashes) {
                check_hashes(running, op);
            }
        }
        list_unlink(node);
        free(running);
    }
}
