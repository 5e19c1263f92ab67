/* A move that fails, or is cancelled, leaves all as it was; so does an attach. */
#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>

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

struct attaching {
    struct call call;
    bool sends;
    uint64_t told; /* events, when the answer came */
};

static void attached(struct call *call, int error, void *lease)
{
    struct attaching *attaching = container_of(call, struct attaching, call);

    assert_int_equal(error, 0);
    attaching->told = w.core->events.next;
    if (!attaching->sends)
        lease_free(lease);
}

static void attach_each(void (*verb)(struct core *core, struct call *call, const struct attach_args *args), const char *name,
                        const char *event)
{
    struct session *session = client(&w, alice);
    struct attach_args args = {.timeout_ms = 1000};

    snprintf(args.name, sizeof(args.name), "%s", name);
    for (int sends = 0; sends < 2; sends++) {
        uint64_t next = w.core->events.next, attaches = w.core->counters.attaches, bytes = w.core->counters.attached_bytes;
        struct attaching attaching = {.sends = sends};
        call_init(&attaching.call, alice, session, attached);
        verb(w.core, &attaching.call, &args);
        world_run(&w);
        assert_int_equal(attaching.told, next);
        assert_int_equal(w.core->events.next, next + (uint64_t)sends);
        assert_int_equal(w.core->counters.attaches, attaches + (uint64_t)sends);
        assert_int_equal(w.core->counters.attached_bytes > bytes, sends);
    }
    assert_string_equal(event_get(&w.core->events, w.core->events.next - 1)->what, event);
}

static void an_attach_is_told_after_its_answer_and_not_if_that_cannot_be_sent(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 64);
    make_model(&w, "m", 2);
    attach_each(verb_attach, "w", "buffer.attached");
    attach_each(verb_attach_model, "m", "model.attached");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_undo_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_failed_create_in_the_middle_moves_nothing),
        CASE(a_restore_that_runs_out_of_room_leaves_all_where_it_was),
        CASE(a_worker_that_dies_in_any_create_leaves_everything_as_it_was),
        CASE(a_worker_that_dies_in_any_copy_leaves_everything_as_it_was),
        CASE(a_full_disk_leaves_everything_as_it_was),
        CASE(an_offload_can_be_cancelled_after_any_number_of_jobs),
        CASE(a_move_can_be_cancelled_while_it_waits_for_clients),
        CASE(a_move_can_be_cancelled_while_it_waits_for_memory),
        CASE(the_core_may_end_in_the_middle_of_anything),
        CASE(a_core_that_goes_answers_those_who_wait),
        CASE(an_attach_is_told_after_its_answer_and_not_if_that_cannot_be_sent),
    };

    return cmocka_run_group_tests_name("moves undone", tests, NULL, NULL);
}
