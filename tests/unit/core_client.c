#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/memfd.h"

const struct principal alice = {.owner = {0, 1000}}, bob = {.owner = {0, 1001}},
                       root = {.owner = {0, 0}, .admin = true};
char last_detail[HBM_DETAIL_MAX];

static void no_reclaim(struct session *session, uint32_t slot, uint32_t deadline_ms)
{
    (void)session;
    (void)slot;
    (void)deadline_ms;
}

static void no_op_ended(struct session *session, uint64_t op, int error)
{
    (void)session;
    (void)op;
    (void)error;
}

struct session *client(struct world *world, struct principal who)
{
    static int32_t pid = 100;
    int error = 0;
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct session *session = session_new(world->core, who, pid++, pidfd, "test", &error, last_detail);

    assert_non_null(session);
    session->link = world;
    session->send_reclaim = no_reclaim;
    session->send_op_ended = no_op_ended;
    session_start(session);
    return session;
}

void client_lets_go(struct world *world, struct session *session)
{
    for (uint32_t slot = 0; slot < LOCKWORD_SLOTS; slot++)
        if (lockword_try_release(&session->words[slot]))
            verb_released(world->core, session, slot);
}

void client_locks(struct session *session, uint32_t slot)
{
    assert_int_equal(lockword_lock(&session->words[slot]), LOCKWORD_DONE);
}

/* ---- Asking ---- */

static void answered(struct call *call, int error, void *result)
{
    struct ask *ask = container_of(call, struct ask, call);

    assert_int_equal(ask->answers++, 0);
    ask->error = error;
    memcpy(last_detail, call->detail, sizeof(last_detail));
    if (!error && result)
        ask->id = *(uint64_t *)result; /* ops and leases start with their id */
}

struct ask *ask(struct world *world, struct principal who, struct session *session)
{
    struct ask *ask = calloc(1, sizeof(*ask));

    (void)world;
    call_init(&ask->call, who, session, answered);
    return ask;
}

uint64_t id_of(struct world *world, struct ask *ask)
{
    world_run(world);
    assert_int_equal(ask->answers, 1);
    if (ask->error)
        fail_msg("%s: %s", hbm_error_name(ask->error), last_detail);
    uint64_t id = ask->id;
    free(ask);
    return id;
}

struct op *op_of(struct world *world, struct ask *ask)
{
    struct op *op = op_get(world->core, id_of(world, ask));

    assert_non_null(op);
    return op;
}

int error_of(struct world *world, struct ask *ask)
{
    world_run(world);
    assert_int_equal(ask->answers, 1);
    int error = ask->error;
    free(ask);
    return error;
}

/* ---- Things ---- */

struct buffer *make_buffer(struct world *world, struct session *session, const char *name, uint64_t rows,
                           uint64_t columns, uint32_t flags)
{
    struct alloc_args args = {.dims = {rows, columns}, .rank = 2, .dtype = HBM_F32, .mode = 0644, .flags = flags};
    struct ask *question = ask(world, session->who, session);

    snprintf(args.name, sizeof(args.name), "%s", name);
    verb_alloc(world->core, &question->call, &args);
    struct lease *lease = lease_get(world->core, id_of(world, question));
    fill(lease->buffer, (unsigned)strlen(name));
    return lease->buffer;
}

struct buffer *make_kept(struct world *world, const char *name, uint64_t rows, uint64_t columns)
{
    struct session *session = client(world, alice);
    struct buffer *buffer = make_buffer(world, session, name, rows, columns, WIRE_KEEP);

    session_gone(session, true, "bye");
    return buffer;
}

struct session *make_cuda_ipc(struct world *world, const char *name)
{
    struct alloc_args args = {
        .size = 4096, .dims = {1024}, .rank = 1, .dtype = HBM_F32, .handle = HBM_HANDLE_CUDA_IPC, .mode = 0600, .flags = WIRE_KEEP};
    struct session *session = client(world, alice);
    struct ask *question = ask(world, alice, session);

    snprintf(args.name, sizeof(args.name), "%s", name);
    verb_alloc(world->core, &question->call, &args);
    assert_int_equal(error_of(world, question), 0);
    return session;
}

struct ask *ask_to_build(struct world *world, struct session *session, const char *name, unsigned groups, uint32_t flags)
{
    struct table_builder builder = {0};
    struct publish_args args = {.mode = 0644, .flags = flags, .timeout_ms = 1000};
    char group[32], tensor[64];
    const char *why = NULL;
    size_t size;

    snprintf(args.name, sizeof(args.name), "%s", name);
    snprintf(args.key, sizeof(args.key), "key of %s", name);
    for (uint32_t i = 0; i < groups; i++) {
        struct table_buffer weight = {.dims = {64, 256}, .rank = 2, .dtype = HBM_F32, .size = 65536, .arena = i};
        struct table_buffer bias = {.dims = {256}, .rank = 1, .dtype = HBM_F32, .size = 1024, .arena = i};
        snprintf(group, sizeof(group), "layer.%u", i);
        assert_int_equal(table_add_arena(&builder, &(struct table_arena){0}, group), 0);
        snprintf(tensor, sizeof(tensor), "%s.w", group);
        assert_int_equal(table_add_buffer(&builder, &weight, tensor), 0);
        snprintf(tensor, sizeof(tensor), "%s.b", group);
        assert_int_equal(table_add_buffer(&builder, &bias, tensor), 0);
    }
    assert_int_equal(table_set_metadata(&builder, "metadata", 8), 0);
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    void *bytes = memfd_map_sealed(fd, MIB, &size);
    assert_true(table_open(&args.table, bytes, size, &why));
    struct ask *question = ask(world, session->who, session);
    verb_publish(world->core, &question->call, &args);
    munmap(bytes, size);
    close(fd);
    return question;
}

struct session *build_model(struct world *world, const char *name, unsigned groups, uint32_t flags, uint64_t *lease)
{
    struct session *session = client(world, alice);

    *lease = id_of(world, ask_to_build(world, session, name, groups, flags));
    unsigned seed = 0;
    list_for_each (node, &lease_get(world->core, *lease)->model->buffers)
        fill(list_entry(node, struct buffer, model_node), ++seed);
    return session;
}

struct model *make_model(struct world *world, const char *name, unsigned groups)
{
    uint64_t lease;
    struct session *session = build_model(world, name, groups, 0, &lease);
    struct model *model = lease_get(world->core, lease)->model;
    struct ask *question = ask(world, alice, session);

    verb_commit(world->core, &question->call, lease, true);
    assert_int_equal(error_of(world, question), 0);
    session_gone(session, true, "bye");
    return model;
}

struct buffer *named(struct world *world, const char *name)
{
    struct buffer *buffer = names_find(&world->core->buffer_names, alice.owner, name);

    if (!buffer)
        fail_msg("no %s", name);
    return buffer;
}

struct lease *attach(struct world *world, struct session *session, const char *name, enum hbm_access access)
{
    struct attach_args args = {.access = access, .timeout_ms = 1000};
    struct ask *question = ask(world, session->who, session);

    snprintf(args.name, sizeof(args.name), "%s", name);
    verb_attach(world->core, &question->call, &args);
    return lease_get(world->core, id_of(world, question));
}

void detach(struct world *world, struct lease *lease)
{
    struct ask *question = ask(world, lease->session->who, lease->session);

    verb_detach(world->core, &question->call, lease->id);
    assert_int_equal(error_of(world, question), 0);
}

/* ---- Bytes ---- */

void buffer_bytes(const struct buffer *buffer, void *bytes)
{
    assert_int_equal(pread(buffer->arena->extent->fd, bytes, buffer->size, (off_t)buffer->offset), buffer->size);
}

void buffer_write(const struct buffer *buffer, const void *bytes)
{
    assert_int_equal(pwrite(buffer->arena->extent->fd, bytes, buffer->size, (off_t)buffer->offset), buffer->size);
}

static void pattern(float *numbers, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)((int)((i * 7 + seed * 13) % 201) - 100);
}

void fill(const struct buffer *buffer, unsigned seed)
{
    float *numbers = malloc(buffer->size);

    pattern(numbers, buffer->size / sizeof(float), seed);
    buffer_write(buffer, numbers);
    free(numbers);
}

bool is_filled(const struct buffer *buffer, unsigned seed)
{
    float *numbers = malloc(buffer->size), *wanted = malloc(buffer->size);

    pattern(wanted, buffer->size / sizeof(float), seed);
    buffer_bytes(buffer, numbers);
    bool same = !memcmp(numbers, wanted, buffer->size);
    free(numbers);
    free(wanted);
    return same;
}

/* ---- Verbs, as alice ---- */

struct op *offload(struct world *world, const char *sel, enum hbm_tier tier, bool force)
{
    struct ask *question = ask(world, alice, NULL);

    verb_offload(world->core, &question->call, sel, tier, force);
    return op_of(world, question);
}

struct op *restore(struct world *world, const char *sel)
{
    struct ask *question = ask(world, alice, NULL);

    verb_restore(world->core, &question->call, sel);
    return op_of(world, question);
}

static struct op *encode(struct world *world, const char *sel, unsigned codec, enum wire_mode mode)
{
    struct compress_args args = {.encoding = {.codec = (uint8_t)codec, .granularity = 0xff}, .mode = mode};
    struct ask *question = ask(world, alice, NULL);

    snprintf(args.sel, sizeof(args.sel), "%s", sel);
    verb_compress(world->core, &question->call, &args);
    return op_of(world, question);
}

struct op *compress(struct world *world, const char *sel, unsigned codec)
{
    return encode(world, sel, codec, WIRE_MODE_REPLACE);
}

struct op *park(struct world *world, const char *sel, unsigned codec)
{
    return encode(world, sel, codec, WIRE_MODE_PARK);
}
