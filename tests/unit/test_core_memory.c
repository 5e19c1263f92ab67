/* The n-th use of memory by the core fails, for every n, in each thing that can be asked of it (FAULTS 33): it is
 * done all the same or refused in a sentence, the books balance, every byte is what it was, and a restart finds all
 * of it. That nothing leaks is for the sanitizer to see. The core alone is struck: it is linked by itself
 * (tests.mk). */
#include "core_world.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/core/host_ahead.h"

/* ---- Memory ---- */

static struct {
    const char *scene;
    unsigned n, used; /* the n-th of the uses fails; uses so far */
    bool held;        /* none fails, and none counts */
    bool struck;
    const char *by; /* code of the core */
} fault;
extern const char __executable_start[];

#define STRUCK(name, result, parameters, ...)                                                                      \
    result __wrap_##name parameters;                                                                               \
    result __wrap_##name parameters                                                                                \
    {                                                                                                              \
        if (fault.held || ++fault.used != fault.n)                                                                 \
            return name(__VA_ARGS__);                                                                              \
        fault.struck = true;                                                                                       \
        errno = ENOMEM;                                                                                            \
        fault.by = __builtin_return_address(0);                                                                    \
        return NULL;                                                                                               \
    }
STRUCK(malloc, void *, (size_t size), size)
STRUCK(calloc, void *, (size_t n, size_t size), n, size)
STRUCK(realloc, void *, (void *old, size_t size), old, size)
STRUCK(reallocarray, void *, (void *old, size_t n, size_t size), old, n, size)
STRUCK(strdup, char *, (const char *text), text)
STRUCK(tsearch, void *, (const void *key, void **tree, int (*compare)(const void *, const void *)), key, tree,
       compare)

static void strike(unsigned n)
{
    fault.struck = fault.held = false;
    fault.used = 0;
    fault.n = n;
}

/* ---- Asking, of a core that may refuse ---- */

static void check_refusal(int error, const char *detail)
{
    if (!fault.struck || (error != HBM_E_NO_MEMORY && error != HBM_E_DEGRADED) || !*detail)
        fail_msg("%s: %s", hbm_error_name(error), detail);
}

static int outcome(struct ask *question, uint64_t *id)
{
    for (unsigned i = 0; i < 20 && !question->answers; i++)
        world_pass(&w, 200);
    *id = question->id;
    if (question->error)
        check_refusal(question->error, question->call.detail);
    return error_of(&w, question);
}

static int lease_of(struct ask *question, struct lease **ret)
{
    uint64_t id;
    int error = outcome(question, &id);

    *ret = error ? NULL : lease_get(w.core, id);
    assert_true(error || *ret);
    return error;
}

static int end_of(struct ask *question)
{
    uint64_t id;
    int error = outcome(question, &id);

    if (error)
        return error;
    struct op *op = op_get(w.core, id);
    assert_non_null(op);
    for (unsigned i = 0; i < 20 && !op_has_ended(op); i++)
        world_pass(&w, 200);
    assert_true(op_has_ended(op));
    if (op->error)
        check_refusal(op->error, op->detail);
    return op->error;
}

/* 0, or the error that the verb, or its op, ended with. */
#define ASK(end, who, session, verb, ...)                                                                          \
    ({                                                                                                             \
        struct ask *question_ = ask(&w, who, session);                                                             \
        verb(w.core, &question_->call, __VA_ARGS__);                                                               \
        end;                                                                                                       \
    })
#define OP(verb, ...) ASK(end_of(question_), alice, NULL, verb, __VA_ARGS__)
#define DO(session, verb, ...)                                                                                     \
    ASK(({                                                                                                         \
            uint64_t id_;                                                                                          \
            outcome(question_, &id_);                                                                              \
        }),                                                                                                        \
        alice, session, verb, __VA_ARGS__)
#define LEASE(ret, who, session, verb, ...) ASK(lease_of(question_, ret), who, session, verb, __VA_ARGS__)

static int attach_to(struct principal who, struct session *session, const char *name, enum hbm_access access,
                     struct lease **ret)
{
    struct attach_args args = {.access = access, .timeout_ms = 1000};

    snprintf(args.name, sizeof(args.name), "%s", name);
    return LEASE(ret, who, session, verb_attach, &args);
}

/* ---- What there is, and what must be there at the end ---- */

struct scene {
    const char *name;
    void (*run)(void);
    bool frees;
};

static struct {
    uint64_t id;
    unsigned seed;
} standing[16];
static unsigned n_standing;
static struct session *reader, *other, *stranger; /* the first two are alice's */
static int file;

static void stands(const struct buffer *buffer, unsigned seed)
{
    standing[n_standing].id = buffer->id;
    standing[n_standing++].seed = seed;
}

static void furnish(void)
{
    static const char *const kept[] = {"w", "away", "spilled", "coded"};

    n_standing = 0;
    for (unsigned i = 0; i < 4; i++)
        stands(make_kept(&w, kept[i], 16, 64), (unsigned)strlen(kept[i]));
    make_model(&w, "m", 2);
    unsigned seed = 0;
    list_for_each (node, &named(&w, "m/layer.0.w")->model->buffers)
        stands(list_entry(node, struct buffer, model_node), ++seed);
    offload(&w, "away", HBM_TIER_HOST, true);
    offload(&w, "spilled", HBM_TIER_DISK, true);
    compress(&w, "coded", HBM_CODEC_INT8);
    reader = client(&w, alice);
    other = client(&w, alice);
    stranger = client(&w, bob);
    file = memfd_create("file", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, 1 << 20), 0);
}

static void check_bytes(const struct scene *scene)
{
    for (unsigned i = 0; i < n_standing; i++) {
        const struct buffer *buffer = buffer_get(w.core, standing[i].id);
        if (!buffer && scene->frees)
            continue;
        assert_non_null(buffer);
        char *sel = buffer->name;
        assert_int_equal(restore(&w, sel)->error, 0);
        if (buffer->encoding.codec)
            assert_int_equal(OP(verb_decompress, sel), 0);
        assert_true(is_filled(buffer, standing[i].seed));
    }
}

/* A model's tensors go by its name. */
static void check_names(void)
{
    list_for_each (node, &w.core->models) {
        const struct model *model = list_entry(node, struct model, node);
        size_t size = strlen(model->name);
        list_for_each (inner, &model->buffers) {
            const struct buffer *buffer = list_entry(inner, struct buffer, model_node);
            assert_true(!strncmp(buffer->name, model->name, size) && buffer->name[size] == '/');
            assert_true(buffer->listed == model->listed);
            assert_true(!buffer->listed || named(&w, buffer->name) == buffer);
        }
    }
}

/* Nothing fails any more: all is as it should be, now and after a restart. */
static void check_all(const struct scene *scene)
{
    world_pass(&w, 2000);
    assert_int_equal(ledger_trouble(w.core), 0);
    world_check_books(&w);
    check_names();
    char *before = world_picture(&w);
    assert_int_equal(world_restart(&w), 0);
    char *after = world_picture(&w);
    assert_string_equal(after, before);
    free(before);
    free(after);
    list_for_each_safe (node, &w.core->sessions)
        session_process_ended(list_entry(node, struct session, node));
    world_pass(&w, 20000);
    assert_int_equal(w.core->n_sessions, 0);
    assert_int_equal(w.core->n_leases, 0);
    check_bytes(scene);
    make_kept(&w, "after", 16, 64);
    world_check_books(&w);
}

/* ---- Scenes ---- */

static void opens_a_session(void)
{
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0), error = 0;
    struct principal new_one = {.owner = {0, 1002}};

    last_detail[0] = 0;
    struct session *session = session_new(w.core, new_one, 99, pidfd, "new", &error, last_detail);
    if (session) {
        session_start(session);
        session_gone(session, true, "bye");
    } else {
        close(pidfd);
        check_refusal(error, last_detail);
    }
}

static void allocates(void)
{
    struct alloc_args args = {.dims = {16, 64}, .rank = 2, .dtype = HBM_F32, .mode = 0644, .group = "g"};
    struct lease *lease;

    LEASE(&lease, alice, reader, verb_alloc, &args);
    args.flags = WIRE_KEEP;
    strcpy(args.name, "new/one");
    if (!LEASE(&lease, alice, reader, verb_alloc, &args))
        DO(reader, verb_detach, lease->id);
}

static void attaches_and_detaches(void)
{
    struct lease *lease;

    if (!attach_to(alice, reader, "w", HBM_RW, &lease))
        DO(reader, verb_detach, lease->id);
    attach_to(alice, reader, "away", HBM_RO, &lease);
    attach_to(alice, reader, "spilled", HBM_RO, &lease);
}

static void gives_a_stranger_copies(void)
{
    struct lease *lease;

    attach_to(bob, stranger, "~1000/w", HBM_RO, &lease);
    attach_to(bob, stranger, "~1000/coded", HBM_RO, &lease);
}

static void attaches_a_model(void)
{
    struct attach_args args = {.name = "m", .timeout_ms = 1000};
    struct lease *lease;

    if (!LEASE(&lease, alice, reader, verb_attach_model, &args))
        DO(reader, verb_detach, lease->id);
}

static _Atomic uint64_t *word_of(const struct lease *lease)
{
    return &lease->session->words[lease->mappings[0]->slot];
}

static void moves_what_is_mapped_and_locks_it(void)
{
    struct lease *lease;

    if (attach_to(alice, reader, "w", HBM_RW, &lease))
        return;
    uint64_t id = lease->id;
    struct ask *moving = ask(&w, alice, NULL);
    verb_offload(w.core, &moving->call, "w", HBM_TIER_HOST, true);
    world_run(&w);
    client_lets_go(&w, reader);
    end_of(moving);
    lease = lease_get(w.core, id);
    if (!DO(reader, verb_lock, &lease->mappings[0]->slot, 1, 1000))
        lockword_arrive(&reader->words[lease->mappings[0]->slot], 1);
}

static void locks_before_the_bytes_are_there(void)
{
    struct attach_args args = {.name = "away", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach, &args))
        return;
    uint32_t slot = lease->mappings[0]->slot;
    lockword_turn_back(&reader->words[slot]);
    w.hold = true;
    struct ask *locking = ask(&w, alice, reader);
    verb_lock_early(w.core, &locking->call, slot, 1000);
    while (!locking->answers && world_step(&w))
        ;
    w.hold = false;
    uint64_t coming;
    if (outcome(locking, &coming))
        return;
    DO(reader, verb_arrived, slot, 1000);
    verb_released(w.core, reader, slot);
}

static void demotes_what_is_mapped_and_promotes_it(void)
{
    struct lease *lease;

    if (attach_to(alice, reader, "w", HBM_RW, &lease))
        return;
    uint64_t id = lease->id;
    for (unsigned way = 0; way < 2; way++) {
        struct ask *moving = ask(&w, alice, NULL);
        if (way)
            verb_restore(w.core, &moving->call, "w");
        else
            verb_demote(w.core, &moving->call, "w", true);
        world_run(&w);
        client_lets_go(&w, reader);
        end_of(moving);
        lease = lease_get(w.core, id);
        if (*word_of(lease) & LOCKWORD_AWAY && !DO(reader, verb_lock, &lease->mappings[0]->slot, 1, 1000))
            lockword_arrive(word_of(lease), 0);
    }
}

static void attaches_in_place(void)
{
    struct attach_args args = {.name = "away", .flags = WIRE_IN_PLACE, .timeout_ms = 1000};
    struct lease *lease;

    LEASE(&lease, alice, reader, verb_attach, &args);
    strcpy(args.name, "spilled");
    LEASE(&lease, alice, reader, verb_attach, &args);
    strcpy(args.name, "m");
    LEASE(&lease, alice, reader, verb_attach_model, &args);
}

static void waits_for_memory(void)
{
    struct alloc_args args = {.size = 40 * MIB, .mode = 0600, .dtype = HBM_U8};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_alloc, &args))
        return;
    struct ask *waiting = ask(&w, alice, other);
    verb_alloc(w.core, &waiting->call, &args);
    world_run(&w);
    DO(reader, verb_detach, lease->id);
    lease_of(waiting, &lease);
}

/* What is idle goes for it: "w", "coded", a group of "m". */
static void makes_room(void)
{
    struct alloc_args args = {.size = 3 * 4096, .mode = 0600, .dtype = HBM_U8};
    struct lease *lease;

    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){100, 90};
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    LEASE(&lease, alice, reader, verb_alloc, &args);
    w.core->limits.watermarks[HBM_TIER_DEVICE].high = 0;
    w.device->capacity[HBM_TIER_DEVICE] = 64 * MIB;
}

static void says_what_goes_first(void)
{
    DO(NULL, verb_priority, "*", 3);
    DO(NULL, verb_priority, "w", PRIORITY_NEVER);
}

static void publishes_and_replaces(void)
{
    struct lease *lease;

    if (!lease_of(ask_to_build(&w, reader, "new", 2, 0), &lease))
        DO(reader, verb_commit, lease->id, true);
    if (!lease_of(ask_to_build(&w, reader, "m", 1, WIRE_REPLACE), &lease))
        DO(reader, verb_commit, lease->id, true);
    if (!lease_of(ask_to_build(&w, reader, "never", 1, 0), &lease))
        DO(reader, verb_commit, lease->id, false);
    session_gone(reader, true, "bye");
    assert_non_null(named(&w, "m/layer.0.w"));
}

static void waits_for_a_builder(void)
{
    struct attach_args args = {.name = "new", .flags = WIRE_WAIT, .timeout_ms = 10000};
    struct lease *building, *lease;

    if (!lease_of(ask_to_build(&w, reader, "new", 1, 0), &building)) {
        struct ask *waiting = ask(&w, alice, other);
        verb_attach_model(w.core, &waiting->call, &args);
        struct ask *as_well = ask_to_build(&w, other, "new", 1, WIRE_WAIT);
        world_run(&w);
        int error = DO(reader, verb_commit, building->id, true);
        if (error)
            session_gone(reader, true, "it gives up");
        lease_of(waiting, &lease);
        lease_of(as_well, &lease);
    }
    session_gone(other, true, "bye");
}

static void prefetches(void)
{
    OP(verb_offload, "m/layer.0.*", HBM_TIER_HOST, true);
    OP(verb_prefetch, "*");
}

static void says_what_it_uses_next(void)
{
    struct attach_args args = {.name = "away", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach, &args))
        return;
    lockword_turn_back(&reader->words[lease->mappings[0]->slot]);
    for (unsigned i = 0; i < 2; i++) { /* the second finds the first one's operation */
        verb_ahead(w.core, reader, &lease->mappings[0]->slot, 1);
        world_run(&w);
        OP(verb_offload, "away", HBM_TIER_HOST, true);
    }
}

static void keeps_a_window(void)
{
    struct attach_args args = {.name = "m", .flags = WIRE_UNLOCKED};
    struct lease *lease;

    if (LEASE(&lease, alice, reader, verb_attach_model, &args))
        return;
    uint32_t slots[] = {lease->mappings[0]->slot, lease->mappings[1]->slot};
    verb_order(w.core, reader, lease->id, 0, slots, 2);
    DO(reader, verb_window, lease->id, 1, true);
    for (unsigned i = 0; i < 2; i++) { /* the second finds the first one's operation */
        lockword_turn_back(&reader->words[slots[i]]);
        verb_released(w.core, reader, slots[i]);
        verb_behind(w.core, reader, slots + i, 1);
        verb_ahead(w.core, reader, slots + 1 - i, 1);
        world_run(&w);
    }
}

static void offloads_and_restores(void)
{
    OP(verb_offload, "w", HBM_TIER_DISK, true);
    OP(verb_offload, "coded", HBM_TIER_HOST, true);
    OP(verb_offload, "m/layer.0.*", HBM_TIER_HOST, true);
    OP(verb_restore, "*");
}

static void has_memory_made_ahead(void)
{
    w.core->limits.host_pool_idle_ms = 5000;
    host_ahead_limit(w.device, 64 * MIB);
    for (unsigned i = 0; i < 10; i++)
        world_pass(&w, 100);
    OP(verb_offload, "w", HBM_TIER_HOST, true);
    host_ahead_limit(w.device, 0);
    world_run(&w);
    assert_int_equal(w.device->pooled, 0);
}

static void puts_a_model_to_sleep(void)
{
    OP(verb_sleep, "m", HBM_TIER_HOST, NULL);
    OP(verb_wake, "m");
}

static void compresses(void)
{
    struct compress_args args = {.sel = "m/*", .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};

    if (!OP(verb_compress, &args))
        OP(verb_decompress, "m/*");
    args = (struct compress_args){.sel = "w", .encoding = {.codec = HBM_CODEC_BF16}};
    OP(verb_compress, &args);
}

static void starts_again(void);

static void parks(void)
{
    struct compress_args args = {
        .sel = "*", .mode = WIRE_MODE_PARK, .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};
    const struct parking park = {.encoding = {.codec = HBM_CODEC_BF16}};
    struct lease *lease;

    int error = OP(verb_compress, &args);
    OP(verb_offload, "w", HBM_TIER_DISK, true);
    attach_to(bob, stranger, "~1000/w", HBM_RO, &lease);
    OP(verb_sleep, "m", HBM_TIER_HOST, &park);
    OP(verb_hash, "*");
    OP(verb_offload, "m/*", HBM_TIER_DISK, true);
    OP(verb_restore, "w");
    if (!error)
        OP(verb_decompress, "w");
}

static void starts_again_with_what_is_parked(void)
{
    struct compress_args args = {.sel = "away", .mode = WIRE_MODE_PARK, .encoding = {.codec = HBM_CODEC_BF16}};

    fault.held = true;
    restore(&w, "away");
    OP(verb_compress, &args);
    offload(&w, "away", HBM_TIER_HOST, true);
    assert_non_null(buffer_packed(named(&w, "away")));
    starts_again();
}

static void compresses_copies(void)
{
    struct compress_args args = {.sel = "w",
                                 .as = "copy",
                                 .mode = WIRE_MODE_COPY,
                                 .encoding = {.codec = HBM_CODEC_INT8, .granularity = 0xff}};

    OP(verb_compress, &args);
    args = (struct compress_args){.sel = "m/*", .mode = WIRE_MODE_COPY, .encoding = {.codec = HBM_CODEC_BF16}};
    OP(verb_compress, &args);
}

static void hashes(void)
{
    OP(verb_hash, "*");
}

static void writes_and_reads_a_file(void)
{
    static const char *const names[] = {"w", "coded", "spilled"};
    struct wire_range ranges[3];

    for (unsigned i = 0; i < 3; i++)
        ranges[i] = (struct wire_range){named(&w, names[i])->id, 0, i * 4096, 4096};
    if (!OP(verb_transfer, file, ranges, 3, true))
        OP(verb_transfer, file, ranges, 1, false);
}

static void frees(void)
{
    DO(NULL, verb_free, named(&w, "w")->id);
    OP(verb_free_sel, "away");
    DO(NULL, verb_rm, "m");
}

static void renames(void)
{
    DO(NULL, verb_rename, "w", "renamed");
    DO(NULL, verb_rename, "m", "other");
}

static void moves_to_a_peer_and_back(void)
{
    OP(verb_offload, "w", HBM_TIER_PEER, false);
    OP(verb_offload, "m/layer.0.*", HBM_TIER_PEER, false);
    OP(verb_offload, "w", HBM_TIER_HOST, true);
    OP(verb_restore, "*");
}

static void drains(void)
{
    OP(verb_drain, "");
    w.device->state = w.peer->state = DEVICE_READY;
}

static void is_cancelled(void)
{
    struct ask *question = ask(&w, alice, NULL);
    uint64_t id;

    w.hold = true;
    verb_sleep(w.core, &question->call, "m", HBM_TIER_DISK, NULL);
    if (!outcome(question, &id)) {
        DO(NULL, verb_op_cancel, id);
        w.hold = false;
        world_run(&w);
        assert_true(op_has_ended(op_get(w.core, id)));
    }
    w.hold = false;
}

/* The worker is told of the end of each block that it made: it has memory that no fd is. */
static void has_blocks_of_the_workers_and_lets_go_of_them(void)
{
    struct alloc_args args = {.name = "ipc",
                              .size = 4096,
                              .dims = {1024},
                              .rank = 1,
                              .dtype = HBM_F32,
                              .handle = HBM_HANDLE_CUDA_IPC,
                              .mode = 0600};
    struct lease *lease = NULL;

    if (!LEASE(&lease, alice, reader, verb_alloc, &args))
        DO(reader, verb_detach, lease->id);
    assert_int_equal(w.ran[JOB_DESTROY], w.n_blocks);
}

static void loses_a_writer(void)
{
    struct lease *lease;
    uint64_t id = reader->id;

    w.device->is_cuda = true; /* the driver is asked whether it has let go */
    w.listed_pid = -1;
    attach_to(alice, reader, "w", HBM_RW, &lease);
    session_gone(reader, false, "killed");
    if ((reader = session_get(w.core, id)))
        session_process_ended(reader);
    for (unsigned i = 0; i < 10; i++)
        world_pass(&w, 1000);
    assert_null(session_get(w.core, id));
    w.device->is_cuda = false;
}

static void starts_again(void)
{
    fault.held = true;
    attach(&w, reader, "w", HBM_RW);
    attach(&w, other, "m/layer.0.w", HBM_RO);
    char *before = world_picture(&w);
    world_crash(&w);
    world_start(&w);
    fault.held = false;
    int error = world_take_over(&w);
    fault.held = true;
    if (error) { /* the owner ends, and is started again */
        assert_int_equal(error, -ENOMEM);
        assert_true(fault.struck);
        world_crash(&w);
        assert_int_equal(world_come_back(&w), 0);
    }
    char *after = world_picture(&w);
    assert_string_equal(after, before);
    free(before);
    free(after);
}

/* ---- All of them, for every n ---- */

static const struct scene scenes[] = {
#define SCENE(name)                                                                                                \
    {                                                                                                              \
#name, name, false                                                                                         \
    }
#define FREEING(name)                                                                                              \
    {                                                                                                              \
#name, name, true                                                                                          \
    }
    SCENE(opens_a_session),
    SCENE(allocates),
    SCENE(attaches_and_detaches),
    SCENE(gives_a_stranger_copies),
    SCENE(attaches_a_model),
    SCENE(moves_what_is_mapped_and_locks_it),
    SCENE(locks_before_the_bytes_are_there),
    SCENE(demotes_what_is_mapped_and_promotes_it),
    SCENE(attaches_in_place),
    SCENE(offloads_and_restores),
    SCENE(moves_to_a_peer_and_back),
    SCENE(prefetches),
    SCENE(says_what_it_uses_next),
    SCENE(keeps_a_window),
    SCENE(puts_a_model_to_sleep),
    SCENE(compresses),
    SCENE(compresses_copies),
    SCENE(parks),
    SCENE(hashes),
    SCENE(writes_and_reads_a_file),
    FREEING(frees),
    SCENE(renames),
    SCENE(drains),
    SCENE(waits_for_memory),
    SCENE(makes_room),
    SCENE(has_memory_made_ahead),
    SCENE(says_what_goes_first),
    FREEING(publishes_and_replaces),
    SCENE(waits_for_a_builder),
    SCENE(is_cancelled),
    SCENE(has_blocks_of_the_workers_and_lets_go_of_them),
    SCENE(loses_a_writer),
    SCENE(starts_again),
    SCENE(starts_again_with_what_is_parked),
};

static unsigned uses_of(const struct scene *scene)
{
    unsigned n = 0;

    do {
        world_begin(&w);
        world_add_peer(&w);
        furnish();
        fault.scene = scene->name;
        strike(++n);
        scene->run();
        fault.held = true;
        check_all(scene);
        close(file);
        world_end(&w);
    } while (fault.struck);
    fault.scene = NULL;
    return n - 1;
}

static void whatever_use_of_memory_fails_is_refused_and_nothing_is_lost(void **state)
{
    const struct scene *scene = *state;

    assert_true(uses_of(scene) > 0);
}

static int tell(void **state)
{
    (void)state;
    if (fault.scene)
        print_error("%s: use %u of memory failed, by code at %#tx\n", fault.scene, fault.n,
                    fault.by - __executable_start);
    return 0;
}

int main(void)
{
    struct CMUnitTest tests[sizeof(scenes) / sizeof(scenes[0])];

    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        tests[i] = (struct CMUnitTest){
            .name = scenes[i].name,
            .test_func = whatever_use_of_memory_fails_is_refused_and_nothing_is_lost,
            .teardown_func = tell,
            .initial_state = (void *)&scenes[i],
        };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
