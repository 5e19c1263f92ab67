/* The peer tier: device memory of another device than the arena's own (FAULTS 18, 22, 24, 26). */
#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/links.h"
#include "daemon/core/listener.h"
#include "daemon/core/peer.h"

static struct buffer *away(void)
{
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 7);
    assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->state, WIRE_OP_DONE);
    return buffer;
}

static uint64_t used(const struct device *device)
{
    return device->used[HBM_TIER_DEVICE];
}

static void an_arena_that_lies_with_a_peer_keeps_its_own_device(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    uint64_t size = buffer->arena->extent->size;

    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_PEER);
    assert_ptr_equal(buffer->arena->device, w.device);
    assert_ptr_equal(arena_peer(buffer->arena), w.peer);
    assert_true(buffer->arena->extent->has_checksum);
    assert_int_equal(used(w.device), 0);
    assert_int_equal(used(w.peer), size);
    assert_int_equal(peer_bytes(w.core, w.peer), size);
    world_check_books(&w);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    assert_int_equal(used(w.peer), 0);
    assert_int_equal(used(w.device), size);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void a_restart_knows_whose_it_is(void **state)
{
    (void)state;
    away();
    char *before = world_picture(&w);

    for (unsigned lives = 0; lives < 2; lives++) {
        assert_int_equal(world_restart(&w), 0);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        assert_ptr_equal(named(&w, "w")->arena->device, w.device);
        world_check_books(&w);
    }
    free(before);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "w"), 7));
    assert_int_equal(used(w.peer), 0);
}

static void a_peer_that_is_gone_after_a_restart_has_lost_what_lay_there_and_nothing_else(void **state)
{
    (void)state;
    away();
    struct buffer *other = make_kept(&w, "other", 32, 1024);
    fill(other, 9);
    w.two = false;
    assert_int_equal(world_restart(&w), 0);
    assert_true(named(&w, "w")->arena->extent->lost);
    assert_int_equal(restore(&w, "w")->error, HBM_E_LOST);
    assert_int_equal(w.core->counters.lost, 1);
    assert_true(is_filled(named(&w, "other"), 9));
    assert_int_equal(offload(&w, "other", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
}

static void an_error_of_either_worker_leaves_it_where_it_was(void **state)
{
    static const unsigned opcodes[] = {JOB_CREATE, JOB_COPY};

    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    fill(buffer, 7);
    char *before = world_picture(&w);
    for (unsigned i = 0; i < 2; i++) {
        world_fail(&w, opcodes[i], 1, HBM_E_WORKER_DIED);
        assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->error, HBM_E_WORKER_DIED);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        free(after);
        assert_int_equal(used(w.peer), 0);
        world_check_books(&w);
    }
    free(before);
    assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->state, WIRE_OP_DONE);
    before = world_picture(&w);
    world_fail(&w, JOB_COPY, 1, HBM_E_CHECKSUM);
    assert_int_equal(restore(&w, "w")->error, HBM_E_CHECKSUM);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_true(is_filled(buffer, 7));
}

static void refused_with(const char *words)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_offload(w.core, &question->call, "w", HBM_TIER_PEER, false);
    assert_int_equal(error_of(&w, question), HBM_E_UNSUPPORTED);
    if (!strstr(last_detail, words))
        fail_msg("%s", last_detail);
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_DEVICE);
}

static void what_is_parked_and_was_damaged_there_is_not_packed(void **state)
{
    (void)state;
    const struct buffer *buffer = away();
    uint32_t flipped = 0x3f800000;

    park(&w, "w", HBM_CODEC_FP16);
    assert_int_equal(pwrite(buffer->arena->extent->fd, &flipped, sizeof(flipped), 128), sizeof(flipped));
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->error, HBM_E_CHECKSUM);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_PEER);
    world_check_books(&w);
}

static void what_is_in_the_way_of_each_device_is_said(void **state)
{
    (void)state;
    fill(make_kept(&w, "w", 32, 1024), 7);
    w.device->reaches = 0;
    refused_with("host-1: no peer access");
    w.device->reaches = UINT64_MAX;
    w.peer->state = DEVICE_DRAINED;
    refused_with("host-1: drained");
    w.peer->state = DEVICE_FAILED;
    refused_with("host-1: failed");
    w.peer->state = DEVICE_READY;
    listener_of(w.core, 0)->devices = 1;
    refused_with("host-1: its listener does not have it");
    listener_of(w.core, 0)->devices = UINT64_MAX;
    assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->state, WIRE_OP_DONE);
}

static void what_lies_on_a_device_that_does_not_answer_is_not_touched(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    unsigned copies = w.ran[JOB_COPY];

    w.peer->state = DEVICE_FAILED;
    assert_int_equal(restore(&w, "w")->error, HBM_E_DEVICE_LOST);
    assert_int_equal(w.ran[JOB_COPY], copies);
    w.peer->state = DEVICE_READY;
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_true(is_filled(buffer, 7));
}

static void a_peer_without_room_leaves_everything_as_it_was(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    fill(buffer, 7);
    char *before = world_picture(&w);

    w.peer->capacity[HBM_TIER_DEVICE] = buffer->arena->extent->size - 1;
    assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->error, HBM_E_TOO_LARGE);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before), free(after);
    world_check_books(&w);
}

static void a_crash_in_the_middle_finds_it_where_it_was(void **state)
{
    (void)state;
    fill(make_kept(&w, "w", 32, 1024), 7);
    struct ask *unanswered = ask(&w, alice, NULL);

    w.hold = true;
    verb_offload(w.core, &unanswered->call, "w", HBM_TIER_PEER, false);
    for (unsigned steps = 0; steps < 2; steps++) {
        assert_true(world_step(&w));
        world_run(&w);
        if (steps == 0) {
            assert_int_equal(world_restart(&w), 0);
            free(unanswered);
            assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_DEVICE);
            assert_int_equal(used(w.peer), 0);
            unanswered = ask(&w, alice, NULL);
            verb_offload(w.core, &unanswered->call, "w", HBM_TIER_PEER, false);
        }
    }
    w.hold = false;
    assert_int_equal(op_of(&w, unanswered)->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "w"), 7));
    world_check_books(&w);
}

static void a_drain_sends_what_lies_there_home(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    struct ask *question = ask(&w, root, NULL);

    verb_drain(w.core, &question->call, "host-1");
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_ptr_equal(buffer->arena->extent->device, w.device);
    assert_int_equal(used(w.peer), 0);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static int alloc_on_peer(uint64_t bytes)
{
    struct session *session = client(&w, bob);
    struct alloc_args args = {.dims = {bytes}, .rank = 1, .dtype = HBM_U8, .mode = 0600, .device = 1};
    struct ask *question = ask(&w, bob, session);

    verb_alloc(w.core, &question->call, &args);
    world_run(&w);
    for (unsigned i = 0; i < 100 && !question->answers; i++)
        world_pass(&w, 20);
    int error = error_of(&w, question);
    session_gone(session, true, "bye");
    return error;
}

/* FAULTS 18: as what is idle of its own does; to the host memory of the device that it belongs to. */
static void what_lies_with_a_peer_goes_when_that_one_wants_the_room(void **state)
{
    (void)state;
    struct buffer *buffer = away();
    uint64_t size = buffer->arena->extent->size;

    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){100, 90};
    w.peer->capacity[HBM_TIER_DEVICE] = 2 * size;
    assert_int_equal(alloc_on_peer(size), 0);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_PEER);
    w.device->state = DEVICE_STARTING; /* whose host memory it would be */
    assert_int_equal(alloc_on_peer(2 * size), HBM_E_NO_MEMORY);
    w.device->state = DEVICE_READY;
    struct ask *question = ask(&w, alice, NULL);
    verb_priority(w.core, &question->call, "w", PRIORITY_NEVER);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(alloc_on_peer(2 * size), HBM_E_NO_MEMORY);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_PEER);
    question = ask(&w, alice, NULL);
    verb_priority(w.core, &question->call, "w", 3);
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(alloc_on_peer(2 * size), 0);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_ptr_equal(buffer->arena->extent->device, w.device);
    assert_int_equal(w.core->counters.evictions, 1);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void cuda_ipc_memory_lies_there_as_plain_memory_and_comes_back_as_it_was(void **state)
{
    (void)state;
    struct session *session = make_cuda_ipc(&w, "w");

    session_gone(session, true, "bye");
    assert_int_equal(offload(&w, "w", HBM_TIER_PEER, false)->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "w")->arena->extent->kind, JOB_EXTENT_DEVICE);
    world_check_books(&w);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "w")->arena->extent->kind, JOB_EXTENT_CUDA_IPC);
    world_check_books(&w);
}

/* ---- More than one link ---- */

static struct buffer *large(void)
{
    w.core->limits.split_bytes = 4 * MIB;
    struct buffer *buffer = make_kept(&w, "w", 5 * 256 + 3, 1024); /* 5 MiB and 12 KiB */
    fill(buffer, 7);
    return buffer;
}

static unsigned links_of(const struct op *op)
{
    assert_int_equal(op->state, WIRE_OP_DONE);
    return op->links;
}

static void a_large_copy_goes_over_both_links_with_one_checksum(void **state)
{
    (void)state;
    struct buffer *buffer = large();
    unsigned copies = w.ran[JOB_COPY];

    assert_int_equal(links_of(offload(&w, "w", HBM_TIER_HOST, false)), 2);
    assert_int_equal(w.ran[JOB_COPY], copies + 2);
    uint64_t checksum = buffer->arena->extent->checksum;
    assert_int_equal(links_of(restore(&w, "w")), 2);
    assert_true(is_filled(buffer, 7));
    w.core->limits.split_bytes = 0;
    assert_int_equal(links_of(offload(&w, "w", HBM_TIER_HOST, false)), 0);
    assert_int_equal(buffer->arena->extent->checksum, checksum);
    w.core->limits.split_bytes = 4 * MIB;
    assert_int_equal(links_of(restore(&w, "w")), 2); /* and is checked against what one worker hashed */
    assert_true(is_filled(buffer, 7));
    assert_int_equal(w.device->moves + w.peer->moves, 0);
    world_check_books(&w);
}

static const struct job_copy_request *copy_of(const struct device *device)
{
    list_for_each (node, &w.jobs) {
        const struct job *job = list_entry(node, struct job, node);
        if (job->opcode == JOB_COPY && job->device == device->index)
            return &job->request.copy;
    }
    fail_msg("device %u has no copy to make", device->index);
    return NULL;
}

static void a_neighbour_keeps_the_host_memory_mapped_until_it_is_told_of_its_end(void **state)
{
    (void)state;
    uint64_t token = 0;

    w.device->is_cuda = w.peer->is_cuda = true;
    large();
    for (unsigned i = 0; i < 3; i++) {
        struct ask *question = ask(&w, alice, NULL);
        w.hold = true;
        verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
        world_run(&w);
        if (!i)
            world_step(&w); /* the host memory is made */
        world_run(&w);
        if (i)
            assert_int_equal(copy_of(w.device)->target.token, token);
        token = copy_of(w.device)->target.token;
        assert_true(world_step(&w)); /* the own part: its memory is mapped */
        assert_int_not_equal(token, 0);
        assert_int_equal(copy_of(w.peer)->target.token, token);
        w.hold = false;
        assert_int_equal(links_of(op_of(&w, question)), 2);
        assert_int_equal(links_of(restore(&w, "w")), 2);
    }
    assert_int_equal(w.ran[JOB_DESTROY], 0);
    world_pass(&w, 61000);
    assert_int_equal(w.ran[JOB_DESTROY], 2);
    assert_int_equal(w.device->pooled, 0);
    world_check_books(&w);
}

static void a_neighbour_that_cannot_help_is_left_alone(void **state)
{
    (void)state;
    large();
    offload(&w, "w", HBM_TIER_HOST, false);
    for (unsigned why = 0; why < 5; why++) {
        w.peer->moves = why == 0;
        w.peer->reaches = why == 1 ? 0 : UINT64_MAX;
        w.peer->state = why == 2 ? DEVICE_DRAINED : DEVICE_READY;
        w.peer->capacity[HBM_TIER_DEVICE] = why == 3 ? 31 * MIB : 64 * MIB;
        w.peer->worker_pid = why != 4;
        assert_int_equal(links_of(restore(&w, "w")), 0);
        w.core->limits.split_bytes = 0;
        assert_int_equal(links_of(offload(&w, "w", HBM_TIER_HOST, false)), 0);
        w.core->limits.split_bytes = 4 * MIB;
    }
    w.peer->worker_pid = 1;
    assert_int_equal(links_of(restore(&w, "w")), 2);
}

/* The neighbour's part is the second to be submitted. */
static void what_a_neighbour_fails_to_copy_goes_over_the_own_link(void **state)
{
    static const int errors[] = {HBM_E_WORKER_DIED, HBM_E_NO_MEMORY, HBM_E_CUDA, HBM_E_IO};

    (void)state;
    struct buffer *buffer = large();
    for (unsigned i = 0; i < 4; i++) {
        unsigned copies = w.ran[JOB_COPY];
        world_fail(&w, JOB_COPY, 2, errors[i]);
        assert_int_equal(links_of(offload(&w, "w", HBM_TIER_HOST, false)), 2);
        assert_int_equal(w.ran[JOB_COPY], copies + 3);
        world_fail(&w, JOB_COPY, 2, errors[i]);
        assert_int_equal(links_of(restore(&w, "w")), 2);
        assert_int_equal(w.ran[JOB_COPY], copies + 6);
        assert_true(is_filled(buffer, 7));
        assert_int_equal(w.device->moves + w.peer->moves, 0);
        world_check_books(&w);
    }
}

static void a_neighbours_room_is_taken_while_it_helps(void **state)
{
    (void)state;
    large();
    struct ask *question = ask(&w, alice, NULL);
    uint64_t before = used(w.peer);

    w.hold = true;
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    assert_int_equal(used(w.peer), before);
    assert_true(world_step(&w)); /* the host memory is made */
    world_run(&w);
    assert_int_equal(used(w.peer), before + LINKS_PASSING);
    assert_true(world_step(&w)); /* the own part */
    assert_int_equal(used(w.peer), before + LINKS_PASSING);
    assert_true(world_step(&w)); /* the neighbour's */
    assert_int_equal(used(w.peer), before);
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    w.core->limits.watermarks[HBM_TIER_DEVICE] = (struct watermarks){40, 20}; /* of 64 MiB: not for this would anything leave */
    assert_int_equal(links_of(restore(&w, "w")), 0);
    world_check_books(&w);
}

static void expect_failure(const char *before, const struct op *op, int error)
{
    assert_int_equal(op->error, error);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(after);
    assert_int_equal(w.device->moves + w.peer->moves, 0);
    world_check_books(&w);
}

static void an_error_of_the_own_part_is_the_whole_copys(void **state)
{
    (void)state;
    struct buffer *buffer = large();
    char *before = world_picture(&w);

    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    expect_failure(before, offload(&w, "w", HBM_TIER_HOST, false), HBM_E_WORKER_DIED);
    /* The own link fails as well, with what fell to it. */
    world_fail(&w, JOB_COPY, 1, HBM_E_IO);
    expect_failure(before, offload(&w, "w", HBM_TIER_HOST, false), HBM_E_IO);
    free(before);
    assert_int_equal(links_of(offload(&w, "w", HBM_TIER_HOST, false)), 2);
    before = world_picture(&w);
    world_fail(&w, JOB_COPY, 1, HBM_E_IO);
    expect_failure(before, restore(&w, "w"), HBM_E_IO);
    assert_int_equal(used(w.device), 0);
    buffer->arena->extent->checksum ^= 1;
    assert_int_equal(restore(&w, "w")->error, HBM_E_CHECKSUM);
    buffer->arena->extent->checksum ^= 1;
    assert_int_equal(links_of(restore(&w, "w")), 2);
    assert_true(is_filled(buffer, 7));
    free(before);
}

/* It may write once more when somebody has the memory. */
static void a_neighbour_that_was_killed_and_is_still_there_fails_the_copy(void **state)
{
    (void)state;
    struct buffer *buffer = large();

    w.fault_at_large = true;
    for (unsigned i = 0; i < 2; i++) {
        char *before = world_picture(&w);
        world_fail(&w, JOB_COPY, 2, HBM_E_WORKER_DIED);
        expect_failure(before, i ? restore(&w, "w") : offload(&w, "w", HBM_TIER_HOST, false), HBM_E_WORKER_DIED);
        free(before);
        assert_int_equal(links_of(i ? restore(&w, "w") : offload(&w, "w", HBM_TIER_HOST, false)), 2);
    }
    assert_true(is_filled(buffer, 7));
}

static void a_cancel_ends_all_parts(void **state)
{
    (void)state;
    struct buffer *buffer = large();
    struct ask *question = ask(&w, alice, NULL);

    w.hold = true;
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    assert_true(world_step(&w)); /* the host memory is made */
    world_run(&w);
    op_cancel(op_get(w.core, question->id), "asked to");
    unsigned copies = w.ran[JOB_COPY];
    w.hold = false;
    assert_int_equal(op_of(&w, question)->error, HBM_E_CANCELLED);
    assert_in_range(w.ran[JOB_COPY], copies, copies + 1); /* the neighbour's has not begun */
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    assert_int_equal(w.device->moves + w.peer->moves, 0);
    assert_int_equal(used(w.peer), 0);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void a_neighbour_that_was_slower_gets_less_the_next_time(void **state)
{
    (void)state;
    uint64_t shares[3];

    large();
    for (unsigned i = 0; i < 3; i++) {
        struct ask *question = ask(&w, alice, NULL);
        w.hold = true;
        w.peer->link_share = i == 0 ? 0 : i == 1 ? LINKS_SHARE / 2 : LINKS_SHARE_MIN;
        verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
        world_run(&w);
        while (list_first(&w.jobs) && list_entry(list_first(&w.jobs), struct job, node)->opcode != JOB_COPY)
            world_step(&w), world_run(&w);
        assert_true(world_step(&w)); /* the own part */
        shares[i] = copy_of(w.peer)->bytes;
        w.hold = false;
        assert_int_equal(links_of(op_of(&w, question)), 2);
        assert_in_range(w.peer->link_share, LINKS_SHARE_MIN, LINKS_SHARE);
        assert_int_equal(links_of(restore(&w, "w")), 2);
    }
    assert_int_equal(shares[0], 2 * MIB);
    assert_int_equal(shares[1], 1 * MIB);
    assert_int_equal(shares[2], 1 * MIB); /* a grain at least */
}

static void a_crash_between_its_parts_finds_it_where_it_was(void **state)
{
    (void)state;
    large();
    struct ask *unanswered = ask(&w, alice, NULL);

    w.hold = true;
    verb_offload(w.core, &unanswered->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    assert_true(world_step(&w));
    world_run(&w);
    assert_true(world_step(&w)); /* one part of two */
    assert_int_equal(world_restart(&w), 0);
    free(unanswered);
    w.hold = false;
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_DEVICE);
    assert_true(is_filled(named(&w, "w"), 7));
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup_two, world_teardown)

int core_peer_cases(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_arena_that_lies_with_a_peer_keeps_its_own_device),
        CASE(a_restart_knows_whose_it_is),
        CASE(a_peer_that_is_gone_after_a_restart_has_lost_what_lay_there_and_nothing_else),
        CASE(an_error_of_either_worker_leaves_it_where_it_was),
        CASE(what_is_parked_and_was_damaged_there_is_not_packed),
        CASE(what_is_in_the_way_of_each_device_is_said),
        CASE(what_lies_on_a_device_that_does_not_answer_is_not_touched),
        CASE(a_peer_without_room_leaves_everything_as_it_was),
        CASE(a_crash_in_the_middle_finds_it_where_it_was),
        CASE(a_drain_sends_what_lies_there_home),
        CASE(what_lies_with_a_peer_goes_when_that_one_wants_the_room),
        CASE(cuda_ipc_memory_lies_there_as_plain_memory_and_comes_back_as_it_was),
        CASE(a_large_copy_goes_over_both_links_with_one_checksum),
        CASE(a_neighbour_keeps_the_host_memory_mapped_until_it_is_told_of_its_end),
        CASE(a_neighbour_that_was_slower_gets_less_the_next_time),
        CASE(a_neighbour_that_cannot_help_is_left_alone),
        CASE(what_a_neighbour_fails_to_copy_goes_over_the_own_link),
        CASE(a_neighbours_room_is_taken_while_it_helps),
        CASE(an_error_of_the_own_part_is_the_whole_copys),
        CASE(a_neighbour_that_was_killed_and_is_still_there_fails_the_copy),
        CASE(a_cancel_ends_all_parts),
        CASE(a_crash_between_its_parts_finds_it_where_it_was),
    };

    return cmocka_run_group_tests_name("peer", tests, NULL, NULL);
}
