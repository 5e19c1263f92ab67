/* What a world starts with where the input is to find something, and tables out of inputs. */
#include <sys/mman.h>
#include <unistd.h>

#include "proto/memfd.h"
#include "tests/fuzz/world.h"

static void answered(struct call *call, int error, void *result)
{
    (void)error;
    (void)result;
    free(call);
}

struct call *world_call(struct principal who, struct session *session)
{
    struct call *call = calloc(1, sizeof(*call));

    CHECK(call);
    call_init(call, who, session, answered);
    return call;
}

static struct session *visitor(struct world *world, struct principal who)
{
    char detail[HBM_DETAIL_MAX];
    int error, pipe_ends[2];

    CHECK(!pipe(pipe_ends));
    close(pipe_ends[1]);
    struct session *session = session_new(world->core, who, 100, pipe_ends[0], "visitor", &error, detail);
    CHECK(session);
    session_start(session);
    return session;
}

static int table_of_m(void)
{
    struct table_builder builder = {0};
    static const struct table_buffer x = {.dims = {8, 64}, .rank = 2, .dtype = HBM_F32, .size = 2048},
                                     y = {.dims = {64}, .rank = 1, .dtype = HBM_BF16, .size = 128, .arena = 1};

    CHECK(!table_add_arena(&builder, &(struct table_arena){0}, "g"));
    CHECK(!table_add_arena(&builder, &(struct table_arena){0}, "h"));
    CHECK(!table_add_buffer(&builder, &x, "x"));
    CHECK(!table_add_buffer(&builder, &y, "y"));
    CHECK(!table_set_metadata(&builder, "metadata", 8));
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    return fd;
}

void world_furnish(struct world *world)
{
    struct alloc_args w = {
        .dims = {16, 64}, .rank = 2, .dtype = HBM_F32, .mode = 0644, .flags = WIRE_KEEP, .name = "w"};
    struct publish_args m = {.mode = 0644, .name = "m", .key = "key"};
    struct session *session = visitor(world, alice);
    const char *why = NULL;
    size_t size;
    int fd = table_of_m();
    void *bytes = memfd_map_sealed(fd, 1 << 20, &size);

    CHECK(bytes && table_open(&m.table, bytes, size, &why));
    world_run(world);
    verb_alloc(world->core, world_call(alice, session), &w);
    verb_publish(world->core, world_call(alice, session), &m);
    munmap(bytes, size);
    close(fd);
    world_run(world);
    struct model *model = names_find(&world->core->model_names, alice.owner, "m");
    CHECK(model);
    verb_commit(world->core, world_call(alice, session), model->builder_lease, true);
    world_run(world);
    CHECK(model->state == MODEL_SEALED);
    session_gone(session, true, "bye");
    world_run(world);
    CHECK(world->core->n_buffers == 3 && !world->core->n_sessions);
}

void world_visit(struct world *world)
{
    static const struct attach_args w = {.name = "w"}, m = {.name = "m"};
    struct session *session = visitor(world, alice);

    verb_attach(world->core, world_call(alice, session), &w);
    verb_attach_model(world->core, world_call(alice, session), &m);
    world_run(world);
    CHECK(world->core->n_leases == 2);
}

int take_table(struct input *in)
{
    struct table_builder builder = {0};
    unsigned form = take_byte(in), n_arenas = form & 3, n_buffers = form >> 2 & 7;
    char text[HBM_NAME_MAX];

    if (form >= 0xf0) { /* anything at all; empty files are no tables, and known so */
        uint8_t bytes[256];
        size_t n = 1 + take_byte(in);
        take(in, bytes, n < sizeof(bytes) ? n : sizeof(bytes));
        return memfd_sealed("table", bytes, n < sizeof(bytes) ? n : sizeof(bytes));
    }
    for (unsigned i = 0; i < n_arenas; i++) {
        take_text(in, text, HBM_GROUP_MAX);
        CHECK(!table_add_arena(&builder, &(struct table_arena){.handle = form >> 6 & 1}, text));
    }
    for (unsigned i = 0; i < n_buffers; i++) {
        struct table_buffer row = {.arena = take_byte(in)};
        row.dtype = take_byte(in) % 20;
        row.rank = take_byte(in) & 3;
        row.arena = row.arena < 0xc0 && n_arenas ? row.arena % n_arenas : row.arena;
        for (unsigned d = 0; d < row.rank; d++)
            row.dims[d] = take_number(in);
        /* Publishers state the size that follows; now and then one does not. */
        if (take_byte(in) > 0xf0 || !hbm_shape_bytes(row.dims, row.rank, row.dtype, &row.size))
            row.size = take_number(in);
        take_text(in, text, HBM_NAME_MAX);
        CHECK(!table_add_buffer(&builder, &row, text));
    }
    if (form & 0x20)
        CHECK(!table_set_metadata(&builder, text, sizeof(text)));
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    return fd;
}
