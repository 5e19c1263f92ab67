/* Live demotion, and leases in place: memory that is used in the host tier (FAULTS 15, 16, 21 and 26). */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/host_pool.h"

static struct ask *demote(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_demote(w.core, &question->call, sel, true);
    world_run(&w);
    return question;
}

static struct ask *promote(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_restore(w.core, &question->call, sel);
    world_run(&w);
    return question;
}

static struct ask *lock(struct session *session, const struct lease *lease, uint32_t timeout_ms)
{
    struct ask *question = ask(&w, session->who, session);

    verb_lock(w.core, &question->call, &lease->mappings[0]->slot, 1, timeout_ms);
    world_run(&w);
    return question;
}

static _Atomic uint64_t *word_of(const struct lease *lease)
{
    return &lease->session->words[lease->mappings[0]->slot];
}

static bool is_asked(const struct lease *lease)
{
    return *word_of(lease) & LOCKWORD_RECLAIM;
}

/* As libhbm maps what came with the answer. */
static void maps(const struct lease *lease, uint64_t locks)
{
    lockword_land(word_of(lease));
    lockword_arrive(word_of(lease), locks);
}

static struct lease *attach_with(struct session *session, const char *name, enum hbm_access access, uint32_t flags,
                                 int *error)
{
    struct attach_args args = {.access = access, .timeout_ms = 10000, .flags = flags};
    struct ask *question = ask(&w, session->who, session);

    snprintf(args.name, sizeof(args.name), "%s", name);
    verb_attach(w.core, &question->call, &args);
    world_run(&w);
    for (unsigned i = 0; i < 10 && !question->answers; i++)
        world_pass(&w, 501);
    *error = question->error;
    uint64_t id = question->id;
    assert_int_equal(question->answers, 1);
    free(question);
    return *error ? NULL : lease_get(w.core, id);
}

static struct lease *attach_in_place(struct session *session, const char *name, enum hbm_access access)
{
    int error = 0;
    struct lease *lease = attach_with(session, name, access, WIRE_IN_PLACE, &error);

    if (!lease)
        fail_msg("%s: %s", hbm_error_name(error), last_detail);
    return lease;
}

static struct arena *arena_of(const char *name)
{
    return named(&w, name)->arena;
}

static bool is_live(const char *name)
{
    return arena_tier(arena_of(name)) == HBM_TIER_HOST && arena_of(name)->live;
}

/* ---- The move ---- */

static void a_writer_lets_go_it_is_copied_and_its_lock_has_the_copy(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    unsigned copies = w.ran[JOB_COPY];

    fill(buffer, 3);
    struct ask *question = demote("w");
    assert_true(is_asked(lease));
    assert_int_equal(w.ran[JOB_COPY], copies);
    w.hold = true;
    client_lets_go(&w, session);
    struct ask *locking = lock(session, lease, 1000);
    assert_int_equal(locking->answers, 0); /* it waits, and does not call the move off */
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(is_live("w") && lease->mappings[0]->extent == buffer->arena->extent);
    assert_true(*word_of(lease) & LOCKWORD_HOST);
    maps(lease, 1);
    assert_true(*word_of(lease) & LOCKWORD_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    assert_true(is_filled(buffer, 3));

    lockword_unlock(word_of(lease));
    fill(buffer, 4); /* by whoever has it mapped there */
    question = promote("w");
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(arena_tier(buffer->arena) == HBM_TIER_DEVICE && !buffer->arena->live && is_filled(buffer, 4));
    assert_int_equal(error_of(&w, lock(session, lease, 0)), 0);
    assert_false(*word_of(lease) & LOCKWORD_HOST);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    world_check_books(&w);
}

static void a_reader_keeps_it_until_the_copy_is_made(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);

    for (unsigned way = 0; way < 2; way++) {
        unsigned copies = w.ran[JOB_COPY];
        w.hold = true;
        struct ask *question = way ? promote("w") : demote("w");
        while (w.ran[JOB_COPY] == copies) {
            assert_false(is_asked(lease));
            assert_true(world_step(&w));
        }
        world_run(&w);
        assert_true(is_asked(lease));
        w.hold = false;
        client_lets_go(&w, session);
        assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
        assert_int_equal(arena_tier(buffer->arena), way ? HBM_TIER_DEVICE : HBM_TIER_HOST);
        assert_int_equal(error_of(&w, lock(session, lease, 0)), 0);
        maps(lease, 0);
    }
    world_check_books(&w);
}

static void a_reader_that_does_not_let_go_of_a_copied_arena_is_named_and_keeps_it(void **state)
{
    char pid[16];
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);

    client_locks(session, lease->mappings[0]->slot);
    char *before = world_picture(&w);
    struct ask *question = demote("w");
    assert_true(is_asked(lease));
    world_pass(&w, 501);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_BUSY);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_non_null(strstr(op->detail, pid));
    assert_false(is_asked(lease));
    question = demote("w");
    assert_true(is_asked(lease));
    op_cancel(op_get(w.core, question->id), "asked to");
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_false(is_asked(lease));
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    world_check_books(&w);
    free(before);
    free(after);
}

static void of_several_all_move_or_none(void **state)
{
    (void)state;
    make_kept(&w, "read", 32, 1024);
    make_kept(&w, "written", 32, 1024);
    struct session *session = client(&w, alice), *stuck = client(&w, alice);
    struct lease *writes = attach(&w, session, "written", HBM_RW), *reads = attach(&w, stuck, "read", HBM_RO);

    client_locks(stuck, reads->mappings[0]->slot);
    struct ask *question = demote("[rw]*");
    assert_true(is_asked(writes) && !is_asked(reads)); /* which is asked when both are copied */
    client_lets_go(&w, session);
    world_run(&w);
    assert_true(is_asked(reads));
    struct ask *locking = lock(session, writes, 5000);
    world_pass(&w, 501);
    assert_int_equal(op_of(&w, question)->error, HBM_E_BUSY);
    assert_int_equal(error_of(&w, locking), 0);
    assert_false(*word_of(writes) & LOCKWORD_HOST);
    assert_int_equal(arena_tier(arena_of("written")), HBM_TIER_DEVICE);
    assert_int_equal(arena_tier(arena_of("read")), HBM_TIER_DEVICE);
    assert_int_equal(w.device->used[HBM_TIER_HOST], 0);
    world_check_books(&w);
}

static void what_may_be_written_in_host_memory_has_no_checksum(void **state)
{
    (void)state;
    make_kept(&w, "read", 32, 1024);
    make_kept(&w, "written", 32, 1024);
    struct session *session = client(&w, alice);
    attach(&w, session, "read", HBM_RO);
    attach(&w, session, "written", HBM_RW);
    struct ask *question = demote("[rw]*");

    for (unsigned i = 0; i < 2; i++) { /* of what it writes, and when all is copied of what it reads */
        client_lets_go(&w, session);
        world_run(&w);
    }
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(is_live("read") && arena_of("read")->extent->has_checksum);
    assert_true(is_live("written") && !arena_of("written")->extent->has_checksum);
    assert_int_equal(world_restart(&w), 0);
    assert_true(arena_of("read")->extent->has_checksum && arena_of("read")->extent->exported);
    assert_false(arena_of("written")->extent->has_checksum);
}

static void what_lies_in_host_memory_already_is_used_there(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    struct ask *question = ask(&w, alice, NULL);

    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, true);
    world_run(&w);
    client_lets_go(&w, session);
    op_of(&w, question);
    unsigned copies = w.ran[JOB_COPY];
    assert_false(is_live("w"));
    assert_int_equal(op_of(&w, demote("w"))->state, WIRE_OP_DONE);
    assert_true(is_live("w"));
    assert_int_equal(error_of(&w, lock(session, lease, 0)), 0);
    assert_int_equal(w.ran[JOB_COPY], copies);
    assert_int_equal(w.core->lock_waits.n, 0);
    assert_false(arena_of("w")->extent->has_checksum);
    question = ask(&w, alice, NULL);
    verb_prefetch(w.core, &question->call, "w");
    const struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_non_null(op->rows[0].skipped);
    assert_true(is_live("w"));
}

/* Encoded, it is nothing to use: it comes back to the device. */
static void what_is_parked_is_not_used_where_it_lies(void **state)
{
    struct compress_args args = {.sel = "w", .encoding = {.codec = HBM_CODEC_BF16}, .mode = WIRE_MODE_PARK};
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct ask *question = ask(&w, alice, NULL);

    verb_compress(w.core, &question->call, &args);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    assert_non_null(arena_of("w")->extent->packing);
    int error = 0;
    struct lease *lease = attach_with(session, "w", HBM_RO, WIRE_UNLOCKED | WIRE_IN_PLACE, &error);
    assert_int_equal(op_of(&w, demote("w"))->state, WIRE_OP_DONE);
    assert_false(is_live("w"));
    assert_int_equal(error_of(&w, lock(session, lease, 1000)), 0);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    maps(lease, 0);
    question = demote("w"); /* raw, whatever its policy */
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(is_live("w") && !arena_of("w")->extent->packing);
    world_check_books(&w);
}

static void it_is_live_as_long_as_somebody_has_it_attached(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    make_kept(&w, "alone", 32, 1024);
    struct session *session = client(&w, alice), *other = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct ask *question = demote("*");

    client_lets_go(&w, session);
    op_of(&w, question);
    assert_true(is_live("w") && !is_live("alone"));
    struct lease *second = attach(&w, other, "w", HBM_RW); /* no move */
    assert_ptr_equal(second->mappings[0]->extent, arena_of("w")->extent);
    detach(&w, lease);
    assert_true(is_live("w"));
    assert_int_equal(world_restart(&w), 0);
    assert_true(is_live("w"));
    list_for_each_safe (node, &w.core->sessions)
        session_gone(list_entry(node, struct session, node), true, "bye");
    assert_false(is_live("w"));
    assert_int_equal(world_restart(&w), 0);
    assert_false(is_live("w"));
    attach(&w, client(&w, alice), "w", HBM_RO);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void an_owner_that_dies_before_the_swap_leaves_it_on_the_device_and_after_it_live(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RW);
    free(demote("w"));
    w.hold = true;
    client_lets_go(&w, session);
    assert_int_equal(world_restart(&w), 0);
    w.hold = false;
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    assert_int_equal(op_of(&w, demote("w"))->state, WIRE_OP_DONE); /* the word says that it has let go */
    assert_int_equal(world_restart(&w), 0);
    assert_true(is_live("w"));
    assert_int_equal(op_of(&w, promote("w"))->state, WIRE_OP_DONE);
    assert_false(is_live("w"));
    world_check_books(&w);
}

/* ---- GPUs ---- */

static void where_the_driver_shares_no_host_memory_it_is_refused(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);

    w.device->is_cuda = true; /* and its host memory here is memfds */
    char *before = world_picture(&w);
    struct op *op = op_of(&w, demote("w"));
    assert_int_equal(op->error, HBM_E_UNSUPPORTED);
    assert_non_null(strstr(op->detail, "--live"));
    assert_false(is_asked(lease));
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    client_lets_go(&w, session);
    detach(&w, lease);
    offload(&w, "w", HBM_TIER_HOST, true);
    attach_in_place(session, "w", HBM_RO);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE); /* in place is where it can be mapped */
    host_pool_drop(w.core);
    world_run(&w);
    world_check_books(&w);
    free(before);
    free(after);
}

static void host_memory_that_a_client_had_is_not_kept_for_the_next_move(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct ask *question = demote("w");

    client_lets_go(&w, session);
    op_of(&w, question);
    detach(&w, lease);
    assert_true(arena_of("w")->extent->exported);
    assert_int_equal(world_restart(&w), 0);
    w.device->is_cuda = true;
    restore(&w, "w");
    assert_int_equal(w.device->pooled, 0);
    offload(&w, "w", HBM_TIER_HOST, true); /* which nobody was given */
    restore(&w, "w");
    assert_true(w.device->pooled > 0);
}

/* ---- In place ---- */

static void a_lease_in_place_maps_what_is_in_memory_and_brings_from_disk_to_host(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);

    fill(buffer, 5);
    offload(&w, "w", HBM_TIER_HOST, false);
    unsigned copies = w.ran[JOB_COPY];
    struct lease *lease = attach_in_place(session, "w", HBM_RW);
    assert_true(w.ran[JOB_COPY] == copies && *word_of(lease) & LOCKWORD_HOST && !is_live("w"));
    assert_false(buffer->arena->extent->has_checksum); /* it may be written there */
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_DISK, false);
    world_run(&w);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(error_of(&w, lock(session, lease, 1000)), 0);
    maps(lease, 0);
    assert_true(arena_tier(buffer->arena) == HBM_TIER_HOST && is_filled(buffer, 5));
    question = promote("w");
    client_lets_go(&w, session);
    op_of(&w, question);
    assert_int_equal(error_of(&w, lock(session, lease, 0)), 0);
    assert_false(*word_of(lease) & LOCKWORD_HOST);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void who_has_it_in_place_keeps_it_there_after_a_restart(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);

    offload(&w, "w", HBM_TIER_HOST, false);
    uint64_t id = attach_in_place(session, "w", HBM_RO)->id;
    assert_int_equal(world_restart(&w), 0);
    const struct lease *lease = lease_get(w.core, id);
    assert_true(lease->in_place && lease->mappings[0]->in_place && lease->mappings[0]->present);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_HOST);
    world_check_books(&w);
}

static void two_leases_of_one_session_are_two_mappings_where_one_is_in_place(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);

    offload(&w, "w", HBM_TIER_HOST, false);
    struct lease *one = attach_in_place(session, "w", HBM_RO), *again = attach_in_place(session, "w", HBM_RO);
    assert_ptr_equal(one->mappings[0], again->mappings[0]);
    client_locks(session, one->mappings[0]->slot);
    int error = 0;
    assert_null(attach_with(session, "w", HBM_RO, 0, &error)); /* it waits for itself */
    assert_int_equal(error, HBM_E_BUSY);
    lockword_unlock(word_of(one));
    struct attach_args args = {.name = "w", .timeout_ms = 1000};
    struct ask *question = ask(&w, alice, session);
    verb_attach(w.core, &question->call, &args);
    world_run(&w);
    client_lets_go(&w, session);
    world_run(&w);
    struct lease *other = lease_get(w.core, question->id);
    assert_int_equal(error_of(&w, question), 0);
    assert_ptr_not_equal(other->mappings[0], one->mappings[0]);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    uint32_t slots[] = {one->mappings[0]->slot, other->mappings[0]->slot};
    lockword_turn_back(word_of(other));
    verb_released(w.core, session, slots[1]);
    offload(&w, "w", HBM_TIER_HOST, false);
    question = ask(&w, alice, session);
    verb_lock(w.core, &question->call, slots, 2, 1000); /* one of them needs it on the device */
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void who_wants_it_on_the_device_is_refused_by_the_pid_that_has_it_in_place(void **state)
{
    char pid[16];
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice), *other = client(&w, alice);
    int error = 0;

    offload(&w, "w", HBM_TIER_HOST, false);
    struct lease *lease = attach_in_place(session, "w", HBM_RO);
    client_locks(session, lease->mappings[0]->slot);
    assert_null(attach_with(other, "w", HBM_RO, 0, &error));
    assert_int_equal(error, HBM_E_BUSY);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_non_null(strstr(last_detail, pid));
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_HOST);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    world_check_books(&w);
}

static void a_model_in_place_comes_from_each_tier_as_far_as_it_has_to(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 3);
    struct session *session = client(&w, alice);
    struct attach_args args = {.name = "m", .flags = WIRE_IN_PLACE, .timeout_ms = 1000};
    uint64_t bytes[HBM_PLACES];

    offload(&w, "m/layer.0.w", HBM_TIER_DISK, true);
    offload(&w, "m/layer.1.w", HBM_TIER_HOST, true);
    struct ask *question = ask(&w, alice, session);
    verb_attach_model(w.core, &question->call, &args);
    assert_int_equal(error_of(&w, question), 0);
    model_bytes(model, bytes);
    assert_int_equal(bytes[HBM_TIER_DISK], 0);
    assert_int_equal(bytes[HBM_TIER_HOST], 2 * bytes[HBM_TIER_DEVICE]);
    world_check_books(&w);
}

static void without_a_host_tier_it_comes_to_the_device(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    offload(&w, "w", HBM_TIER_DISK, false);
    w.device->capacity[HBM_TIER_HOST] = 0;
    attach_in_place(client(&w, alice), "w", HBM_RO);
    assert_int_equal(arena_tier(arena_of("w")), HBM_TIER_DEVICE);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_live_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_writer_lets_go_it_is_copied_and_its_lock_has_the_copy),
        CASE(a_reader_keeps_it_until_the_copy_is_made),
        CASE(a_reader_that_does_not_let_go_of_a_copied_arena_is_named_and_keeps_it),
        CASE(of_several_all_move_or_none),
        CASE(what_may_be_written_in_host_memory_has_no_checksum),
        CASE(what_lies_in_host_memory_already_is_used_there),
        CASE(what_is_parked_is_not_used_where_it_lies),
        CASE(it_is_live_as_long_as_somebody_has_it_attached),
        CASE(an_owner_that_dies_before_the_swap_leaves_it_on_the_device_and_after_it_live),
        CASE(where_the_driver_shares_no_host_memory_it_is_refused),
        CASE(host_memory_that_a_client_had_is_not_kept_for_the_next_move),
        CASE(a_lease_in_place_maps_what_is_in_memory_and_brings_from_disk_to_host),
        CASE(who_has_it_in_place_keeps_it_there_after_a_restart),
        CASE(two_leases_of_one_session_are_two_mappings_where_one_is_in_place),
        CASE(who_wants_it_on_the_device_is_refused_by_the_pid_that_has_it_in_place),
        CASE(a_model_in_place_comes_from_each_tier_as_far_as_it_has_to),
        CASE(without_a_host_tier_it_comes_to_the_device),
    };
    return cmocka_run_group_tests_name("live", tests, NULL, NULL);
}
