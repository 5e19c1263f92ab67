#include "client/lib/residency.h"

#include <errno.h>

#include "client/lib/early.h"
#include "client/lib/error.h"
#include "client/lib/fetch.h"

static int by_slot(const void *a, const void *b)
{
    const struct want *left = a, *right = b;

    return (left->mapping->slot > right->mapping->slot) - (left->mapping->slot < right->mapping->slot);
}

/* One want a mapping, sorted. */
static unsigned gather(struct hold *const *holds, unsigned n, struct want *wants)
{
    unsigned used = 0;

    for (unsigned i = 0; i < n; i++)
        wants[i] = (struct want){.mapping = holds[i]->mapping, .locks = 1};
    qsort(wants, n, sizeof(*wants), by_slot);
    for (unsigned i = 0; i < n; i++) {
        if (used && wants[used - 1].mapping == wants[i].mapping)
            wants[used - 1].locks++;
        else
            wants[used++] = wants[i];
    }
    return used;
}

/* All at once, so that two batches cannot wait for each other. */
static void claim_all(hbm_session *session, struct want *wants, unsigned n)
{
    unsigned free = 0;

    pthread_mutex_lock(&session->mutex);
    while (free < n) {
        if (wants[free].mapping->busy) {
            pthread_cond_wait(&session->claims, &session->mutex);
            free = 0;
        } else {
            free++;
        }
    }
    for (unsigned i = 0; i < n; i++)
        wants[i].mapping->busy = true;
    pthread_mutex_unlock(&session->mutex);
}

static void drop_locks(_Atomic uint64_t *word, uint32_t locks)
{
    while (locks--)
        lockword_unlock(word);
}

/* Claimed: takes the locks if it is resident, else marks it away, letting go of it first if the daemon waits for
 * it. */
static int lock_or_mark(hbm_session *session, struct want *want)
{
    struct mapping *mapping = want->mapping;
    uint32_t got = 0;
    int failed = early_error(mapping);

    if (failed)
        return failed;
    for (;;) {
        enum lockword_result result = lockword_lock(mapping->word);
        if (result == LOCKWORD_DONE && ++got == want->locks)
            return 0;
        if (result == LOCKWORD_DONE)
            continue;
        if (result == LOCKWORD_MISUSE) {
            drop_locks(mapping->word, got);
            return set_error(HBM_E_LIMIT, "the arena has 2^31 locks");
        }
        want->away = *mapping->word & LOCKWORD_AWAY;
        if (want->away)
            return 0;
        /* Whoever asked for it may be gone, and its successor want nothing: then it need not go. */
        if (session->conn.state != CONN_UP) {
            int error = conn_wait_up(&session->conn);
            if (error)
                return error;
            continue;
        }
        if (lockword_try_release(mapping->word)) {
            int error = mapping_let_go(session, mapping, 0);
            if (error)
                return error;
        }
    }
}

static int lock_claimed(hbm_session *session, struct want *wants, unsigned n, uint32_t timeout_ms)
{
    unsigned done = 0, n_away = 0;
    int error = 0;

    for (; done < n && !error; done++) {
        error = lock_or_mark(session, &wants[done]);
        if (error)
            break;
        n_away += wants[done].away;
    }
    if (!error && n_away > WIRE_SLOTS_MAX)
        error = set_error(HBM_E_INVALID, "%u arenas are away, more than the %u that one call can lock", n_away,
                          WIRE_SLOTS_MAX);
    if (!error)
        error = fetch_away(session, wants, n, timeout_ms);
    for (unsigned i = 0; error && i < done; i++)
        if (!wants[i].away)
            drop_locks(wants[i].mapping->word, wants[i].locks);
    return error;
}

static int lock_slowly(hbm_session *session, struct hold *const *holds, unsigned n, uint32_t timeout_ms)
{
    FREE struct want *wants = calloc(n, sizeof(*wants));

    if (!wants)
        return set_system_error("malloc", ENOMEM);
    unsigned n_wants = gather(holds, n, wants);
    claim_all(session, wants, n_wants);
    int error = lock_claimed(session, wants, n_wants, timeout_ms);
    /* Before the claims end: a safe point that loses the locks must find them here. */
    for (unsigned i = 0; !error && i < n; i++)
        holds[i]->locks++;
    for (unsigned i = 0; i < n_wants; i++)
        mapping_unclaim(session, wants[i].mapping);
    return error;
}

int residency_lock(hbm_session *session, struct hold *const *holds, unsigned n, uint32_t timeout_ms)
{
    unsigned done = 0;

    for (; done < n && lockword_lock(holds[done]->mapping->word) == LOCKWORD_DONE; done++)
        atomic_fetch_add_explicit(&holds[done]->locks, 1, memory_order_relaxed);
    if (done == n)
        return 0;
    while (done--) {
        int error = residency_unlock(session, holds[done], NULL, 0);
        if (error)
            return error;
    }
    return lock_slowly(session, holds, n, timeout_ms);
}

static int lock_on_slowly(hbm_session *session, struct hold *hold, void *stream, uint32_t timeout_ms)
{
    struct want want = {.mapping = hold->mapping, .locks = 1};
    bool passed = false;

    mapping_claim(session, hold->mapping);
    int error = lock_or_mark(session, &want);
    if (!error && !want.away)
        hold->locks++;
    else if (!error)
        error = hold->mapping->place.backend->check_stream(stream);
    if (!error && want.away)
        error = early_fetch(session, hold, stream, timeout_ms, &passed);
    if (!passed)
        mapping_unclaim(session, hold->mapping);
    return error;
}

int residency_lock_on(hbm_session *session, struct hold *hold, void *stream, uint32_t timeout_ms)
{
    if (timeout_ms == HBM_FOREVER)
        return set_error(HBM_E_INVALID, "a stream waits for so long at most, and not for ever");
    /* Without a thread of its own, whoever waits for the daemon serves it, and might wait for this stream then. */
    if (!hold->mapping->place.backend->check_stream || session->conn.on_reclaim)
        return residency_lock(session, &hold, 1, timeout_ms);
    if (lockword_lock(hold->mapping->word) != LOCKWORD_DONE)
        return lock_on_slowly(session, hold, stream, timeout_ms);
    atomic_fetch_add_explicit(&hold->locks, 1, memory_order_relaxed);
    return 0;
}

/* Unlocked already: waits for what is on its way. The error if it has not come. */
static int end_early(hbm_session *session, struct mapping *mapping)
{
    mapping_claim(session, mapping);
    int error = early_error(mapping);
    early_drop(session, mapping);
    mapping_unclaim(session, mapping);
    return error;
}

static bool take_own(struct hold *hold)
{
    uint32_t locks = atomic_load_explicit(&hold->locks, memory_order_relaxed);

    while (locks)
        if (atomic_compare_exchange_weak_explicit(&hold->locks, &locks, locks - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static int fence_streams(hbm_session *session, struct mapping *mapping, void *const *streams, unsigned n)
{
    int error = 0;

    mapping_claim(session, mapping);
    for (unsigned i = 0; i < n && !error; i++)
        error = mapping->place.backend->fence(&mapping->place, streams[i]);
    mapping_unclaim(session, mapping);
    return error;
}

int residency_unlock(hbm_session *session, struct hold *hold, void *const *streams, unsigned n)
{
    struct mapping *mapping = hold->mapping;
    int error = 0;

    if (!take_own(hold))
        return set_error(HBM_E_INVALID, "it is not locked");
    if (n)
        error = fence_streams(session, mapping, streams, n);
    if (error) {
        hold->locks++;
        return error;
    }
    if (mapping->early)
        error = end_early(session, mapping);
    if (error)
        return error;
    enum lockword_result result = lockword_unlock(mapping->word);
    if (result == LOCKWORD_MISUSE) {
        /* Another thread's safe point has put the locks aside for the moment. */
        mapping_claim(session, mapping);
        result = lockword_unlock(mapping->word);
        mapping_unclaim(session, mapping);
    }
    if (result == LOCKWORD_MISUSE)
        return set_error(HBM_E_INVALID, "its lock was lost at a safe point that failed");
    if (result == LOCKWORD_RELEASE)
        mapping_try_release(session, mapping->slot);
    return 0;
}

void residency_serve(hbm_session *session)
{
    for_each_slot(session, slot) mapping_try_release(session, slot);
}
