#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "m" of so many groups, all of them in the host tier. */
static struct model *away_model(unsigned groups)
{
    struct model *model = make_model(&w, "m", groups);

    assert_int_equal(offload(&w, "model:m", HBM_TIER_HOST, true)->state, WIRE_OP_DONE);
    return model;
}

static struct ask *begin(struct session *session, const char *sel)
{
    struct ask *question = ask(&w, alice, session);

    verb_prefetch(w.core, &question->call, sel);
    return question;
}

static struct op *prefetch(const char *sel)
{
    return op_of(&w, begin(NULL, sel));
}

static struct buffer *layer(unsigned i)
{
    char name[32];

    snprintf(name, sizeof(name), "m/layer.%u.w", i);
    return named(&w, name);
}

/* Groups on the device, as "01--". */
static const char *there(unsigned groups)
{
    static char text[16];

    for (unsigned i = 0; i < groups; i++)
        text[i] = arena_tier(layer(i)->arena) == HBM_TIER_DEVICE ? (char)('0' + i) : '-';
    text[groups] = 0;
    return text;
}

static unsigned moving(unsigned groups)
{
    unsigned n = 0;

    for (unsigned i = 0; i < groups; i++)
        n += layer(i)->arena->transition != NULL;
    return n;
}

static void a_prefetch_brings_one_group_after_the_other_two_at_a_time(void **state)
{
    (void)state;
    away_model(4);
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    static const char *const seen[] = {"----", "0---", "01--", "012-", "0123"};
    for (unsigned i = 0; i < 4; i++) {
        assert_string_equal(there(4), seen[i]);
        assert_int_equal(moving(4), i < 3 ? 2 : 1);
        assert_true(world_step(&w));
    }
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_string_equal(there(4), seen[4]);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->n_rows, 8);
    assert_int_equal(op->bytes_done, op->bytes_total);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(op->rows[i].tier, HBM_TIER_DEVICE);
        assert_null(op->rows[i].skipped);
    }
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    assert_true(is_filled(named(&w, "m/layer.3.b"), 8));
    world_check_books(&w);
}

static void a_prefetch_of_what_is_there_is_done_at_once(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    assert_int_equal(op_get(w.core, question->id)->state, WIRE_OP_DONE);
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_int_equal(op->n_rows, 4);
    assert_int_equal(op->bytes_total, 0);
    assert_null(op->rows[3].skipped);
    assert_int_equal(w.ran[JOB_COPY], copies);
}

/* FAULTS 18 */
static void what_a_prefetch_finds_no_room_for_stays_and_is_said(void **state)
{
    (void)state;
    away_model(3);
    w.device->capacity[HBM_TIER_DEVICE] = 2 * layer(0)->arena->extent->size;
    struct op *op = prefetch("model:m"); /* and no time has passed */
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(there(3), "01-");
    assert_null(op->rows[3].skipped);
    assert_string_equal(op->rows[4].skipped, "the device has no room for it");
    assert_int_equal(op->rows[4].error, 0);
    assert_int_equal(op->rows[4].tier, HBM_TIER_HOST);
    assert_true(list_empty(&w.core->memory_waiters));
    world_check_books(&w);
}

static void a_prefetch_takes_no_memory_that_others_wait_for(void **state)
{
    (void)state;
    away_model(2);
    make_kept(&w, "large", 64, 1024);
    make_kept(&w, "other", 64, 1024);
    offload(&w, "large", HBM_TIER_HOST, false);
    w.device->capacity[HBM_TIER_DEVICE] = w.device->used[HBM_TIER_DEVICE] + 2 * layer(0)->arena->extent->size;
    struct ask *waits = ask(&w, alice, NULL);
    verb_restore(w.core, &waits->call, "large");
    world_run(&w);
    assert_false(list_empty(&w.core->memory_waiters));
    struct op *op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(there(2), "--");
    assert_string_equal(op->rows[0].skipped, "others wait for memory of its device");
    offload(&w, "other", HBM_TIER_HOST, false);
    assert_int_equal(op_of(&w, waits)->state, WIRE_OP_DONE);
}

static struct lease *attach_away(struct session *session, unsigned i)
{
    struct attach_args args = {.access = HBM_RO, .flags = WIRE_UNLOCKED};
    struct ask *question = ask(&w, alice, session);

    snprintf(args.name, sizeof(args.name), "m/layer.%u.w", i);
    verb_attach(w.core, &question->call, &args);
    assert_int_equal(question->answers, 1);
    uint64_t id = question->id;
    free(question);
    return lease_get(w.core, id);
}

static void a_lock_of_what_is_on_its_way_waits_for_that_move_alone(void **state)
{
    (void)state;
    away_model(4);
    struct session *session = client(&w, alice);
    uint32_t slot = attach_away(session, 0)->mappings[0]->slot;
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    struct ask *question = begin(NULL, "model:m"), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &slot, 1, 1000);
    assert_int_equal(locking->answers, 0);
    assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1); /* the first layer is usable, and three are not there yet */
    assert_string_equal(there(4), "0---");
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_COPY], copies + 4); /* each once */
    world_check_books(&w);
}

static void a_lock_of_what_a_prefetch_has_not_begun_does_not_wait_for_the_rest(void **state)
{
    (void)state;
    away_model(6);
    struct session *session = client(&w, alice);
    uint32_t slot = attach_away(session, 5)->mappings[0]->slot;
    w.hold = true;
    struct ask *question = begin(NULL, "model:m"), *locking = ask(&w, alice, session);
    verb_lock(w.core, &locking->call, &slot, 1, 1000);
    for (unsigned i = 0; i < 3; i++) /* two on their way, and its own */
        assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1);
    assert_string_equal(there(6), "01---5");
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    for (unsigned i = 0; i < 12; i++)
        assert_null(op->rows[i].skipped);
    world_check_books(&w);
}

/* FAULTS 14 */
static void a_cancelled_prefetch_keeps_what_has_come(void **state)
{
    (void)state;
    for (unsigned steps = 0; steps < 4; steps++) {
        if (!steps)
            away_model(4);
        else
            offload(&w, "model:m", HBM_TIER_HOST, true);
        w.hold = true;
        struct ask *question = begin(NULL, "model:m"), *stop = ask(&w, alice, NULL);
        for (unsigned i = 0; i < steps; i++)
            assert_true(world_step(&w));
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        struct op *op = op_of(&w, question);
        assert_int_equal(op->state, WIRE_OP_CANCELLED);
        assert_string_equal(op->detail, "it was cancelled on request");
        for (unsigned i = 0; i < 4; i++) {
            bool came = i < steps;
            assert_int_equal(arena_tier(layer(i)->arena), came ? HBM_TIER_DEVICE : HBM_TIER_HOST);
            assert_int_equal(op->rows[2 * i].error, came ? 0 : HBM_E_CANCELLED);
            assert_null(layer(i)->arena->transition);
        }
        world_check_books(&w);
    }
}

static void a_prefetch_ends_with_the_client_that_asked_for_it(void **state)
{
    (void)state;
    away_model(4);
    struct session *session = client(&w, alice);
    w.hold = true;
    struct ask *question = begin(session, "model:m");
    assert_true(world_step(&w));
    session_gone(session, true, "bye");
    w.hold = false;
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there(4), "0---");
    world_check_books(&w);
}

/* FAULTS 24: what a dying worker takes with it stays away; the rest comes. */
static void a_worker_that_dies_in_a_prefetch_takes_one_group_with_it(void **state)
{
    (void)state;
    away_model(3);
    world_fail(&w, JOB_COPY, 2, HBM_E_WORKER_DIED);
    struct op *op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_FAILED);
    assert_int_equal(op->error, HBM_E_WORKER_DIED);
    assert_non_null(strstr(op->detail, "1 of 3 arenas did not come"));
    assert_string_equal(there(3), "0-2");
    assert_int_equal(op->rows[0].error, 0);
    assert_int_equal(op->rows[2].error, HBM_E_WORKER_DIED);
    assert_int_equal(prefetch("model:m")->state, WIRE_OP_DONE);
    assert_string_equal(there(3), "012");
    world_check_books(&w);
}

static void a_damaged_group_is_told_and_the_others_come(void **state)
{
    (void)state;
    away_model(3);
    assert_int_equal(pwrite(layer(0)->arena->extent->fd, "x", 1, 100), 1);
    struct op *op = prefetch("model:m");
    assert_int_equal(op->error, HBM_E_CHECKSUM);
    assert_string_equal(there(3), "-12");
    assert_int_equal(op->rows[0].error, HBM_E_CHECKSUM);
    assert_int_equal(op->rows[2].error, 0);
    world_check_books(&w);
}

static void what_is_freed_before_its_turn_is_no_obstacle(void **state)
{
    (void)state;
    make_kept(&w, "a", 32, 64);
    make_kept(&w, "b", 32, 64);
    make_kept(&w, "c", 32, 64);
    offload(&w, "*", HBM_TIER_HOST, true);
    w.hold = true;
    struct ask *question = begin(NULL, "*"), *freeing = ask(&w, alice, NULL);
    verb_free_sel(w.core, &freeing->call, "c");
    w.hold = false;
    op_of(&w, freeing);
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->rows[1].tier, HBM_TIER_DEVICE);
    assert_int_equal(op->rows[2].error, HBM_E_STALE);
    world_check_books(&w);
}

static void a_prefetch_passes_over_what_others_move_and_what_is_drained(void **state)
{
    (void)state;
    away_model(2);
    w.hold = true;
    struct ask *moves = ask(&w, alice, NULL);
    verb_offload(w.core, &moves->call, "m/layer.0.w", HBM_TIER_DISK, true);
    struct ask *question = begin(NULL, "model:m");
    while (arena_tier(layer(1)->arena) != HBM_TIER_DEVICE)
        assert_true(world_step(&w));
    w.hold = false;
    struct op *op = op_of(&w, question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->rows[0].skipped, "another operation has it");
    op_of(&w, moves);
    struct ask *draining = ask(&w, root, NULL);
    verb_drain(w.core, &draining->call, NULL);
    op_of(&w, draining);
    op = prefetch("model:m");
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_string_equal(op->rows[2].skipped, "its device is drained");
    assert_string_equal(there(2), "--");
    world_check_books(&w);
}

static unsigned buffers_looked_up;

struct buffer *__real_buffer_get(struct core *core, uint64_t id);
struct buffer *__wrap_buffer_get(struct core *core, uint64_t id);
struct buffer *__wrap_buffer_get(struct core *core, uint64_t id)
{
    buffers_looked_up++;
    return __real_buffer_get(core, id);
}

static void a_prefetch_looks_at_a_buffer_as_often_however_many_groups_it_passes_over(void **state)
{
    (void)state;
    away_model(32);
    struct ask *draining = ask(&w, root, NULL);
    verb_drain(w.core, &draining->call, NULL);
    op_of(&w, draining);
    buffers_looked_up = 0;
    struct op *op = prefetch("model:m");
    assert_int_equal(op->n_rows, 64);
    assert_string_equal(op->rows[63].skipped, "its device is drained");
    assert_true(buffers_looked_up > 0);
    assert_true(buffers_looked_up <= 4 * 64);
}

static void a_prefetch_is_not_remembered_by_the_next_owner(void **state)
{
    (void)state;
    away_model(3);
    w.hold = true;
    struct ask *question = begin(NULL, "model:m");
    assert_true(world_step(&w));
    free(question);
    w.hold = false;
    assert_int_equal(world_restart(&w), 0);
    world_run(&w);
    assert_string_equal(there(3), "0--");
    assert_int_equal(prefetch("model:m")->state, WIRE_OP_DONE);
    assert_string_equal(there(3), "012");
    assert_true(is_filled(named(&w, "m/layer.2.w"), 5));
    world_check_books(&w);
}

static void a_prefetch_is_for_who_may_read(void **state)
{
    (void)state;
    uint64_t lease;
    make_kept(&w, "w", 32, 64);
    offload(&w, "w", HBM_TIER_HOST, false);
    w.core->limits.account[ACCOUNT_OPS] = 1;
    named(&w, "w")->arena->mode = 0600;
    struct ask *question = ask(&w, bob, NULL);
    verb_prefetch(w.core, &question->call, "~1000/w");
    assert_int_equal(error_of(&w, question), HBM_E_NOT_FOUND);
    build_model(&w, "built", 2, 0, &lease);
    question = ask(&w, alice, NULL);
    verb_prefetch(w.core, &question->call, "model:built");
    assert_int_equal(error_of(&w, question), HBM_E_NOT_READY);
    w.hold = true;
    struct ask *first = begin(NULL, "w");
    question = begin(NULL, "w");
    assert_int_equal(question->error, HBM_E_LIMIT);
    w.hold = false;
    free(question);
    assert_int_equal(op_of(&w, first)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

/* ---- By declared order ---- */

/* One that maps groups 0 to n - 1 of the away model, and nothing of them. */
static struct session *reader(unsigned n, uint32_t *slots)
{
    struct session *session = client(&w, alice);

    for (unsigned i = 0; i < n; i++)
        slots[i] = attach_away(session, i)->mappings[0]->slot;
    return session;
}

static unsigned told;

static void count_op_ended(struct session *session, uint64_t op, int error)
{
    (void)session;
    (void)op;
    (void)error;
    told++;
}

static void what_is_used_next_comes_in_the_order_that_was_said(void **state)
{
    (void)state;
    uint32_t slots[5];
    away_model(5);
    struct session *session = reader(5, slots);
    session->send_op_ended = count_op_ended;
    told = 0;
    uint64_t events = w.core->events.next;
    w.hold = true;
    verb_ahead(w.core, session, (uint32_t[]){slots[3], slots[0], slots[4]}, 3);
    static const char *const seen[] = {"-----", "---3-", "0--3-"};
    for (unsigned i = 0; i < 3; i++) {
        assert_string_equal(there(5), seen[i]);
        assert_true(world_step(&w));
    }
    assert_string_equal(there(5), "0--34");
    w.hold = false;
    world_run(&w);
    assert_string_equal(there(5), "0--34");
    assert_int_equal(op_get(w.core, session->ahead)->state, WIRE_OP_DONE);
    assert_int_equal(told, 0); /* nobody waits for it */
    assert_int_equal(w.core->events.next, events);
    world_check_books(&w);
}

/* FAULTS 9 */
static void what_is_said_meanwhile_comes_after_it_and_each_once(void **state)
{
    (void)state;
    uint32_t slots[6];
    away_model(6);
    struct session *session = reader(6, slots);
    unsigned copies = w.ran[JOB_COPY];
    w.hold = true;
    for (unsigned round = 0; round < 100; round++)
        verb_ahead(w.core, session, slots, 4);
    uint64_t op = session->ahead;
    verb_ahead(w.core, session, (uint32_t[]){slots[2], slots[5]}, 2);
    assert_int_equal(session->ahead, op);
    assert_int_equal(moving(6), 2);
    w.hold = false;
    world_run(&w);
    assert_string_equal(there(6), "0123-5");
    assert_int_equal(w.ran[JOB_COPY], copies + 5);
    verb_ahead(w.core, session, slots, 4); /* is there */
    assert_int_equal(session->ahead, op);
    world_check_books(&w);
}

static void slots_that_map_nothing_are_passed_over(void **state)
{
    (void)state;
    uint32_t slots[2], wrong[] = {LOCKWORD_SLOTS - 1, LOCKWORD_SLOTS, UINT32_MAX, 4000, 0};
    away_model(3);
    struct session *session = reader(2, slots), *other = client(&w, bob);
    wrong[4] = slots[1];
    verb_ahead(w.core, other, wrong, 5); /* another session's slots are not its own */
    world_run(&w);
    assert_string_equal(there(3), "---");
    assert_int_equal(other->ahead, 0);
    verb_ahead(w.core, session, wrong, 5);
    verb_ahead(w.core, session, wrong, 0);
    world_run(&w);
    assert_string_equal(there(3), "-1-");
    world_check_books(&w);
}

static void what_is_used_next_waits_for_no_memory_and_costs_an_operation(void **state)
{
    (void)state;
    uint32_t slots[4];
    struct account *account = account_of(w.core, alice.owner);
    away_model(4);
    struct session *session = reader(4, slots);
    uint64_t capacity = w.device->capacity[HBM_TIER_DEVICE];
    w.device->capacity[HBM_TIER_DEVICE] = layer(0)->arena->extent->size;
    verb_ahead(w.core, session, slots, 3);
    world_run(&w);
    assert_string_equal(there(4), "0---");
    assert_true(list_empty(&w.core->memory_waiters));
    w.device->capacity[HBM_TIER_DEVICE] = capacity;
    w.core->limits.account[ACCOUNT_OPS] = 1;
    w.hold = true;
    struct ask *question = begin(NULL, "m/layer.3.w");
    verb_ahead(w.core, session, slots, 3); /* is forgotten */
    w.hold = false;
    op_of(&w, question);
    assert_string_equal(there(4), "0--3");
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    assert_int_equal(account->use[ACCOUNT_OPS], 1);
    w.hold = false;
    world_run(&w);
    assert_int_equal(account->use[ACCOUNT_OPS], 0);
    assert_string_equal(there(4), "0123");
    world_check_books(&w);
}

static void a_session_takes_its_prefetch_along_and_a_cancel_ends_it(void **state)
{
    (void)state;
    uint32_t slots[4];
    away_model(4);
    struct session *session = reader(4, slots);
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    struct ask *stop = ask(&w, alice, NULL);
    verb_op_cancel(w.core, &stop->call, session->ahead);
    verb_ahead(w.core, session, slots + 3, 1); /* too late for that one */
    w.hold = false;
    assert_int_equal(op_of(&w, stop)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there(4), "----");
    w.hold = true;
    verb_ahead(w.core, session, slots, 3);
    uint64_t op = session->ahead;
    assert_true(world_step(&w));
    session_gone(session, true, "bye");
    w.hold = false;
    world_run(&w);
    assert_int_equal(op_get(w.core, op)->state, WIRE_OP_CANCELLED);
    assert_string_equal(there(4), "0---");
    world_check_books(&w);
}

static void a_loop_leaves_others_operations_to_be_asked_about(void **state)
{
    (void)state;
    uint32_t slots[1];
    make_kept(&w, "w", 32, 64);
    uint64_t of_interest = offload(&w, "w", HBM_TIER_HOST, false)->id;
    away_model(1);
    struct session *session = reader(1, slots);
    for (unsigned i = 0; i < 2 * OPS_KEPT / 3; i++) {
        verb_ahead(w.core, session, slots, 1);
        world_run(&w);
        assert_string_equal(there(1), "0");
        offload(&w, "model:m", HBM_TIER_HOST, true);
    }
    assert_non_null(op_get(w.core, of_interest));
    world_check_books(&w);
}

static void a_daemon_that_stops_waits_for_what_is_on_its_way_alone(void **state)
{
    (void)state;
    uint32_t slots[5];
    away_model(5);
    struct session *session = reader(5, slots);
    w.hold = true;
    struct ask *question = begin(NULL, "m/layer.[01].w");
    verb_ahead(w.core, session, slots + 2, 3);
    core_drain(w.core);
    w.hold = false;
    op_of(&w, question);
    assert_string_equal(there(5), "0123-");
    assert_true(core_is_idle(w.core));
    verb_ahead(w.core, session, slots + 4, 1);
    world_run(&w);
    assert_string_equal(there(5), "0123-");
    world_check_books(&w);
}

/* ---- What locks wait ---- */

static void lock(struct session *session, const uint32_t *slots, unsigned n, uint64_t takes_ms)
{
    struct ask *locking = ask(&w, alice, session);

    w.hold = true;
    verb_lock(w.core, &locking->call, slots, n, 5000);
    w.now += takes_ms;
    w.hold = false;
    assert_int_equal(error_of(&w, locking), 0);
}

static void counted(const struct lock_waits *waits, uint64_t n, uint64_t ms, uint64_t prefetched)
{
    assert_int_equal(waits->n, n);
    assert_int_equal(waits->ms, ms);
    assert_int_equal(waits->prefetched, prefetched);
}

static void a_lock_that_waits_is_counted_with_its_time(void **state)
{
    (void)state;
    uint32_t slots[3];
    struct model *model = away_model(3);
    struct session *session = reader(3, slots);
    lock(session, slots, 1, 30);
    counted(&layer(0)->arena->lock_waits, 1, 30, 0);
    counted(&layer(1)->arena->lock_waits, 0, 0, 0);
    lock(session, slots, 1, 5); /* is there: a client that had unmapped it would find it so */
    counted(&w.core->lock_waits, 1, 30, 0);
    lock(session, slots, 3, 40); /* two wait for one another, once */
    counted(&layer(1)->arena->lock_waits, 1, 40, 0);
    counted(&layer(2)->arena->lock_waits, 1, 40, 0);
    counted(&layer(0)->arena->lock_waits, 1, 30, 0);
    counted(&model->lock_waits, 2, 70, 0);
    counted(&w.core->lock_waits, 2, 70, 0);
    world_check_books(&w);
}

static void a_lock_that_a_prefetch_has_helped_is_counted(void **state)
{
    (void)state;
    uint32_t slots[3];
    struct model *model = away_model(3);
    struct session *session = reader(3, slots);
    verb_ahead(w.core, session, slots, 1);
    world_run(&w);
    lock(session, slots, 1, 9); /* is back */
    counted(&layer(0)->arena->lock_waits, 0, 0, 1);
    w.hold = true;
    verb_ahead(w.core, session, slots + 1, 1);
    lock(session, slots + 1, 1, 9); /* is on its way */
    counted(&layer(1)->arena->lock_waits, 1, 9, 1);
    world_fail(&w, JOB_COPY, 1, HBM_E_IO);
    verb_ahead(w.core, session, slots + 2, 1);
    world_run(&w);
    lock(session, slots + 2, 1, 9); /* has not come */
    counted(&layer(2)->arena->lock_waits, 1, 9, 0);
    counted(&model->lock_waits, 2, 18, 2);
    session_gone(session, true, "bye");
    offload(&w, "model:m", HBM_TIER_HOST, true);
    session = reader(3, slots);
    lock(session, slots, 1, 2); /* that it came by a prefetch once is past */
    counted(&layer(0)->arena->lock_waits, 1, 2, 1);
    counted(&w.core->lock_waits, 3, 20, 2);
    world_check_books(&w);
}

static void a_lock_in_vain_is_counted_too(void **state)
{
    (void)state;
    uint32_t slots[1];
    away_model(1);
    struct session *session = reader(1, slots);
    w.core->limits.memory_wait_ms = 60000;
    struct ask *locking = ask(&w, alice, session);
    w.device->capacity[HBM_TIER_DEVICE] = layer(0)->arena->extent->size;
    w.device->used[HBM_TIER_DEVICE] += 1; /* somebody has it */
    verb_lock(w.core, &locking->call, slots, 1, 50);
    world_run(&w);
    world_pass(&w, 50);
    assert_int_equal(error_of(&w, locking), HBM_E_TIMEOUT);
    counted(&w.core->lock_waits, 1, 50, 0);
    w.device->used[HBM_TIER_DEVICE] -= 1;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_prefetch_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_prefetch_brings_one_group_after_the_other_two_at_a_time),
        CASE(a_prefetch_of_what_is_there_is_done_at_once),
        CASE(what_a_prefetch_finds_no_room_for_stays_and_is_said),
        CASE(a_prefetch_takes_no_memory_that_others_wait_for),
        CASE(a_lock_of_what_is_on_its_way_waits_for_that_move_alone),
        CASE(a_lock_of_what_a_prefetch_has_not_begun_does_not_wait_for_the_rest),
        CASE(a_cancelled_prefetch_keeps_what_has_come),
        CASE(a_prefetch_ends_with_the_client_that_asked_for_it),
        CASE(a_worker_that_dies_in_a_prefetch_takes_one_group_with_it),
        CASE(a_damaged_group_is_told_and_the_others_come),
        CASE(what_is_freed_before_its_turn_is_no_obstacle),
        CASE(a_prefetch_passes_over_what_others_move_and_what_is_drained),
        CASE(a_prefetch_looks_at_a_buffer_as_often_however_many_groups_it_passes_over),
        CASE(a_prefetch_is_not_remembered_by_the_next_owner),
        CASE(a_prefetch_is_for_who_may_read),
        CASE(what_is_used_next_comes_in_the_order_that_was_said),
        CASE(what_is_said_meanwhile_comes_after_it_and_each_once),
        CASE(slots_that_map_nothing_are_passed_over),
        CASE(what_is_used_next_waits_for_no_memory_and_costs_an_operation),
        CASE(a_session_takes_its_prefetch_along_and_a_cancel_ends_it),
        CASE(a_loop_leaves_others_operations_to_be_asked_about),
        CASE(a_daemon_that_stops_waits_for_what_is_on_its_way_alone),
        CASE(a_lock_that_waits_is_counted_with_its_time),
        CASE(a_lock_that_a_prefetch_has_helped_is_counted),
        CASE(a_lock_in_vain_is_counted_too),
    };

    return cmocka_run_group_tests_name("prefetch", tests, NULL, NULL);
}
