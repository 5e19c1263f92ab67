/* One arena mapped in this process, shared by all leases of the session on it. The daemon names it by its slot.
 *
 * `busy` is a claim: one thread maps, unmaps, fences or removes the mapping; others wait or leave it to the
 * claimer, who looks at the word once more before letting go of the claim. So a RECLAIM that a busy mapping could
 * not serve is served when the claim ends, and nobody holds a mutex over a round trip. */
#pragma once

#include "client/lib/backend.h"
#include "client/lib/session.h"

struct hold;
struct early;

struct mapping {
    _Atomic uint64_t *word;
    uint64_t arena;
    _Atomic uint64_t asked; /* the connection in which it was asked for since it went away (ahead.c), 0 = in none */
    uint32_t slot;
    unsigned leases;    /* session->mutex */
    bool busy;          /* session->mutex */
    struct hold *holds; /* while claimed: of all its leases */
    struct early *failed; /* while claimed: what is mapped never arrived, and its word is AWAY (early.h) */
    _Atomic bool early;   /* it is on its way, or has failed: whoever unlocks it looks */
    struct place place; /* while claimed */
};

/* A lease's share in a mapping: how many locks of the word are its own. */
struct hold {
    struct hold *next;
    struct mapping *mapping;
    _Atomic uint32_t locks;
};

/* What a grant or a row of a model's table says of an arena. */
struct arena_grant {
    uint64_t arena, size;
    uint32_t slot, device, handle, access;
    bool present;
    bool in_place; /* asked for so: a slot of its own */
    const uint8_t *ipc_handle;
    uint64_t life; /* that it came in */
};

/* Joins the session's mapping of that arena, or makes one. fd: what came with the grant, or -1; borrowed. `before`:
 * mapping_epoch() from before the request. With `lock`, hold->locks is 1 afterwards if the arena is resident here;
 * 0 means that residency_lock() has to fetch it. */
int mapping_join(hbm_session *session, const struct arena_grant *grant, int fd, uint64_t before, bool lock,
                 struct hold *hold);
/* Gives back what is left of the hold's locks; the last hold unmaps. The hold may be empty. */
void mapping_leave(hbm_session *session, struct hold *hold);
uint64_t mapping_epoch(hbm_session *session);

/* For who looks: AWAY in a forked child, and not where bytes are on their way to what is mapped. */
static inline uint64_t mapping_word(const hbm_session *session, const struct mapping *mapping)
{
    return session->inert ? LOCKWORD_AWAY : mapping->early ? 0 : *mapping->word;
}

void mapping_claim(hbm_session *session, struct mapping *mapping);
/* Also serves a RECLAIM that came in the meantime. */
void mapping_unclaim(hbm_session *session, struct mapping *mapping);
/* Lets go of the slot's arena if the daemon wants it back, nothing holds it, and nobody is busy with it. */
void mapping_try_release(hbm_session *session, uint32_t slot);
/* Claimed, its word just set to AWAY: waits for its GPU work, unmaps and tells the daemon. On failure the arena
 * stays mapped, with `locks` locks. */
int mapping_let_go(hbm_session *session, struct mapping *mapping, uint64_t locks);
/* Of these, those that are mapped have been by what a reply of that life brought. True: they may be used, once
 * their words arrive. False: a daemon that came since may have moved the arenas, so they are unmapped again and
 * away. */
bool mapping_land(hbm_session *session, struct mapping *const *mappings, unsigned n, uint64_t life);
/* The daemon counts the slot as mapped here, but it is not. */
void mapping_send_released(hbm_session *session, uint32_t slot);
