/* What is had, and shared, and given back. */
#include "memory_scenes.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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

const struct scene memory_lease_scenes[] = {
    SCENE(opens_a_session),
    SCENE(allocates),
    SCENE(attaches_and_detaches),
    SCENE(gives_a_stranger_copies),
    SCENE(attaches_a_model),
    SCENE(attaches_in_place),
    FREEING(frees),
    SCENE(renames),
    SCENE(waits_for_memory),
    SCENE(says_what_goes_first),
    FREEING(publishes_and_replaces),
    SCENE(waits_for_a_builder),
    SCENE(has_blocks_of_the_workers_and_lets_go_of_them),
    SCENE(loses_a_writer),
    {0},
};
