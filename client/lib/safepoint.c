/* hbm_safepoint: between steps, gives the daemon every arena that it wants back, and takes them back. */
#include <errno.h>

#include "client/lib/error.h"
#include "client/lib/fetch.h"

static bool is_asked_for(_Atomic uint64_t *word)
{
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);

    return (now & LOCKWORD_RECLAIM) && !(now & LOCKWORD_AWAY);
}

static bool anything_asked_for(hbm_session *session)
{
    for_each_slot(session, slot) if (is_asked_for(&session->words[slot])) return true;
    return false;
}

/* A busy one is left out: another thread is in a call on it, and the next safe point finds it. */
static int claim_asked_for(hbm_session *session, struct want **ret, unsigned *n)
{
    unsigned room = 0;

    *n = 0;
    pthread_mutex_lock(&session->mutex);
    for_each_slot(session, slot) room++;
    *ret = calloc(room + 1, sizeof(**ret));
    for_each_slot(session, slot)
    {
        struct mapping *mapping = session->slots[slot];
        if (!*ret || mapping->busy || !is_asked_for(mapping->word))
            continue;
        mapping->busy = true;
        (*ret)[(*n)++] = (struct want){.mapping = mapping};
    }
    pthread_mutex_unlock(&session->mutex);
    return *ret ? 0 : set_system_error("malloc", ENOMEM);
}

/* Drops all locks and lets go in one step; want->locks remembers them. */
static int step_aside(hbm_session *session, struct want *want)
{
    uint64_t old = *want->mapping->word;

    for (;;) {
        if (!(old & LOCKWORD_RECLAIM) || (old & LOCKWORD_AWAY))
            return 0; /* withdrawn meanwhile */
        uint64_t away = (old & ~(LOCKWORD_RECLAIM | LOCKWORD_COUNT)) | LOCKWORD_AWAY;
        if (atomic_compare_exchange_weak(want->mapping->word, &old, away))
            break;
    }
    uint64_t locks = old & LOCKWORD_COUNT;
    int error = mapping_let_go(session, want->mapping, locks);
    if (error)
        return error;
    want->locks = (uint32_t)locks;
    want->away = locks != 0;
    return 0;
}

/* The locks could not be had again: their leases are unlocked now. */
static void lose_locks(struct want *wants, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        for (struct hold *hold = wants[i].away ? wants[i].mapping->holds : NULL; hold; hold = hold->next)
            hold->locks = 0;
}

static int step_back(hbm_session *session, struct want *wants, unsigned n, uint32_t timeout_ms)
{
    int first = 0;

    for (unsigned at = 0; at < n; at += WIRE_SLOTS_MAX) {
        unsigned some = n - at < WIRE_SLOTS_MAX ? n - at : WIRE_SLOTS_MAX;
        int error = fetch_away(session, wants + at, some, timeout_ms);
        if (error)
            lose_locks(wants + at, some);
        if (!first)
            first = error;
    }
    return first;
}

int hbm_safepoint(hbm_session *session, void *const *streams, unsigned n, uint32_t timeout_ms)
{
    FREE struct want *wants = NULL;
    unsigned n_wants = 0;
    int error = session_check(session);

    if (error)
        return error;
    if (n && !streams)
        return set_error(HBM_E_INVALID, "streams is NULL");
    if (!anything_asked_for(session) || session->conn.state != CONN_UP)
        return 0;
    error = cuda_wait_streams(streams, n);
    if (error)
        return error;
    error = claim_asked_for(session, &wants, &n_wants);
    for (unsigned i = 0; i < n_wants; i++) {
        int failed = step_aside(session, &wants[i]);
        error = error ? error : failed;
    }
    int failed = step_back(session, wants, n_wants, timeout_ms);
    for (unsigned i = 0; i < n_wants; i++)
        mapping_unclaim(session, wants[i].mapping);
    return error ? error : failed;
}
