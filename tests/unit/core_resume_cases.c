/* Clients that come back to a restarted owner. */
#include "core_cases.h"
#include "core_world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What its client knows of a session, across restarts. */
struct known {
    uint64_t id;
    uint8_t secret[32];
    struct principal who;
    int32_t pid;
    int pidfd; /* 0: that of this process */
    uint64_t leases[8], slots[LOCKWORD_SLOTS / 64], lost[8], sorted[8];
    uint32_t n, n_lost;
};

static struct known known_of(const struct session *session)
{
    struct known known = {.id = session->id, .who = session->who, .pid = session->pid};

    memcpy(known.secret, session->secret, sizeof(known.secret));
    return known;
}

static void holds(struct known *known, const struct lease *lease)
{
    known->leases[known->n++] = lease->id;
    known->slots[lease->mappings[0]->slot / 64] |= (uint64_t)1 << (lease->mappings[0]->slot % 64);
}

static unsigned told;

static void count_reclaim(struct session *session, uint32_t slot, uint32_t deadline_ms)
{
    assert_true(session->slots[slot]->present);
    assert_true(deadline_ms > 0);
    told++;
}

static void ignore_op(struct session *session, uint64_t op, int error)
{
    (void)session, (void)op, (void)error;
}

static struct session *to_resume(const struct known *known)
{
    int pidfd = known->pidfd ? known->pidfd : (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct session *session = session_to_resume(w.core, known->id, known->secret, &known->who, known->pid, pidfd);

    if (!known->pidfd)
        close(pidfd);
    return session;
}

static struct session *come_back(struct known *known)
{
    struct session *session = to_resume(known);
    struct resume resume = {.leases = known->leases,
                            .n_leases = known->n,
                            .slots = known->slots,
                            .lost = known->lost,
                            .sorted = known->sorted};

    assert_non_null(session);
    session->link = &w;
    session->send_reclaim = count_reclaim;
    session->send_op_ended = ignore_op;
    told = 0;
    session_compare(session, &resume);
    known->n_lost = resume.n_lost;
    session_resume(session, &known->who, known->pid, "again", &resume);
    assert_int_equal(session->state, SESSION_OPEN);
    return session;
}

static _Atomic uint64_t *word_of(const struct session *session, uint64_t lease)
{
    return &session->words[lease_get(session->core, lease)->mappings[0]->slot];
}

static void a_client_takes_its_session_up_again(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RW);
    struct known known = known_of(session);
    uint64_t id = lease->id;
    holds(&known, lease);
    client_locks(session, lease->mappings[0]->slot);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world_restart(&w), 0);
        session = come_back(&known);
        assert_int_equal(known.n_lost, 0);
        assert_string_equal(session->client, "again");
        assert_int_equal(session->id, known.id);
        assert_int_equal(named(&w, "w")->n_leases, 1);
        assert_true(lease_get(w.core, id)->mappings[0]->present);
        assert_int_equal(*word_of(session, id) & LOCKWORD_COUNT, 1);
        /* It is as any other: a second one is refused, and it goes on asking. */
        assert_null(to_resume(&known));
        detach(&w, attach(&w, session, "w", HBM_RO));
    }
    const struct event *event = event_get(&w.core->events, w.core->events.next - 3);
    assert_string_equal(event->what, "session.resumed");
    detach(&w, lease_get(w.core, id));
    assert_int_equal(named(&w, "w")->n_leases, 0);
    world_check_books(&w);
}

static void only_the_process_with_the_secret_gets_it(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    attach(&w, session, "w", HBM_RO);
    struct known known = known_of(session), other;
    assert_null(to_resume(&known)); /* it is open */
    assert_int_equal(world_restart(&w), 0);
    for (unsigned byte = 0; byte < 32; byte++) {
        other = known;
        other.secret[byte] ^= 1;
        assert_null(to_resume(&other));
    }
    other = known;
    other.id++;
    assert_null(to_resume(&other));
    memset(other.secret, 0, sizeof(other.secret));
    assert_null(to_resume(&other));
    other = known;
    other.who = bob;
    assert_null(to_resume(&other));
    other.who = root;
    assert_null(to_resume(&other));
    other.who = alice;
    other.who.owner.listener++;
    assert_null(to_resume(&other));
    assert_non_null(to_resume(&known));
    session_gone(session_get(w.core, known.id), false, "killed");
    assert_null(to_resume(&known));
}

/* Of two in other PID namespaces, both have the number 0; one that is in ours now had another. */
static void a_process_is_known_by_its_pidfd_and_not_by_its_number(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct known known = known_of(session), other;
    assert_int_equal(world_restart(&w), 0);
    other = known;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    other.pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_null(to_resume(&other));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(other.pidfd);
    known.pid = 0;
    session = come_back(&known);
    assert_int_equal(session->pid, 0);
    assert_int_equal(world_restart(&w), 0);
    known.pid = 77;
    session = come_back(&known);
    assert_int_equal(session->pid, 77);
}

static void a_process_that_has_ended_cannot_come_back_by_its_number(void **state)
{
    (void)state;
    struct session *session = client(&w, alice);
    struct known known = known_of(session);
    assert_int_equal(world_restart(&w), 0);
    session = session_get(w.core, known.id);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    close(session->pidfd);
    session->pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_null(to_resume(&known));
}

static void leases_that_never_arrived_end(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    struct session *session = client(&w, alice);
    struct lease *arrived = attach(&w, session, "w", HBM_RO);
    struct known known = known_of(session);
    holds(&known, arrived);
    attach(&w, session, "w", HBM_RW);
    make_buffer(&w, session, "mine", 8, 8, 0); /* kept by a lease that its client knows nothing of */
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->n_leases, 3);
    come_back(&known);
    assert_int_equal(w.core->n_leases, 1);
    assert_int_equal(w.core->n_buffers, 1);
    assert_int_equal(named(&w, "w")->n_leases, 1);
    world_check_books(&w);
    /* And they stay ended. */
    assert_int_equal(world_restart(&w), 0);
    assert_int_equal(w.core->n_leases, 1);
}

static void leases_that_are_not_known_are_told_and_their_slots_left_alone(void **state)
{
    (void)state;
    make_kept(&w, "w", 8, 8);
    make_kept(&w, "v", 8, 8);
    struct session *session = client(&w, alice), *another = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO), *stays = attach(&w, session, "v", HBM_RO);
    uint64_t foreign = attach(&w, another, "w", HBM_RO)->id, lost = lease->id, kept = stays->id;
    uint32_t slot = lease->mappings[0]->slot;
    struct known known = known_of(session);
    holds(&known, lease);
    holds(&known, stays);
    known.leases[known.n++] = foreign;
    client_locks(session, slot);
    lockword_request(&session->words[slot]);
    ledger_drop(w.core, lost); /* as a flipped bit does */
    assert_int_equal(world_restart(&w), 0);
    session = come_back(&known);
    assert_int_equal(known.n_lost, 2);
    assert_int_equal(known.lost[0], lost);
    assert_int_equal(known.lost[1], foreign);
    assert_int_equal(session->words[slot] & (LOCKWORD_COUNT | LOCKWORD_RECLAIM), 1);
    session->slot_hint = slot;
    lease = attach(&w, session, "w", HBM_RW);
    assert_int_not_equal(lease->mappings[0]->slot, slot);
    detach(&w, lease);
    assert_int_equal(session->words[slot] & LOCKWORD_COUNT, 1);
    /* Let go of by its client, the slot is anyone's after the next restart. */
    known.slots[slot / 64] &= ~((uint64_t)1 << (slot % 64));
    known.leases[0] = kept;
    known.n = 1;
    assert_int_equal(world_restart(&w), 0);
    session = come_back(&known);
    session->slot_hint = slot;
    assert_int_equal(attach(&w, session, "w", HBM_RW)->mappings[0]->slot, slot);
    world_check_books(&w);
}

static void what_it_let_go_of_meanwhile_may_move(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct known known = known_of(session);
    holds(&known, lease);
    uint64_t id = lease->id;
    assert_int_equal(world_restart(&w), 0);
    session = session_get(w.core, known.id);
    assert_true(lease_get(w.core, id)->mappings[0]->present);

    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    _Atomic uint64_t *word = word_of(session, id);
    assert_true(*word & LOCKWORD_RECLAIM); /* it is asked although nobody can tell it */
    assert_true(lockword_try_release(word));
    come_back(&known);
    assert_int_equal(told, 0);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(arena_tier(named(&w, "w")->arena), HBM_TIER_HOST);
    world_check_books(&w);
}

static void a_move_that_waits_for_it_is_told_to_it(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    struct session *session = client(&w, alice);
    struct lease *lease = attach(&w, session, "w", HBM_RO);
    struct known known = known_of(session);
    holds(&known, lease);
    uint64_t id = lease->id;
    lockword_request(word_of(session, id)); /* by a daemon that died over it: nobody waits any more */
    assert_int_equal(world_restart(&w), 0);
    session = come_back(&known);
    assert_false(*word_of(session, id) & LOCKWORD_RECLAIM);
    assert_int_equal(world_restart(&w), 0);

    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    session = come_back(&known);
    assert_int_equal(told, 1);
    assert_true(*word_of(session, id) & LOCKWORD_RECLAIM);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    world_check_books(&w);
}

static size_t ledger_size(void)
{
    struct stat status;

    assert_int_equal(fstatat(w.dir_fd, "ledger", &status, 0), 0);
    return (size_t)status.st_size;
}

/* What moving w to the host and back adds to the ledger. */
static size_t written_by_a_move(struct session *session)
{
    size_t before = ledger_size();

    struct ask *question = ask(&w, alice, NULL);
    verb_offload(w.core, &question->call, "w", HBM_TIER_HOST, false);
    world_run(&w);
    client_lets_go(&w, session);
    assert_int_equal(op_of(&w, question)->state, WIRE_OP_DONE);
    assert_int_equal(restore(&w, "w")->state, WIRE_OP_DONE);
    return ledger_size() - before;
}

static void a_move_writes_the_same_however_many_leases_there_are(void **state)
{
    (void)state;
    make_kept(&w, "w", 64, 256);
    struct session *session = client(&w, alice);
    uint64_t id = attach(&w, session, "w", HBM_RO)->id;
    size_t of_one = written_by_a_move(session);
    for (unsigned i = 0; i < 50; i++)
        attach(&w, session, "w", HBM_RO);
    atomic_store(word_of(session, id), 0); /* it has mapped it again */
    assert_int_equal(written_by_a_move(session), of_one);
    assert_int_equal(world_restart(&w), 0);
    const struct mapping *mapping = lease_get(w.core, id)->mappings[0];
    assert_ptr_equal(mapping->extent, named(&w, "w")->arena->extent);
    world_check_books(&w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int core_resume_cases(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_client_takes_its_session_up_again),
        CASE(only_the_process_with_the_secret_gets_it),
        CASE(a_process_is_known_by_its_pidfd_and_not_by_its_number),
        CASE(a_process_that_has_ended_cannot_come_back_by_its_number),
        CASE(leases_that_never_arrived_end),
        CASE(leases_that_are_not_known_are_told_and_their_slots_left_alone),
        CASE(what_it_let_go_of_meanwhile_may_move),
        CASE(a_move_that_waits_for_it_is_told_to_it),
        CASE(a_move_writes_the_same_however_many_leases_there_are),
    };

    return cmocka_run_group_tests_name("coming back", tests, NULL, NULL);
}
