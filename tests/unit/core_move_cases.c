#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    assert_non_null(strstr(op->detail, "nothing new is granted, but 1 of 2 arenas stay: "));
    assert_int_equal(w.device->state, DEVICE_DRAINED);
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

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_move_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(offload_and_restore_keep_every_byte),
        CASE(host_goes_to_disk_and_back_to_host_directly),
        CASE(what_lies_there_already_is_a_row_and_no_copy),
        CASE(twenty_cycles_leave_the_books_flat),
        CASE(a_damaged_disk_copy_is_named_and_never_restored),
        CASE(the_offload_limit_says_what_it_computed),
        CASE(sleep_takes_a_whole_model_and_wake_brings_it_back),
        CASE(offload_asks_for_the_right_to_write),
        CASE(drain_moves_what_nobody_holds),
        CASE(a_drain_goes_on_past_what_can_not_go),
        CASE(a_move_writes_each_lease_once),
        CASE(a_drained_device_takes_no_memory),
    };

    return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
