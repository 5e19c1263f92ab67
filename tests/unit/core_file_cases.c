#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static int file;

static int begin(void **state)
{
    (void)state;
    world_begin(&w);
    file = memfd_create("file", MFD_CLOEXEC);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close(file);
    world_end(&w);
    return 0;
}

static struct ask *start(struct principal who, struct session *session, const struct wire_range *ranges, uint32_t n,
                         bool write)
{
    struct ask *question = ask(&w, who, session);

    verb_transfer(w.core, &question->call, file, mapped_ranges(ranges, n), n, write);
    return question;
}

static struct op *transfer(const struct wire_range *ranges, uint32_t n, bool write)
{
    return op_of(&w, start(alice, NULL, ranges, n, write));
}

static int transfer_error(struct principal who, struct wire_range range, bool write)
{
    return error_of(&w, start(who, NULL, &range, 1, write));
}

static void check_file(const struct buffer *buffer, unsigned seed, off_t offset)
{
    uint64_t size = buffer_raw_size(buffer);
    float *numbers = malloc(size);

    assert_int_equal(pread(file, numbers, size, offset), size);
    for (size_t i = 0; i < size / sizeof(float); i++)
        assert_true(numbers[i] == (float)((int)((i * 7 + seed * 13) % 201) - 100));
    free(numbers);
}

static void buffers_are_written_as_their_dtype_from_any_tier_and_form(void **state)
{
    static const enum hbm_tier tiers[] = {HBM_TIER_DEVICE, HBM_TIER_HOST, HBM_TIER_DISK};
    (void)state;
    make_model(&w, "m", 2);
    struct buffer *a = named(&w, "m/layer.0.w"), *b = named(&w, "m/layer.0.b"), *c = named(&w, "m/layer.1.w");
    struct wire_range ranges[] = {
        {c->id, 0, 200000, 65536}, {a->id, 0, 0, 65536}, {b->id, 0, 70000, 1024}, {a->id, 0, 0, 0}};
    for (unsigned encoded = 0; encoded < 2; encoded++) {
        for (unsigned i = 0; i < 3; i++) {
            if (tiers[i])
                offload(&w, "model:m", tiers[i], true);
            assert_int_equal(ftruncate(file, 0), 0);
            struct op *op = transfer(ranges, 4, true);
            assert_int_equal(op->state, WIRE_OP_DONE);
            assert_int_equal(op->bytes_done, op->bytes_total);
            check_file(a, 1, 0);
            check_file(b, 2, 70000);
            check_file(c, 3, 200000);
            world_check_books(&w);
        }
        restore(&w, "model:m");
        if (encoded)
            break;
        compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
        compress(&w, "m/layer.1.w", HBM_CODEC_BF16);
    }
}

static void a_part_of_an_encoded_buffer_is_that_part_of_its_logical_form(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    fill(buffer, 1);
    compress(&w, "w", HBM_CODEC_INT8);
    float number = 0;
    assert_int_equal(transfer(&(struct wire_range){buffer->id, 4000, 40, 4}, 1, true)->state, WIRE_OP_DONE);
    assert_int_equal(pread(file, &number, 4, 40), 4);
    assert_true(number == (float)((1000 * 7 + 13) % 201 - 100));
}

static void a_file_fills_buffers(void **state)
{
    (void)state;
    struct buffer *from = make_kept(&w, "from", 64, 256), *to = make_kept(&w, "to", 64, 256);
    fill(from, 6);
    fill(to, 7);
    transfer(&(struct wire_range){from->id, 0, 512, from->size}, 1, true);
    assert_int_equal(transfer(&(struct wire_range){to->id, 0, 512, to->size}, 1, false)->state, WIRE_OP_DONE);
    assert_true(is_filled(to, 6));
    /* A file that is too short. */
    assert_int_equal(transfer(&(struct wire_range){to->id, 0, 600, to->size}, 1, false)->error, HBM_E_IO);
    world_check_books(&w);
}

static void ranges_are_held_against_the_buffers(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    uint64_t id = buffer->id, size = buffer->size;

    for (unsigned write = 0; write < 2; write++) {
        assert_int_equal(transfer_error(alice, (struct wire_range){id, 0, 0, size + 1}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, 1, 0, size}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, size + 1, 0, 0}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, UINT64_MAX, 0, 2}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, 0, 0, UINT64_MAX}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, 0, UINT64_MAX, 1}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id, 0, INT64_MAX, 1}, write), HBM_E_INVALID);
        assert_int_equal(transfer_error(alice, (struct wire_range){id + 1, 0, 0, 1}, write), HBM_E_NOT_FOUND);
        assert_int_equal(transfer_error(alice, (struct wire_range){0, 0, 0, 1}, write), HBM_E_NOT_FOUND);
    }
    assert_int_equal(transfer_error(alice, (struct wire_range){id, size, 0, 0}, true), 0);
    assert_int_equal(transfer(NULL, 0, true)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static void filling_is_for_owners_and_builders(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    make_model(&w, "m", 1);
    assert_int_equal(transfer_error(bob, (struct wire_range){buffer->id, 0, 0, 4}, false), HBM_E_DENIED);
    assert_int_equal(transfer_error(bob, (struct wire_range){buffer->id, 0, 0, 4}, true), 0); /* mode 0644 */
    assert_int_equal(transfer_error(alice, (struct wire_range){named(&w, "m/layer.0.w")->id, 0, 0, 4}, false),
                     HBM_E_DENIED);
    compress(&w, "w", HBM_CODEC_INT8);
    assert_int_equal(transfer_error(alice, (struct wire_range){buffer->id, 0, 0, 4}, false), HBM_E_UNSUPPORTED);
    buffer->arena->mode = 0600;
    assert_int_equal(transfer_error(bob, (struct wire_range){buffer->id, 0, 0, 4}, true), HBM_E_NOT_FOUND);
    world_check_books(&w);
}

static int transfer_beside_a_dead_worker(const struct buffer *buffer, bool late)
{
    world_fail(&w, JOB_FILE, 1, HBM_E_WORKER_DIED);
    w.fault_late = late;
    return transfer(&(struct wire_range){buffer->id, 0, 0, 4}, 1, true)->error;
}

/* FAULTS 24: each costs everyone a worker. */
static void a_user_whose_files_do_not_answer_is_kept_waiting_longer_each_time(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    struct wire_range range = {buffer->id, 0, 0, 4};

    for (unsigned i = 0; i < 3; i++) /* somebody else's fault */
        assert_int_equal(transfer_beside_a_dead_worker(buffer, false), HBM_E_WORKER_DIED);
    assert_int_equal(transfer_beside_a_dead_worker(buffer, true), HBM_E_WORKER_DIED);
    world_pass(&w, 1000);
    for (uint64_t pause = 60000; pause < 1000000; pause *= 2) {
        assert_int_equal(transfer_beside_a_dead_worker(buffer, true), HBM_E_WORKER_DIED);
        world_pass(&w, pause - 1000);
        assert_int_equal(error_of(&w, start(alice, NULL, &range, 1, true)), HBM_E_IO);
        assert_non_null(strstr(last_detail, "in 1 s"));
        assert_int_equal(transfer_error(bob, range, true), 0);
        world_pass(&w, 1000);
    }
    assert_int_equal(transfer(&range, 1, true)->error, 0);
    world_pass(&w, 2 * 3600 * 1000);
    assert_int_equal(transfer_beside_a_dead_worker(buffer, true), HBM_E_WORKER_DIED); /* the first again */
    assert_int_equal(transfer(&range, 1, true)->error, 0);
}

static void nothing_moves_while_it_is_being_filled(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    assert_int_equal(ftruncate(file, (off_t)buffer->size), 0);
    w.hold = true;
    struct ask *filling = start(alice, NULL, &(struct wire_range){buffer->id, 0, 0, buffer->size}, 1, false);
    struct ask *moving = ask(&w, alice, NULL);
    verb_offload(w.core, &moving->call, "w", HBM_TIER_HOST, false);
    struct ask *second = start(alice, NULL, &(struct wire_range){buffer->id, 0, 0, 4}, 1, false);
    assert_int_equal(error_of(&w, second), HBM_E_BUSY);
    w.hold = false;
    assert_int_equal(op_of(&w, moving)->error, HBM_E_BUSY);
    assert_int_equal(op_of(&w, filling)->state, WIRE_OP_DONE);
    assert_null(buffer->arena->transition);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
}

static void a_transfer_can_be_cancelled_or_fail_after_any_number_of_jobs(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    offload(&w, "model:m", HBM_TIER_DISK, true);
    struct wire_range ranges[] = {{named(&w, "m/layer.0.w")->id, 0, 0, 65536},
                                  {named(&w, "m/layer.1.w")->id, 0, 65536, 65536}};
    unsigned jobs = 0;
    for (unsigned opcode = 0; opcode < JOB_OPCODES; opcode++)
        jobs += w.ran[opcode];
    assert_int_equal(transfer(ranges, 2, true)->state, WIRE_OP_DONE);
    for (unsigned opcode = 0; opcode < JOB_OPCODES; opcode++)
        jobs -= w.ran[opcode];
    char *before = world_picture(&w);
    for (unsigned n = 0; n < 0u - jobs; n++) {
        w.hold = true;
        struct ask *question = start(alice, NULL, ranges, 2, true), *stop = ask(&w, alice, NULL);
        for (unsigned i = 0; i < n; i++)
            assert_true(world_step(&w));
        verb_op_cancel(w.core, &stop->call, question->id);
        w.hold = false;
        op_of(&w, stop);
        assert_int_equal(op_of(&w, question)->state, WIRE_OP_CANCELLED);
        world_check_books(&w);
    }
    static const unsigned opcodes[] = {JOB_CREATE, JOB_COPY, JOB_DECODE, JOB_FILE};
    for (unsigned i = 0; i < 4; i++) {
        world_fail(&w, opcodes[i], 1, HBM_E_WORKER_DIED);
        assert_int_equal(transfer(ranges, 2, true)->error, HBM_E_WORKER_DIED);
        world_check_books(&w);
    }
    char *after = world_picture(&w);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* More than a turn of the loop looks at: four bytes each, of both buffers in turns, or to one. */
#define MANY 40000u

static struct ask *start_many(struct session *session, bool write)
{
    const struct buffer *buffers[] = {named(&w, "w"), named(&w, "coded")};
    struct wire_range *ranges = calloc(MANY, sizeof(*ranges));

    for (unsigned i = 0; i < MANY; i++) {
        const struct buffer *buffer = buffers[write && i % 2];
        uint64_t at = (write ? i / 2 : i) * 4 % buffer_raw_size(buffer);
        ranges[i] = (struct wire_range){buffer->id, at, (buffer == buffers[1] ? 65536 : 0) + at, 4};
    }
    struct ask *question = start(alice, session, ranges, MANY, write);
    free(ranges);
    world_run(&w);
    assert_int_equal(question->answers, 0);
    return question;
}

static void make_two(void)
{
    fill(make_kept(&w, "w", 64, 256), 6);
    fill(make_kept(&w, "coded", 64, 256), 7);
    compress(&w, "coded", HBM_CODEC_INT8);
}

static struct ask *answered(struct ask *question)
{
    for (unsigned i = 0; i < 10 && !question->answers; i++)
        world_pass(&w, 1);
    return question;
}

static struct op *end_of(struct ask *question)
{
    return op_of(&w, answered(question));
}

static void many_ranges_are_looked_at_in_turns_and_written_as_few_are(void **state)
{
    (void)state;
    make_two();
    struct buffer *other = make_kept(&w, "other", 64, 256);
    struct ask *question = start_many(NULL, true);
    assert_int_equal(offload(&w, "other", HBM_TIER_HOST, false)->state, WIRE_OP_DONE); /* meanwhile */
    assert_int_equal(arena_tier(other->arena), HBM_TIER_HOST);
    const struct op *op = end_of(question);
    assert_int_equal(op->state, WIRE_OP_DONE);
    assert_int_equal(op->bytes_done, MANY * 4);
    check_file(named(&w, "w"), 6, 0);
    question = start_many(NULL, true);
    assert_int_equal(offload(&w, "w", HBM_TIER_DISK, false)->state, WIRE_OP_DONE);
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(end_of(question)->state, WIRE_OP_DONE); /* as it was, and from where it is */
    check_file(named(&w, "w"), 6, 0);
    world_check_books(&w);
}

static void many_ranges_fill_a_buffer_that_stays_where_it_is(void **state)
{
    (void)state;
    make_two();
    assert_int_equal(end_of(start_many(NULL, true))->state, WIRE_OP_DONE);
    fill(named(&w, "w"), 9);
    assert_int_equal(end_of(start_many(NULL, false))->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "w"), 6));
    assert_null(named(&w, "w")->arena->transition);
    struct ask *question = start_many(NULL, false);
    offload(&w, "w", HBM_TIER_HOST, false);
    restore(&w, "w");
    assert_int_equal(error_of(&w, answered(question)), HBM_E_BUSY); /* its memory is another than at first */
    question = start_many(NULL, false);
    buffer_free(named(&w, "w"));
    assert_true(error_of(&w, answered(question)) < 0);
    world_check_books(&w);
}

static size_t ops_there_are(void)
{
    size_t n = 0;

    list_for_each (node, &w.core->ops)
        n++;
    return n;
}

static void what_is_wrong_with_the_last_of_many_ranges_leaves_nothing(void **state)
{
    (void)state;
    make_two();
    size_t ops = ops_there_are();
    struct wire_range *ranges = calloc(MANY, sizeof(*ranges));
    for (unsigned i = 0; i < MANY; i++)
        ranges[i] = (struct wire_range){named(&w, "w")->id, i + 1 == MANY ? 65536 : 0, 0, 1};
    struct ask *question = start(alice, NULL, ranges, MANY, false);
    free(ranges);
    world_run(&w);
    assert_int_equal(ops_there_are(), ops + 1);
    assert_int_equal(error_of(&w, answered(question)), HBM_E_INVALID);
    assert_int_equal(ops_there_are(), ops);
    world_check_books(&w);
}

static void a_transfer_is_cancelled_while_its_ranges_are_looked_at(void **state)
{
    (void)state;
    make_two();
    struct session *session = client(&w, alice);
    for (unsigned by_session = 0; by_session < 2; by_session++) {
        struct ask *question = start_many(session, true);
        struct op *op = list_entry(w.core->ops.prev, struct op, node);
        assert_string_equal(op->verb, "transfer");
        if (by_session)
            session_gone(session, true, "bye");
        else
            op_cancel(op, "it was cancelled on request");
        world_run(&w);
        assert_int_equal(error_of(&w, question), HBM_E_CANCELLED);
        world_check_books(&w);
    }
}

static struct op *hash(const char *sel)
{
    struct ask *question = ask(&w, alice, NULL);

    verb_hash(w.core, &question->call, sel);
    return op_of(&w, question);
}

/* Ids are given again, the last one first. */
static void hashes_come_in_the_order_of_publishing_whatever_was_there_before(void **state)
{
    (void)state;
    for (unsigned time = 0; time < 3; time++) {
        make_model(&w, "m", 3);
        const struct op *op = hash("model:m");
        assert_int_equal(op->n_rows, 6);
        for (unsigned i = 0; i < 6; i++) {
            char name[32];
            snprintf(name, sizeof(name), "m/layer.%u.%s", i / 2, i % 2 ? "b" : "w");
            assert_string_equal(op->rows[i].name, name);
        }
        struct ask *question = ask(&w, alice, NULL);
        verb_rm(w.core, &question->call, "m");
        assert_int_equal(error_of(&w, question), 0);
    }
}

static void a_hash_is_that_of_the_bytes_in_every_tier(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    uint64_t hashes[4];
    struct op *op = hash("model:m");
    assert_int_equal(op->n_rows, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct buffer *buffer = buffer_get(w.core, op->rows[i].buffer);
        unsigned char *bytes = malloc(buffer->size);
        buffer_bytes(buffer, bytes);
        hashes[i] = op->rows[i].hash;
        assert_int_equal(hashes[i], XXH3_64bits(bytes, buffer->size));
        free(bytes);
    }
    static const enum hbm_tier tiers[] = {HBM_TIER_HOST, HBM_TIER_DISK};
    for (unsigned t = 0; t < 2; t++) {
        offload(&w, "model:m", tiers[t], true);
        unsigned copies = w.ran[JOB_COPY];
        op = hash("model:m");
        assert_int_equal(op->state, WIRE_OP_DONE);
        assert_int_equal(w.ran[JOB_COPY], copies + 2 * t); /* one an arena, from disk only */
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(op->rows[i].hash, hashes[i]);
        world_check_books(&w);
    }
    assert_int_equal(pwrite(named(&w, "m/layer.1.w")->arena->extent->fd, "x", 1, 3), 1);
    assert_int_equal(hash("model:m")->error, HBM_E_CHECKSUM);
    world_check_books(&w);
}

static void neighbours_are_hashed_by_one_job_and_fail_together(void **state)
{
    (void)state;
    make_model(&w, "m", 3);
    unsigned jobs = w.ran[JOB_HASH];
    assert_int_equal(hash("model:m")->state, WIRE_OP_DONE);
    assert_int_equal(w.ran[JOB_HASH], jobs + 3); /* one an arena, of two buffers each */
    buffer_free(named(&w, "m/layer.1.b"));
    jobs = w.ran[JOB_HASH];
    struct op *op = hash("model:m");
    assert_int_equal(op->n_rows, 5);
    assert_int_equal(w.ran[JOB_HASH], jobs + 3);
    world_fail(&w, JOB_HASH, 2, HBM_E_IO);
    op = hash("model:m");
    assert_int_equal(op->error, HBM_E_IO);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(op->rows[i].error, i == 2 ? HBM_E_IO : 0);
    world_fail(&w, JOB_HASH, 3, HBM_E_IO);
    op = hash("model:m");
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(op->rows[i].error, i > 2 ? HBM_E_IO : 0);
    world_check_books(&w);
}

static void the_hash_of_nothing_is_known(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 64, 256);
    uint64_t size = buffer->size;
    buffer->size = 0;
    unsigned hashes = w.ran[JOB_HASH];
    assert_int_equal(hash("w")->rows[0].hash, XXH3_64bits("", 0));
    assert_int_equal(w.ran[JOB_HASH], hashes);
    buffer->size = size;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int core_file_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(buffers_are_written_as_their_dtype_from_any_tier_and_form),
        CASE(a_part_of_an_encoded_buffer_is_that_part_of_its_logical_form),
        CASE(a_file_fills_buffers),
        CASE(ranges_are_held_against_the_buffers),
        CASE(filling_is_for_owners_and_builders),
        CASE(a_user_whose_files_do_not_answer_is_kept_waiting_longer_each_time),
        CASE(nothing_moves_while_it_is_being_filled),
        CASE(a_transfer_can_be_cancelled_or_fail_after_any_number_of_jobs),
        CASE(many_ranges_are_looked_at_in_turns_and_written_as_few_are),
        CASE(many_ranges_fill_a_buffer_that_stays_where_it_is),
        CASE(what_is_wrong_with_the_last_of_many_ranges_leaves_nothing),
        CASE(a_transfer_is_cancelled_while_its_ranges_are_looked_at),
        CASE(hashes_come_in_the_order_of_publishing_whatever_was_there_before),
        CASE(a_hash_is_that_of_the_bytes_in_every_tier),
        CASE(neighbours_are_hashed_by_one_job_and_fail_together),
        CASE(the_hash_of_nothing_is_known),
    };

    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
