#include "client/lib/mapping.h"

#include <errno.h>
#include <string.h>

#include "client/lib/early.h"
#include "client/lib/error.h"

uint64_t mapping_epoch(hbm_session *session)
{
    return session->releases;
}

static void make_away(_Atomic uint64_t *word)
{
    uint64_t old = *word, next;

    do
        next = (old & ~LOCKWORD_COUNT) | LOCKWORD_AWAY;
    while (!atomic_compare_exchange_weak(word, &old, next));
}

static bool is_wanted_back(_Atomic uint64_t *word)
{
    uint64_t now = atomic_load_explicit(word, memory_order_acquire);

    return (now & LOCKWORD_RECLAIM) && !(now & (LOCKWORD_AWAY | LOCKWORD_COUNT));
}

void mapping_send_released(hbm_session *session, uint32_t slot)
{
    conn_send(&session->conn, WIRE_RELEASED, &(struct wire_released_request){.slot = slot});
    /* Counted after it is sent: a request that saw this count is behind it in the socket. */
    session->last_release[slot] = ++session->releases;
}

int mapping_let_go(hbm_session *session, struct mapping *mapping, uint64_t locks)
{
    struct place *place = &mapping->place;
    int error = place->backend->wait(place);

    if (!error)
        error = place->backend->unmap(place);
    if (error) {
        /* Without the RECLAIM bit, or it would be tried again at once; the daemon's deadline says BUSY. */
        lockword_arrive(mapping->word, locks);
        return error;
    }
    mapping->asked = 0;
    mapping_send_released(session, mapping->slot);
    return 0;
}

static void turn_back(hbm_session *session, struct mapping *mapping)
{
    lockword_turn_back(mapping->word);
    mapping->place.backend->unmap(&mapping->place);
    mapping_send_released(session, mapping->slot);
}

bool mapping_land(hbm_session *session, struct mapping *const *mappings, unsigned n, uint64_t life)
{
    for (unsigned i = 0; i < n; i++)
        if (mappings[i]->place.mapped)
            lockword_land(mappings[i]->word);
    if (conn_lives(&session->conn, life))
        return true;
    for (unsigned i = 0; i < n; i++)
        if (mappings[i]->place.mapped)
            turn_back(session, mappings[i]);
    return false;
}

void mapping_claim(hbm_session *session, struct mapping *mapping)
{
    pthread_mutex_lock(&session->mutex);
    while (mapping->busy)
        pthread_cond_wait(&session->claims, &session->mutex);
    mapping->busy = true;
    pthread_mutex_unlock(&session->mutex);
}

void mapping_unclaim(hbm_session *session, struct mapping *mapping)
{
    pthread_mutex_lock(&session->mutex);
    /* What is mapped stays mapped while the daemon is gone. */
    while (is_wanted_back(mapping->word) && session->conn.state == CONN_UP) {
        pthread_mutex_unlock(&session->mutex);
        if (lockword_try_release(mapping->word))
            mapping_let_go(session, mapping, 0);
        pthread_mutex_lock(&session->mutex);
    }
    mapping->busy = false;
    pthread_cond_broadcast(&session->claims);
    pthread_mutex_unlock(&session->mutex);
}

void mapping_try_release(hbm_session *session, uint32_t slot)
{
    struct mapping *mapping;

    if (!is_wanted_back(&session->words[slot]))
        return;
    pthread_mutex_lock(&session->mutex);
    mapping = session->slots[slot];
    if (mapping && mapping->busy)
        mapping = NULL; /* its claimer looks again */
    if (mapping)
        mapping->busy = true;
    pthread_mutex_unlock(&session->mutex);
    if (mapping)
        mapping_unclaim(session, mapping);
}

static struct mapping *mapping_new(hbm_session *session, const struct arena_grant *grant)
{
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    const struct device_table *table = session->devices; /* its names are pointed at */

    if (!mapping || grant->device >= table->n) {
        free(mapping);
        return NULL;
    }
    const struct known_device *device = &table->devices[grant->device];
    mapping->word = &session->words[grant->slot];
    mapping->arena = grant->arena;
    mapping->slot = grant->slot;
    mapping->place = (struct place){
        .backend = !device->is_cuda                       ? &backend_host
                   : grant->handle == HBM_HANDLE_CUDA_IPC ? &backend_cuda_ipc
                                                          : &backend_cuda,
        .size = grant->size,
        .access = grant->access,
        .in_place = grant->in_place,
        .uuid = device->uuid,
    };
    memcpy(mapping->place.ipc_handle, grant->ipc_handle, sizeof(mapping->place.ipc_handle));
    return mapping;
}

/* The slot's mapping, claimed and with one lease more. */
static int find_or_make(hbm_session *session, const struct arena_grant *grant, struct mapping **ret)
{
    struct mapping *mapping;
    int error = 0;

    pthread_mutex_lock(&session->mutex);
    while ((mapping = session->slots[grant->slot]) && mapping->busy)
        pthread_cond_wait(&session->claims, &session->mutex);
    if (!mapping) {
        mapping = mapping_new(session, grant);
        if (mapping) {
            make_away(mapping->word);
            session->slots[grant->slot] = mapping;
            session->used[grant->slot / 64] |= (uint64_t)1 << (grant->slot % 64);
        } else {
            error = set_system_error("malloc", ENOMEM);
        }
    } else if (mapping->arena != grant->arena || mapping->place.access != grant->access) {
        error = set_error(HBM_E_INTERNAL, "slot %u was granted for two arenas", grant->slot);
    }
    if (!error) {
        mapping->leases++;
        mapping->busy = true;
        *ret = mapping;
    }
    pthread_mutex_unlock(&session->mutex);
    return error;
}

static int check_grant(hbm_session *session, const struct arena_grant *grant)
{
    if (grant->slot >= LOCKWORD_SLOTS || grant->device >= session->devices->n || grant->access > HBM_RW ||
        grant->handle > HBM_HANDLE_CUDA_IPC || grant->size == 0 || grant->size > PTRDIFF_MAX)
        return set_error(HBM_E_BAD_REQUEST, "the daemon granted an arena with fields outside their range");
    return 0;
}

/* Claimed and away: maps it with what the grant brought, if that is still where the arena lies. */
static int settle_in(hbm_session *session, struct mapping *mapping, const struct arena_grant *grant, int fd,
                     uint64_t before, bool lock, struct hold *hold)
{
    struct place *place = &mapping->place;
    bool ipc = grant->handle == HBM_HANDLE_CUDA_IPC; /* never moves while leased */
    bool usable = grant->present && !mapping->failed && (ipc || (fd >= 0 && session->last_release[grant->slot] <= before));
    int error;

    if (usable) {
        place->host = *mapping->word & LOCKWORD_HOST;
        error = place->backend->map(place, fd);
        if (!error && !ipc && !mapping_land(session, &mapping, 1, grant->life))
            return 0;
        if (!error) {
            hold->locks = lock;
            lockword_arrive(mapping->word, lock);
            return 0;
        }
    } else {
        error = place->address ? 0 : place->backend->reserve(place);
    }
    if (grant->present)
        mapping_send_released(session, grant->slot);
    return error;
}

int mapping_join(hbm_session *session, const struct arena_grant *grant, int fd, uint64_t before, bool lock,
                 struct hold *hold)
{
    struct mapping *mapping;
    int error = check_grant(session, grant);

    *hold = (struct hold){0};
    if (!error)
        error = find_or_make(session, grant, &mapping);
    if (error)
        return error;
    hold->mapping = mapping;
    hold->next = mapping->holds;
    mapping->holds = hold;
    if (*mapping->word & LOCKWORD_AWAY)
        error = settle_in(session, mapping, grant, fd, before, lock, hold);
    else if (lock && lockword_lock(mapping->word) == LOCKWORD_DONE)
        hold->locks = 1;
    mapping_unclaim(session, mapping);
    if (error)
        mapping_leave(session, hold);
    return error;
}

void mapping_leave(hbm_session *session, struct hold *hold)
{
    struct mapping *mapping = hold->mapping;
    struct hold **link;
    bool last;

    if (!mapping)
        return;
    mapping_claim(session, mapping);
    for (link = &mapping->holds; *link != hold; link = &(*link)->next)
        ;
    *link = hold->next;
    for (uint32_t locks = atomic_exchange(&hold->locks, 0); locks; locks--)
        lockword_unlock(mapping->word);
    hold->mapping = NULL;

    pthread_mutex_lock(&session->mutex);
    last = --mapping->leases == 0;
    if (last) {
        /* Before the slot can be granted again, to a mapping of its own that shares the word. */
        session->slots[mapping->slot] = NULL;
        session->used[mapping->slot / 64] &= ~((uint64_t)1 << (mapping->slot % 64));
        make_away(mapping->word);
        pthread_cond_broadcast(&session->claims);
    }
    pthread_mutex_unlock(&session->mutex);
    if (!last) {
        early_drop(session, mapping);
        mapping_unclaim(session, mapping);
        return;
    }
    mapping->place.backend->wait(&mapping->place);
    mapping->place.backend->release(&mapping->place);
    free(mapping->failed);
    free(mapping);
}
