#include "core_cases.h"
#include "core_world.h"

#include <stdio.h>

#include "daemon/core/ledger_internal.h"

static void after_a_restart_everything_goes_on(void **state)
{
    (void)state;
    make_model(&w, "m", 2);
    compress(&w, "m/layer.0.w", HBM_CODEC_INT8);
    offload(&w, "m/layer.1.w", HBM_TIER_DISK, true);
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(restore(&w, "model:m")->state, WIRE_OP_DONE);
    struct ask *question = ask(&w, alice, NULL);
    verb_decompress(w.core, &question->call, "m/layer.0.w");
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_true(is_filled(named(&w, "m/layer.0.w"), 1));
    assert_true(is_filled(named(&w, "m/layer.1.w"), 3));
    struct session *session = client(&w, alice);
    detach(&w, attach(&w, session, "m/layer.1.b", HBM_RO));
    question = ask(&w, alice, NULL);
    session_gone(session, true, "bye");
    verb_rm(w.core, &question->call, "m");
    assert_int_equal(error_of(&w, question), 0);
    assert_int_equal(w.core->n_buffers, 0);
    assert_null(world_kept(&w, "m-"));
    assert_null(world_kept(&w, "x-"));
    world_check_books(&w);
}

static void ids_mean_the_same_thing_or_nothing_after_a_restart(void **state)
{
    (void)state;
    uint64_t old[40], n = 0;
    make_kept(&w, "stays", 8, 8);
    uint64_t stays = named(&w, "stays")->id;
    for (unsigned life = 0; life < 4; life++) {
        for (unsigned i = 0; i < 10; i++) {
            struct buffer *buffer = make_kept(&w, "goes", 8, 8);
            old[n++] = buffer->id;
            struct ask *question = ask(&w, alice, NULL);
            verb_free(w.core, &question->call, buffer->id);
            assert_int_equal(error_of(&w, question), 0);
        }
        assert_int_equal(world_restart(&w), 0);
        assert_ptr_equal(buffer_get(w.core, stays), named(&w, "stays"));
        /* Many new ones, in all the slots that there were: none answers to an old id. */
        char name[16];
        for (unsigned i = 0; i < 100; i++) {
            snprintf(name, sizeof(name), "n%u.%u", life, i);
            make_kept(&w, name, 1, 1);
        }
        for (unsigned i = 0; i < n; i++)
            assert_null(buffer_get(w.core, old[i]));
        struct ask *question = ask(&w, alice, NULL);
        verb_free_sel(w.core, &question->call, "n*");
        op_of(&w, question);
    }
}

static void an_empty_ledger_begins_another_epoch(void **state)
{
    (void)state;
    struct buffer *buffer = make_kept(&w, "w", 8, 8);
    uint64_t id = buffer->id;
    struct ask *question = ask(&w, alice, NULL);
    verb_free(w.core, &question->call, id);
    assert_int_equal(error_of(&w, question), 0);
    uint16_t epoch = w.core->ids.epoch;
    assert_int_equal(world_restart(&w), 0);
    assert_int_not_equal(w.core->ids.epoch, epoch);
    make_kept(&w, "again", 8, 8);
    epoch = w.core->ids.epoch;
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->ids.epoch, epoch);
    named(&w, "again");
}

static void a_quarantined_session_is_so_after_a_restart(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RW);
    session_gone(session, false, "killed");
    uint64_t id = session->id;
    assert_int_equal(world_restart(&w), 0);
    session = session_get(w.core, id);
    assert_int_equal(session->state, SESSION_QUARANTINED);
    assert_int_equal(w.core->n_quarantined, 1);
    session_process_ended(session);
    world_pass(&w, 5);
    assert_null(session_get(w.core, id));
    assert_int_equal(w.core->n_quarantined, 0);
    assert_int_equal(named(&w, "w")->n_leases, 0);
    world_check_books(&w);
}

static void the_residency_words_say_who_is_away(void **state)
{
    (void)state;
    make_kept(&w, "a", 8, 8);
    make_kept(&w, "b", 8, 8);
    struct session *session = client(&w, alice);
    uint64_t a = attach(&w, session, "a", HBM_RO)->id, b = attach(&w, session, "b", HBM_RO)->id;
    _Atomic uint64_t *word = &session->words[lease_get(w.core, a)->mappings[0]->slot];
    lockword_request(word);
    assert_true(lockword_try_release(word)); /* and its RELEASED is lost with the daemon */
    lockword_request(&session->words[lease_get(w.core, b)->mappings[0]->slot]);
    assert_int_equal(world_restart(&w), 0);
    assert_false(lease_get(w.core, a)->mappings[0]->present);
    const struct mapping *mapping = lease_get(w.core, b)->mappings[0];
    assert_true(mapping->present);
    assert_false(atomic_load(&mapping->session->words[mapping->slot]) & LOCKWORD_RECLAIM);
    assert_int_equal(offload(&w, "a", HBM_TIER_HOST, false)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_restart_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(after_a_restart_everything_goes_on),
        CASE(ids_mean_the_same_thing_or_nothing_after_a_restart),
        CASE(an_empty_ledger_begins_another_epoch),
        CASE(a_quarantined_session_is_so_after_a_restart),
        CASE(the_residency_words_say_who_is_away),
    };

    return cmocka_run_group_tests_name("coming back", tests, NULL, NULL);
}
