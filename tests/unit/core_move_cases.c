#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/memfd.h"

static void offload_and_restore_keep_every_byte(void **state)
{
    static const enum hbm_tier tiers[] = {HBM_TIER_HOST, HBM_TIER_DISK};
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 3);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t used = w.device->used[HBM_TIER_DEVICE];
        struct op *op = offload(&w, "w", tiers[i], false);
        assert_int_equal(op->state, WIRE_OP_DONE);
        assert_int_equal(op->n_rows, 1);
        assert_int_equal(op->rows[0].tier, tiers[i]);
        assert_int_equal(op->bytes_done, op->bytes_total);
        assert_int_equal(arena_tier(buffer->arena), tiers[i]);
        assert_int_equal(w.device->used[HBM_TIER_DEVICE], used - buffer->arena->extent->size);
        assert_true(buffer->arena->extent->has_checksum);
        assert_true(is_filled(buffer, 3));
        assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
        assert_true(is_filled(buffer, 3));
        assert_int_equal(buffer->version, 1);
    }
    world_check_books(&w);
}

static void host_goes_to_disk_and_back_to_host_directly(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);

    fill(buffer, 5);
    offload(&w, "w", HBM_TIER_HOST, false);
    unsigned copies = w.ran[JOB_COPY];
    assert_int_equal(offload(&w, "w", HBM_TIER_DISK, false)->state, WIRE_OP_DONE);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_COPY], copies + 2);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_true(is_filled(buffer, 5));
    world_check_books(&w);
}

static void what_lies_there_already_is_a_row_and_no_copy(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    offload(&w, "w", HBM_TIER_HOST, false);
    unsigned copies = w.ran[JOB_COPY];
    struct op *op = offload(&w, "w", HBM_TIER_HOST, false);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->rows[0].tier, HBM_TIER_HOST);
    restore(&w, "w");
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_COPY], copies + 1);
}

static void twenty_cycles_leave_the_books_flat(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 3);
    char *before = world_picture(&w);
    uint64_t used[HBM_TIERS];

    memcpy(used, w.device->used, sizeof(used));
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(offload(&w, "model:m", i % 2 ? HBM_TIER_HOST : HBM_TIER_DISK, true)->state, WIRE_OP_DONE);
        assert_int_equal(restore(&w, "model:m")->state, WIRE_OP_DONE);
        unsigned seed = 0;
        list_for_each (node, &model->buffers)
            assert_true(is_filled(list_entry(node, struct buffer, model_node), ++seed));
    }
    assert_memory_equal(used, w.device->used, sizeof(used));
    world_check_books(&w);
    free(before);
}

static void a_failed_create_in_the_middle_moves_nothing(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    char *before = world_picture(&w);

    world_fail(&w, JOB_CREATE, 2, HBM_E_NO_MEMORY);
    struct op *op = offload(&w, "model:m", HBM_TIER_HOST, true);
    assert_int_equal(op->state, WIRE_OP_FAILED);
    assert_int_equal(op->error, HBM_E_NO_MEMORY);
    assert_int_equal(op->rows[0].error, HBM_E_NO_MEMORY);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    world_check_books(&w);
    free(before);
    free(after);
    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
}

/* Case 20: a restore that needs more than there is brings back nothing. */
static void a_restore_that_runs_out_of_room_leaves_all_where_it_was(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    offload(&w, "model:m", HBM_TIER_HOST, true);
    uint64_t capacity = w.device->capacity[HBM_TIER_DEVICE];
    w.device->capacity[HBM_TIER_DEVICE] = 2 * 69632; /* room for two of the three */
    char *before = world_picture(&w);
    struct ask *question = ask(&w, alice, NULL);
    verb_restore(w.core, &question->call, "model:m");
    world_run(&w);
    assert_false(op_has_ended(op_get(w.core, question->id))); /* it waits for memory, within bounds */
    world_pass(&w, 201);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_NO_MEMORY);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    world_check_books(&w);
    free(before);
    free(after);
    w.device->capacity[HBM_TIER_DEVICE] = capacity;
    assert_int_equal(restore(&w, "model:m")->state, WIRE_OP_DONE);
}

/* Every job of a move, one after the other, ends with the error; each time all is as it was. */
static void any_job_may_fail(unsigned opcode, int error)
{
    make_model(&w, "m", 3);
    for (unsigned n = 1; n <= 3; n++) {
        char *before = world_picture(&w);
        world_fail(&w, opcode, n, error);
        struct op *op = offload(&w, "model:m", HBM_TIER_HOST, true);
        assert_int_equal(op->error, error);
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        world_check_books(&w);
        free(before);
        free(after);
    }
}

static void a_worker_that_dies_in_any_create_leaves_everything_as_it_was(void **state)
{
    (void)state;
    any_job_may_fail(JOB_CREATE, HBM_E_WORKER_DIED);
}

static void a_worker_that_dies_in_any_copy_leaves_everything_as_it_was(void **state)
{
    (void)state;
    any_job_may_fail(JOB_COPY, HBM_E_WORKER_DIED);
}

static void a_full_disk_leaves_everything_as_it_was(void **state)
{
    (void)state;
    any_job_may_fail(JOB_COPY, HBM_E_NO_SPACE);
}

static void an_offload_can_be_cancelled_after_any_number_of_jobs(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    for (unsigned steps = 0; steps < 6; steps++) {
        char *before = world_picture(&w);
        struct ask *question = ask(&w, alice, NULL);
        w.hold = true;
        verb_offload(w.core, &question->call, "model:m", HBM_TIER_HOST, true);
        for (unsigned i = 0; i < steps; i++)
            assert_true(world_step(&w));
        struct ask *stop = ask(&w, alice, NULL);
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        struct op *op = op_of(&w, question);
        assert_int_equal(op->state, WIRE_OP_CANCELLED);
        assert_string_equal(op->detail, "it was cancelled on request");
        char *after = world_picture(&w);
        assert_string_equal(before, after);
        world_check_books(&w);
        free(before);
        free(after);
    }
    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
}

static void a_move_can_be_cancelled_while_it_waits_for_clients(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    client_locks(session, lease->mappings[0]->slot);
    char *before = world_picture(&w);
    struct ask *question = ask(&w, alice, NULL), *stop = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    verb_op_cancel(w.core, &stop->call, question->id);
    assert_int_equal(op_of(&w, stop)->state, WIRE_OP_CANCELLED);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_false(atomic_load(&session->words[lease->mappings[0]->slot]) & LOCKWORD_RECLAIM);
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    world_check_books(&w);
    free(before);
    free(after);
}

static void a_move_can_be_cancelled_while_it_waits_for_memory(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    offload(&w, "w", HBM_TIER_HOST, false);
    w.device->capacity[HBM_TIER_DEVICE] = 131072;
    make_kept(&w, "other", 32, 1024);
    struct ask *question = ask(&w, alice, NULL), *stop = ask(&w, alice, NULL);
    verb_restore(w.core, &question->call, "w");
    world_run(&w);
    verb_op_cancel(w.core, &stop->call, question->id);
    op_of(&w, stop);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_true(list_empty(&w.core->memory_waiters));
    world_check_books(&w);
}

static void the_core_may_end_in_the_middle_of_anything(void **state)
{
    (void)state;
    struct ask *asks[4];
    make_model(&w, "m", 3);
    make_kept(&w, "away", 32, 1024);
    offload(&w, "away", HBM_TIER_HOST, false);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "m/layer.1.w", HBM_RO);
    client_locks(session, lease->mappings[0]->slot);
    for (unsigned i = 0; i < 4; i++)
        asks[i] = ask(&w, alice, NULL);
    verb_offload(w.core, &asks[0]->call, "m/layer.1.w", HBM_TIER_HOST, true);
    world_run(&w); /* waits for the client */
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE];
    verb_restore(w.core, &asks[1]->call, "away"); /* waits for memory */
    w.hold = true;
    verb_offload(w.core, &asks[2]->call, "m/layer.0.w", HBM_TIER_HOST, true);
    world_step(&w);                                                           /* copies */
    verb_offload(w.core, &asks[3]->call, "m/layer.2.w", HBM_TIER_HOST, true); /* creates */
    world_crash(&w);
    for (unsigned i = 0; i < 4; i++)
        free(asks[i]);
}

static void an_operation_is_cancelled_with_the_client_that_asked_for_it(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct ask *question = ask(&w, alice, session);
    w.hold = true;
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    session_gone(session, true, "bye");
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    world_check_books(&w);
}

static void a_cancel_is_for_the_owner_of_an_operation(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct op *op = offload(&w, "w", HBM_TIER_HOST, false);
    struct ask *stop = ask(&w, bob, NULL);
    verb_op_cancel(w.core, &stop->call, op->id);
    assert_int_equal(error_of(&w, stop), HBM_E_NOT_FOUND);
    stop = ask(&w, root, NULL);
    verb_op_cancel(w.core, &stop->call, op->id);
    assert_int_equal(op_of(&w, stop)->state, WIRE_OP_DONE);
}

static void a_damaged_disk_copy_is_named_and_never_restored(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    offload(&w, "w", HBM_TIER_DISK, false);
    assert_int_equal(pwrite(buffer->arena->extent->fd, "x", 1, 100), 1);
    char *before = world_picture(&w);
    for (unsigned i = 0; i < 2; i++) {
        struct op *op = restore(&w, "w");
        assert_int_equal(op->error, HBM_E_CHECKSUM);
        assert_non_null(strstr(op->detail, "w in the disk tier"));
        const struct event *event = event_get(&w.core->events, w.core->events.next - 2);
        assert_string_equal(event->what, "arena.damaged");
        assert_string_equal(event->name, "w");
    }
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    world_check_books(&w);
    free(before);
    free(after);
}

static void the_offload_limit_says_what_it_computed(void **state)
{
    (void)state;
    make_model(&w, "m", 10);
    assert_int_equal(offload(&w, "m/layer.0.w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(offload(&w, "m/layer.1.w", HBM_TIER_DISK, false)->state, WIRE_OP_DONE);
    assert_int_equal(offload(&w, "m/layer.2.b", HBM_TIER_HOST, false)->state, WIRE_OP_DONE); /* exactly 30 % */
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "m/layer.3.w", HBM_TIER_HOST, false);
    assert_int_equal(error_of(&w, question), HBM_E_OFFLOAD_LIMIT);
    assert_non_null(strstr(last_detail, "model m "));
    assert_non_null(strstr(last_detail, "40.0 %"));
    assert_non_null(strstr(last_detail, "30 %"));
    assert_non_null(strstr(last_detail, "0.2 MiB are offloaded and 0.1 MiB would go"));
    assert_null(strstr(last_detail, "GB/s")); /* it is no GPU's link */
    assert_int_equal(offload(&w, "m/layer.2.b", HBM_TIER_DISK, false)->state,
                     WIRE_OP_DONE); /* no more than before */
    assert_int_equal(offload(&w, "m/layer.3.w", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    make_kept(&w, "alone", 32, 32);
    assert_int_equal(offload(&w, "alone", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
}

static void sleep_takes_a_whole_model_and_wake_brings_it_back(void **state)
{
    (void)state;
    struct model *model = make_model(&w, "m", 4);
    struct ask *question = ask(&w, alice, NULL);
    uint64_t bytes[HBM_PLACES];

    verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, NULL);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 8);
    model_bytes(model, bytes);
    assert_int_equal(bytes[HBM_TIER_DEVICE], 0);
    question = ask(&w, alice, NULL);
    verb_wake(w.core, &question->call, "m");
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    model_bytes(model, bytes);
    assert_int_equal(bytes[HBM_TIER_HOST], 0);
    question = ask(&w, bob, NULL);
    verb_sleep(w.core, &question->call, "~1000/m", HBM_TIER_HOST, NULL);
    assert_int_equal(error_of(&w, question), HBM_E_DENIED);
    question = ask(&w, alice, NULL);
    verb_sleep(w.core, &question->call, "nothing", HBM_TIER_HOST, NULL);
    assert_int_equal(error_of(&w, question), HBM_E_NOT_FOUND);
    world_check_books(&w);
}

static void a_move_waits_until_the_client_lets_go(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    client_locks(session, lease->mappings[0]->slot);
    struct ask *question = ask(&w, alice, NULL);
    unsigned copies = w.ran[JOB_COPY];
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    client_lets_go(&w, session); /* it is locked: nothing happens */
    world_pass(&w, 400);
    assert_int_equal(w.ran[JOB_COPY], copies);
    lockword_unlock(&session->words[lease->mappings[0]->slot]);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0); /* an away mapping keeps no memory on the device */
    assert_false(lease->mappings[0]->present);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 1000);
    assert_int_equal(error_of(&w, locking), 0);
    assert_true(lease->mappings[0]->present);
    assert_ptr_equal(lease->mappings[0]->extent, lease->buffer->arena->extent);
    world_check_books(&w);
}

static void a_client_that_stays_locked_makes_it_busy_and_is_named(void **state)
{
    char pid[16];
    (void)state;
    make_model(&w, "m", 3);
    struct session *session = client(&w, alice), *other = client(&w, alice);
    struct lease *lease = attach(&w, session, "m/layer.1.w", HBM_RO);
    attach(&w, other, "m/layer.0.w", HBM_RO);
    client_locks(session, lease->mappings[0]->slot);
    unsigned copies = w.ran[JOB_COPY];
    struct ask *question = ask(&w, alice, NULL);
    verb_sleep(w.core, &question->call, "m", HBM_TIER_HOST, NULL);
    world_run(&w);
    client_lets_go(&w, other);
    world_pass(&w, 501);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_BUSY);
    snprintf(pid, sizeof(pid), "pid %d", session->pid);
    assert_non_null(strstr(op->detail, pid));
    assert_int_equal(w.ran[JOB_COPY], copies);
    assert_false(atomic_load(&session->words[lease->mappings[0]->slot]) & LOCKWORD_RECLAIM);
    world_check_books(&w);
}

static void a_lock_calls_an_offload_off(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 32, 1024);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    w.hold = true;
    world_step(&w); /* the extent */
    client_lets_go(&w, session);
    struct ask *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &lease->mappings[0]->slot, 1, 1000);
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void two_operations_on_one_arena_are_one_too_many(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct ask *first = ask(&w, alice, NULL), *second = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &first->call, "w", HBM_TIER_HOST, false);
    verb_offload(w.core, &second->call, "w", HBM_TIER_DISK, false);
    w.hold = false;
    assert_int_equal(op_of(&w, second)->error, HBM_E_BUSY);
    assert_non_null(strstr(op_get(w.core, op_of(&w, first)->id)->verb, "offload"));
    world_check_books(&w);
}

static void offload_asks_for_the_right_to_write(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    struct ask *question = ask(&w, bob, NULL);
    verb_offload(w.core, &question->call, "~1000/w", HBM_TIER_HOST, false);
    assert_int_equal(error_of(&w, question), HBM_E_DENIED);
    question = ask(&w, bob, NULL);
    verb_offload(w.core, &question->call, "*", HBM_TIER_HOST, false);
    assert_int_equal(error_of(&w, question), HBM_E_DENIED);
    question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "no such thing", HBM_TIER_HOST, false);
    assert_int_equal(error_of(&w, question), HBM_E_NOT_FOUND);
    question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_DEVICE, false);
    assert_int_equal(error_of(&w, question), HBM_E_INVALID);
}

static void cuda_ipc_memory_moves_only_while_nobody_has_it(void **state)
{
    (void)state;
    struct session *session = make_cuda_ipc(&w, "ipc");
    struct op *op = offload(&w, "ipc", HBM_TIER_HOST, false);
    assert_int_equal(op->error, HBM_E_BUSY);
    assert_non_null(strstr(op->detail, "pid "));
    session_gone(session, true, "bye");
    assert_int_equal(offload(&w, "ipc", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "ipc")->state, WIRE_OP_DONE);
    assert_int_equal(named(&w, "ipc")->arena->extent->kind, JOB_EXTENT_CUDA_IPC);
    world_check_books(&w);
}

static void what_is_freed_on_the_way_does_not_stop_the_rest(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    struct session *session = client(&w, alice);
    make_buffer(&w, session, "b", 32, 1024, 0);
    struct lease *lease = list_entry(list_first(&session->leases), struct lease, node);
    struct ask *question = ask(&w, alice, NULL);
    w.hold = true;
    verb_offload(w.core, &question->call, "[ab]", HBM_TIER_HOST, false);
    world_step(&w);
    world_step(&w);
    struct ask *going = ask(&w, alice, session);
    verb_detach(w.core, &going->call, lease->id);
    w.hold = false;
    assert_int_equal(error_of(&w, going), 0);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(named(&w, "a")->arena), HBM_TIER_HOST);
    for (size_t i = 0; i < op->n_rows; i++)
        assert_int_equal(op->rows[i].error, strcmp(op->rows[i].name, "a") ? HBM_E_STALE : 0);
    world_check_books(&w);
}

static void drain_moves_what_nobody_holds(void **state)
{
    (void)state;
    make_kept(&w, "free", 32, 1024);
    make_kept(&w, "held", 32, 1024);
    struct session *session = client(&w, alice);
    attach(&w, session, "held", HBM_RO);
    struct ask *question = ask(&w, root, NULL);
    verb_drain(w.core, &question->call, NULL);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 1);
    assert_int_equal(w.device->state, DEVICE_DRAINED);
    assert_int_equal(arena_tier(named(&w, "free")->arena), HBM_TIER_HOST);
    assert_int_equal(arena_tier(named(&w, "held")->arena), HBM_TIER_DEVICE);
    world_check_books(&w);
}

static void a_drain_goes_on_past_what_can_not_go(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 1024);
    make_kept(&w, "b", 32, 1024);
    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    struct ask *question = ask(&w, root, NULL);
    verb_drain(w.core, &question->call, "0");
    struct op *op = op_of(&w, question);
    assert_int_equal(op->error, HBM_E_WORKER_DIED);
    assert_int_equal((arena_tier(named(&w, "a")->arena) == HBM_TIER_HOST) +
                         (arena_tier(named(&w, "b")->arena) == HBM_TIER_HOST),
                     1);
    world_check_books(&w);
}

static void a_drained_device_takes_no_memory(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 1024);
    make_kept(&w, "held", 32, 1024);
    make_model(&w, "m", 2);
    struct session *session = client(&w, alice);
    struct lease *held = attach(&w, session, "held", HBM_RO);
    struct ask *question = ask(&w, root, NULL);
    verb_drain(w.core, &question->call, NULL);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);

    struct alloc_args alloc = {.size = 4096, .dtype = HBM_U8, .mode = 0600};
    question = ask(&w, alice, session);
    verb_alloc(w.core, &question->call, &alloc);
    assert_int_equal(error_of(&w, question), HBM_E_DRAINED);
    struct attach_args args = {.name = "w", .access = HBM_RO, .timeout_ms = 1000};
    question = ask(&w, alice, session);
    verb_attach(w.core, &question->call, &args);
    assert_int_equal(error_of(&w, question), HBM_E_DRAINED);
    for (unsigned unlocked = 0; unlocked < 2; unlocked++) {
        args = (struct attach_args){
            .name = "m", .access = HBM_RO, .timeout_ms = 1000, .flags = unlocked ? WIRE_UNLOCKED : 0};
        question = ask(&w, alice, session);
        verb_attach_model(w.core, &question->call, &args);
        assert_int_equal(error_of(&w, question), HBM_E_DRAINED);
    }
    assert_int_equal(restore(&w, "w")->error, HBM_E_DRAINED);
    assert_int_equal(restore(&w, "held")->error, 0); /* it is there */
    question = ask(&w, alice, NULL);
    verb_wake(w.core, &question->call, "m");
    assert_int_equal(op_of(&w, question)->error, HBM_E_DRAINED);

    struct compress_args copy = {.sel = "held",
                                 .as = "copy",
                                 .mode = WIRE_MODE_COPY,
                                 .encoding = {.codec = HBM_CODEC_FP16, .granularity = 0xff}};
    question = ask(&w, alice, NULL);
    verb_compress(w.core, &question->call, &copy);
    assert_int_equal(op_of(&w, question)->error, HBM_E_DRAINED);

    /* Whoever holds something that went away gets it back no more than others do. */
    assert_int_equal(offload(&w, "held", HBM_TIER_HOST, false)->error, 0);
    client_lets_go(&w, session);
    world_run(&w);
    assert_int_equal(arena_tier(named(&w, "held")->arena), HBM_TIER_HOST);
    question = ask(&w, alice, session);
    verb_lock(w.core, &question->call, &held->mappings[0]->slot, 1, 1000);
    assert_int_equal(error_of(&w, question), HBM_E_DRAINED);
    world_check_books(&w);
}

static void ended_operations_are_kept_up_to_a_number(void **state)
{
    (void)state;
    make_kept(&w, "w", 32, 32);
    uint64_t first = restore(&w, "w")->id;
    for (unsigned i = 0; i < OPS_KEPT; i++)
        restore(&w, "w");
    assert_null(op_get(w.core, first));
    assert_int_equal(w.core->n_ops, OPS_KEPT);
}

static void the_rows_of_ended_operations_are_kept_up_to_a_number(void **state)
{
    (void)state;
    int error = 0;
    char detail[HBM_DETAIL_MAX];
    uint64_t ids[3];

    for (unsigned i = 0; i < 3; i++) {
        struct op *op = op_new(w.core, "test", NULL, NULL, OP_ROWS_KEPT / 2, &error, detail);
        ids[i] = op->id;
        op_end(op, 0, NULL);
    }
    assert_int_equal(op_get(w.core, ids[0])->n_rows, 0);
    assert_int_equal(op_get(w.core, ids[1])->n_rows, OP_ROWS_KEPT / 2);
    struct op *op = op_new(w.core, "test", NULL, NULL, OP_ROWS_KEPT + 1, &error, detail);
    op_end(op, 0, NULL);
    assert_int_equal(op_get(w.core, ids[2])->n_rows, 0);
    assert_int_equal(op->n_rows, OP_ROWS_KEPT + 1); /* what was just asked for is not lost */
}

static void an_account_has_so_many_operations_at_once(void **state)
{
    (void)state;
    make_model(&w, "m", 10);
    struct ask *asks[9];
    char sel[32];
    w.hold = true;
    for (unsigned i = 0; i < 9; i++) {
        asks[i] = ask(&w, alice, NULL);
        snprintf(sel, sizeof(sel), "m/layer.%u.w", i);
        verb_offload(w.core, &asks[i]->call, sel, HBM_TIER_HOST, true);
    }
    assert_int_equal(error_of(&w, asks[8]), HBM_E_LIMIT);
    w.hold = false;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(op_of(&w, asks[i])->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static int rename_to(const char *name, const char *to)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_rename(w.core, &question->call, name, to);
    return error_of(&w, question);
}

static void a_rename_takes_the_scales_along_or_does_nothing(void **state)
{
    (void)state;
    char longest[HBM_NAME_MAX];
    make_kept(&w, "w", 32, 1024);
    make_kept(&w, "taken.scale", 32, 32);
    assert_int_equal(compress(&w, "w", HBM_CODEC_INT8)->error, 0);
    struct buffer *buffer = named(&w, "w");

    assert_int_equal(rename_to("w", "taken"), HBM_E_EXISTS);
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(rename_to("w", longest), HBM_E_INVALID);
    assert_ptr_equal(named(&w, "w"), buffer);
    assert_ptr_equal(named(&w, "w.scale"), buffer->scale);
    assert_int_equal(rename_to("w", "v"), 0);
    assert_ptr_equal(named(&w, "v"), buffer);
    assert_ptr_equal(named(&w, "v.scale"), buffer->scale);
}

/* A lease of it, from a builder; or what else comes. */
static struct ask *publish(struct session *session, const char *name)
{
    struct table_builder builder = {0};
    struct table_buffer row = {.dims = {256}, .rank = 1, .dtype = HBM_F32, .size = 1024};
    struct publish_args args = {.mode = 0644, .timeout_ms = 1000, .flags = WIRE_WAIT};
    const char *why = NULL;
    size_t size;

    snprintf(args.name, sizeof(args.name), "%s", name);
    assert_int_equal(table_add_arena(&builder, &(struct table_arena){0}, "g"), 0);
    assert_int_equal(table_add_buffer(&builder, &row, "t"), 0);
    int fd = table_finish(&builder, "table");
    table_builder_clear(&builder);
    void *bytes = memfd_map_sealed(fd, MIB, &size);
    assert_true(table_open(&args.table, bytes, size, &why));
    struct ask *question = ask(&w, alice, session);
    verb_publish(w.core, &question->call, &args);
    munmap(bytes, size);
    close(fd);
    world_run(&w);
    return question;
}

static void a_model_is_renamed_with_its_scales_or_not_at_all(void **state)
{
    (void)state;
    make_model(&w, "m", 1);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    make_kept(&w, "n/layer.0.w.scale", 1, 64);
    assert_int_equal(rename_to("m", "n"), HBM_E_EXISTS);
    assert_non_null(names_find(&w.core->model_names, alice.owner, "m"));
    assert_non_null(named(&w, "m/layer.0.w.scale"));
    assert_int_equal(rename_to("m", "o"), 0);
    assert_non_null(named(&w, "o/layer.0.w.scale"));
}

static void what_is_being_built_keeps_its_name_and_few_wait_for_it(void **state)
{
    (void)state;
    struct session *builder = client(&w, alice), *waiter = client(&w, alice), *other = client(&w, alice);
    struct ask *waiting[5];
    struct ask *built = publish(builder, "m");
    uint64_t lease = built->id;

    assert_int_equal(error_of(&w, built), 0);
    assert_int_equal(rename_to("m", "n"), HBM_E_NOT_READY);
    for (unsigned i = 0; i < 4; i++)
        waiting[i] = publish(waiter, "m");
    assert_int_equal(error_of(&w, publish(waiter, "m")), HBM_E_LIMIT);
    waiting[4] = publish(other, "m");
    struct ask *question = ask(&w, alice, builder);
    verb_commit(w.core, &question->call, lease, true);
    assert_int_equal(error_of(&w, question), 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(error_of(&w, waiting[i]), 0);
    assert_int_equal(rename_to("m", "n"), 0);
    world_check_books(&w);
}

static off_t ledger_size(void)
{
    struct stat status;

    assert_int_equal(fstatat(w.dir_fd, "ledger", &status, 0), 0);
    return status.st_size;
}

static void a_move_writes_each_lease_once(void **state)
{
    (void)state;
    make_model(&w, "m", 16);
    off_t grown[2];

    for (unsigned i = 0; i < 2; i++) {
        off_t before = ledger_size();
        assert_int_equal(offload(&w, "model:m", i ? HBM_TIER_DISK : HBM_TIER_HOST, true)->error, 0);
        grown[i] = ledger_size() - before;
        if (i)
            break;
        assert_int_equal(restore(&w, "model:m")->error, 0);
        struct session *session = client(&w, alice);
        struct attach_args args = {.name = "m", .access = HBM_RO, .flags = WIRE_UNLOCKED};
        struct ask *question = ask(&w, alice, session);
        before = ledger_size();
        verb_attach_model(w.core, &question->call, &args);
        assert_int_equal(error_of(&w, question), 0);
        grown[0] += 2 * (ledger_size() - before); /* with room for one more */
    }
    assert_true(grown[1] <= grown[0]);
}

/* Neither has a job that could end it: one waits for memory, the other for what waits for memory. */
static void a_core_that_goes_answers_those_who_wait(void **state)
{
    (void)state;
    make_kept(&w, "away", 64, 256);
    offload(&w, "away", HBM_TIER_HOST, false);
    make_kept(&w, "all", 64, 1 << 18); /* the device is full */
    struct session *session = client(&w, alice);
    struct ask *alloc = ask(&w, alice, session), *attach = ask(&w, alice, session);
    verb_alloc(w.core, &alloc->call, &(struct alloc_args){.size = MIB, .dtype = HBM_U8});
    verb_attach(w.core, &attach->call, &(struct attach_args){.name = "away", .timeout_ms = UINT32_MAX});
    world_step(&w);
    assert_int_equal(alloc->answers + attach->answers, 0);
    world_crash(&w);
    assert_int_equal(alloc->answers, 1);
    assert_int_equal(attach->answers, 1);
    assert_int_equal(alloc->error, HBM_E_CANCELLED);
    free(alloc);
    free(attach);
}

static void a_model_that_is_replaced_while_it_comes_back_is_looked_up_again(void **state)
{
    struct attach_args args = {.name = "m", .access = HBM_RO, .timeout_ms = 1000};
    uint64_t lease;

    (void)state;
    make_model(&w, "m", 2);
    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->error, 0);
    struct session *session = client(&w, alice), *builder = build_model(&w, "m", 2, WIRE_REPLACE, &lease);
    struct model *fresh = lease_get(w.core, lease)->model;
    struct ask *attaching = ask(&w, alice, session), *commit = ask(&w, alice, builder);
    w.hold = true;
    verb_attach_model(w.core, &attaching->call, &args);
    verb_commit(w.core, &commit->call, lease, true);
    w.hold = false;
    assert_int_equal(error_of(&w, commit), 0);
    world_run(&w);
    uint64_t attached = attaching->id;
    assert_int_equal(error_of(&w, attaching), 0);
    assert_ptr_equal(lease_get(w.core, attached)->model, fresh);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_move_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(offload_and_restore_keep_every_byte),
        CASE(host_goes_to_disk_and_back_to_host_directly),
        CASE(what_lies_there_already_is_a_row_and_no_copy),
        CASE(twenty_cycles_leave_the_books_flat),
        CASE(a_failed_create_in_the_middle_moves_nothing),
        CASE(a_restore_that_runs_out_of_room_leaves_all_where_it_was),
        CASE(a_worker_that_dies_in_any_create_leaves_everything_as_it_was),
        CASE(a_worker_that_dies_in_any_copy_leaves_everything_as_it_was),
        CASE(a_full_disk_leaves_everything_as_it_was),
        CASE(an_offload_can_be_cancelled_after_any_number_of_jobs),
        CASE(a_move_can_be_cancelled_while_it_waits_for_clients),
        CASE(a_move_can_be_cancelled_while_it_waits_for_memory),
        CASE(the_core_may_end_in_the_middle_of_anything),
        CASE(an_operation_is_cancelled_with_the_client_that_asked_for_it),
        CASE(a_cancel_is_for_the_owner_of_an_operation),
        CASE(a_damaged_disk_copy_is_named_and_never_restored),
        CASE(the_offload_limit_says_what_it_computed),
        CASE(sleep_takes_a_whole_model_and_wake_brings_it_back),
        CASE(a_model_that_is_replaced_while_it_comes_back_is_looked_up_again),
        CASE(a_move_waits_until_the_client_lets_go),
        CASE(a_client_that_stays_locked_makes_it_busy_and_is_named),
        CASE(a_lock_calls_an_offload_off),
        CASE(two_operations_on_one_arena_are_one_too_many),
        CASE(offload_asks_for_the_right_to_write),
        CASE(cuda_ipc_memory_moves_only_while_nobody_has_it),
        CASE(what_is_freed_on_the_way_does_not_stop_the_rest),
        CASE(drain_moves_what_nobody_holds),
        CASE(a_drain_goes_on_past_what_can_not_go),
        CASE(a_rename_takes_the_scales_along_or_does_nothing),
        CASE(a_model_is_renamed_with_its_scales_or_not_at_all),
        CASE(what_is_being_built_keeps_its_name_and_few_wait_for_it),
        CASE(a_move_writes_each_lease_once),
        CASE(a_drained_device_takes_no_memory),
        CASE(the_rows_of_ended_operations_are_kept_up_to_a_number),
        CASE(ended_operations_are_kept_up_to_a_number),
        CASE(an_account_has_so_many_operations_at_once),
        CASE(a_core_that_goes_answers_those_who_wait),
    };

    return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
