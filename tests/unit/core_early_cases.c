#include "core_cases.h"
#include "core_world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/core/coming.h"

static struct buffer *buffer;
static struct session *session;
static struct mapping *mapping;
static uint32_t slot;

/* "w" in that tier, leased and away; nothing moves by itself. */
static void begin_in(enum hbm_tier tier, enum hbm_access access, uint32_t flags)
{
    struct attach_args args = {.name = "w", .access = access, .flags = WIRE_UNLOCKED | flags};

    buffer = make_kept(&w, "w", 64, 1024);
    fill(buffer, 7);
    assert_int_equal(offload(&w, "w", tier, false)->state, WIRE_OP_DONE);
    session = client(&w, alice);
    struct ask *question = ask(&w, alice, session);
    verb_attach(w.core, &question->call, &args);
    world_run(&w);
    mapping = lease_get(w.core, question->id)->mappings[0];
    free(question);
    slot = mapping->slot;
    lockword_turn_back(&session->words[slot]); /* as libhbm says that it is away */
    w.hold = true;
}

static void begin(enum hbm_access access)
{
    begin_in(HBM_TIER_HOST, access, 0);
}

static struct ask *lock_early(void)
{
    struct ask *question = ask(&w, alice, session);

    verb_lock_early(w.core, &question->call, slot, 1000);
    return question;
}

static struct ask *arrives(void)
{
    struct ask *question = ask(&w, alice, session);

    verb_arrived(w.core, &question->call, slot, 1000);
    return question;
}

/* Steps until there is memory and no byte of it. */
static void get_early(void)
{
    struct ask *question = lock_early();

    assert_int_equal(question->answers, 0);
    assert_true(world_step(&w));
    assert_int_equal(question->answers, 1);
    assert_int_equal(question->error, 0);
    assert_int_equal(question->id, 1);
    free(question);
    assert_non_null(mapping->early);
}

static void memory_is_given_before_its_bytes_and_counts_as_mapped_with_them(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    struct extent *early = mapping->early;
    struct ask *question = arrives();
    assert_int_equal(question->answers, 0);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_false(mapping->present);
    assert_true(world_step(&w));
    assert_int_equal(question->answers, 1);
    assert_int_equal(error_of(&w, question), 0);
    assert_true(mapping->present);
    assert_null(mapping->early);
    assert_ptr_equal(mapping->extent, early);
    assert_ptr_equal(buffer->arena->extent, early);
    assert_true(is_filled(buffer, 7));
    assert_int_equal(error_of(&w, arrives()), 0); /* and whoever asks later is told the same */
    world_check_books(&w);
}

static void what_is_there_is_given_as_ever(void **state)
{
    (void)state;
    begin(HBM_RW);
    w.hold = false;
    restore(&w, "w");
    struct ask *question = lock_early();
    assert_int_equal(question->answers, 1);
    assert_int_equal(question->id, 0);
    free(question);
    assert_true(mapping->present);
    assert_int_equal(error_of(&w, arrives()), 0);
}

/* FAULTS 21: nothing is given out of a move to host memory before it ends, and its end is heard, not tried again. */
static void what_is_damaged_on_disk_is_said_to_who_would_use_it_in_place(void **state)
{
    (void)state;
    begin_in(HBM_TIER_DISK, HBM_RO, WIRE_IN_PLACE);
    world_fail(&w, JOB_COPY, 1, HBM_E_CHECKSUM);
    struct ask *question = lock_early();
    w.hold = false;
    assert_int_equal(error_of(&w, question), HBM_E_CHECKSUM);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DISK);
    world_check_books(&w);
}

/* FAULTS 21 */
static void what_was_damaged_is_said_when_it_should_have_arrived(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    world_fail(&w, JOB_COPY, 1, HBM_E_CHECKSUM);
    struct ask *question = arrives();
    assert_true(world_step(&w));
    assert_int_equal(question->answers, 1);
    assert_int_equal(error_of(&w, question), HBM_E_CHECKSUM);
    assert_non_null(strstr(last_detail, "w in the host tier is damaged"));
    assert_int_equal(error_of(&w, arrives()), HBM_E_CHECKSUM);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_false(mapping->present);
    world_check_books(&w); /* what the client has mapped is counted */
    uint64_t used = w.device->used[HBM_TIER_DEVICE], size = mapping->early->size;
    verb_released(w.core, session, slot);
    w.hold = false;
    world_run(&w);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], used - size);
    assert_null(mapping->early);
    assert_int_equal(error_of(&w, arrives()), HBM_E_STALE);
    world_check_books(&w);
}

/* FAULTS 24 */
static void a_worker_that_dies_meanwhile_is_no_obstacle_to_the_next_lock(void **state)
{
    (void)state;
    begin(HBM_RW);
    get_early();
    world_fail(&w, JOB_COPY, 1, HBM_E_WORKER_DIED);
    struct ask *question = arrives();
    assert_true(world_step(&w));
    assert_int_equal(error_of(&w, question), HBM_E_WORKER_DIED);
    struct extent *dead = mapping->early;
    struct ask *again = lock_early(); /* says that it has let go of the first */
    assert_null(mapping->early);
    (void)dead;
    assert_true(world_step(&w));
    assert_int_equal(error_of(&w, again), 0);
    w.hold = false;
    assert_int_equal(error_of(&w, arrives()), 0);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

/* FAULTS 14 */
static void a_move_that_is_cancelled_ends_the_wait_for_it(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    struct ask *question = arrives();
    op_cancel(op_get(w.core, buffer->arena->transition->op), "somebody changed his mind");
    world_step(&w);
    assert_int_equal(error_of(&w, question), HBM_E_CANCELLED);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    verb_released(w.core, session, slot);
    w.hold = false;
    world_run(&w);
    world_check_books(&w);
}

static void who_waits_no_longer_has_it_all_the_same(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    struct ask *question = arrives();
    world_pass(&w, 1000);
    assert_int_equal(error_of(&w, question), HBM_E_TIMEOUT);
    w.hold = false;
    world_run(&w);
    assert_true(mapping->present); /* it has it mapped, and is asked to let go of it as anybody */
    verb_released(w.core, session, slot);
    assert_false(mapping->present);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static void nobody_else_has_it_before_its_bytes(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    struct attach_args args = {.name = "w", .timeout_ms = 1000};
    struct session *other = client(&w, alice);
    struct ask *attaching = ask(&w, alice, other), *locking = ask(&w, alice, session);
    verb_attach(w.core, &attaching->call, &args);
    verb_lock(w.core, &locking->call, &slot, 1, 1000);
    assert_int_equal(attaching->answers + locking->answers, 0);
    assert_true(world_step(&w));
    assert_int_equal(error_of(&w, attaching), 0);
    assert_int_equal(error_of(&w, locking), 0);
    assert_ptr_equal(mapping->extent, buffer->arena->extent);
    world_check_books(&w);
}

/* A session that has it already is told with those that come later. */
static void two_clients_get_the_same_memory(void **state)
{
    (void)state;
    begin(HBM_RO);
    struct mapping *first = mapping;
    struct session *its = session;
    struct attach_args args = {.name = "w", .flags = WIRE_UNLOCKED};
    get_early();
    session = client(&w, alice);
    struct ask *question = ask(&w, alice, session);
    verb_attach(w.core, &question->call, &args);
    assert_int_equal(question->answers, 1);
    mapping = lease_get(w.core, question->id)->mappings[0];
    free(question);
    slot = mapping->slot;
    struct ask *locking = lock_early();
    assert_int_equal(locking->answers, 1); /* at once: the memory is there */
    assert_int_equal(locking->id, 1);
    free(locking);
    assert_ptr_equal(mapping->early, first->early);
    session_gone(its, false, "killed");
    w.hold = false;
    assert_int_equal(error_of(&w, arrives()), 0);
    assert_true(is_filled(buffer, 7));
    world_check_books(&w);
}

static void what_a_prefetch_brings_is_given_early_once_somebody_has_asked_so(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    w.hold = false;
    assert_int_equal(error_of(&w, arrives()), 0);
    verb_released(w.core, session, slot);
    assert_int_equal(offload(&w, "w", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    w.hold = true;
    struct ask *prefetching = ask(&w, alice, NULL);
    verb_prefetch(w.core, &prefetching->call, "w");
    struct ask *locking = lock_early();
    assert_true(world_step(&w));
    assert_int_equal(locking->answers, 1);
    assert_int_equal(locking->id, 1);
    free(locking);
    w.hold = false;
    assert_int_equal(error_of(&w, arrives()), 0);
    assert_int_equal(op_of(&w, prefetching)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

/* FAULTS 1 */
static void a_client_that_dies_meanwhile_leaves_nothing(void **state)
{
    (void)state;
    for (unsigned fails = 0; fails < 2; fails++) {
        begin(HBM_RW);
        get_early();
        struct ask *question = arrives();
        uint64_t id = session->id;
        session_gone(session, false, "killed");
        if (session_get(w.core, id))
            session_process_ended(session_get(w.core, id));
        if (fails)
            world_fail(&w, JOB_COPY, 1, HBM_E_IO);
        w.hold = false;
        for (unsigned i = 0; i < 10; i++)
            world_pass(&w, 1000);
        assert_null(session_get(w.core, id));
        assert_int_equal(error_of(&w, question), HBM_E_DISCONNECTED);
        assert_int_equal(arena_tier(buffer->arena), fails ? HBM_TIER_HOST : HBM_TIER_DEVICE);
        assert_true(is_filled(buffer, 7));
        world_check_books(&w);
        struct ask *freeing = ask(&w, alice, NULL);
        verb_free(w.core, &freeing->call, buffer->id);
        assert_int_equal(error_of(&w, freeing), 0);
    }
}

static void a_lease_that_ends_meanwhile_lets_go_of_it(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    struct ask *question = arrives();
    lease_free(list_entry(list_first(&session->leases), struct lease, node));
    assert_true(world_step(&w));
    w.hold = false;
    assert_int_equal(error_of(&w, question), HBM_E_STALE);
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_DEVICE);
    world_check_books(&w);
}

/* FAULTS 26 */
static void the_next_owner_knows_nothing_of_what_was_on_its_way(void **state)
{
    (void)state;
    begin(HBM_RO);
    get_early();
    assert_int_equal(world_restart(&w), 0);
    w.hold = false;
    buffer = named(&w, "w");
    assert_int_equal(arena_tier(buffer->arena), HBM_TIER_HOST);
    assert_false(buffer->arena->live);
    assert_int_equal(w.device->used[HBM_TIER_DEVICE], 0);
    assert_true(is_filled(buffer, 7));
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static void a_lock_that_finds_no_room_is_refused_before_anybody_waits(void **state)
{
    (void)state;
    begin(HBM_RO);
    w.hold = false;
    w.device->used[HBM_TIER_DEVICE] = w.device->capacity[HBM_TIER_DEVICE];
    struct ask *question = lock_early();
    world_pass(&w, 10000);
    int error = error_of(&w, question);
    assert_true(error == HBM_E_NO_MEMORY || error == HBM_E_TIMEOUT);
    assert_true(list_empty(&buffer->arena->early_waiters));
    w.device->used[HBM_TIER_DEVICE] = 0;
    world_run(&w);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_early_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(memory_is_given_before_its_bytes_and_counts_as_mapped_with_them),
        CASE(what_is_there_is_given_as_ever),
        CASE(what_is_damaged_on_disk_is_said_to_who_would_use_it_in_place),
        CASE(what_was_damaged_is_said_when_it_should_have_arrived),
        CASE(a_worker_that_dies_meanwhile_is_no_obstacle_to_the_next_lock),
        CASE(a_move_that_is_cancelled_ends_the_wait_for_it),
        CASE(who_waits_no_longer_has_it_all_the_same),
        CASE(nobody_else_has_it_before_its_bytes),
        CASE(two_clients_get_the_same_memory),
        CASE(what_a_prefetch_brings_is_given_early_once_somebody_has_asked_so),
        CASE(a_client_that_dies_meanwhile_leaves_nothing),
        CASE(a_lease_that_ends_meanwhile_lets_go_of_it),
        CASE(the_next_owner_knows_nothing_of_what_was_on_its_way),
        CASE(a_lock_that_finds_no_room_is_refused_before_anybody_waits),
    };

    return cmocka_run_group_tests_name("early", tests, NULL, NULL);
}
