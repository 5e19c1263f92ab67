/* A session's client comes back to a restarted owner. What it says of itself is compared with what the ledger says.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "daemon/core/ledger.h"
#include "daemon/core/reclaim.h"

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446 /* Linux 6.9 */
#endif

/* In a time that tells nothing of the secret. */
static bool is_secret(const uint8_t *a, const uint8_t *b)
{
    volatile uint8_t differs = 0;

    for (size_t i = 0; i < sizeof(((struct session *)0)->secret); i++)
        differs |= a[i] ^ b[i];
    return !differs;
}

/* The loop may not have come to its pidfd yet, and its number be another's by now. */
static bool process_lives(const struct session *session)
{
    struct pollfd pidfd = {.fd = session->pidfd, .events = POLLIN};

    return !session->process_ended && session->pidfd >= 0 && poll(&pidfd, 1, 0) == 0;
}

/* Its number may be 0, or another's, where one of us has gone to another PID namespace. A pidfd's inode is its
 * process's alone, since Linux 6.9; before, all pidfds have the same one. */
static bool is_its_process(const struct session *session, int32_t pid, int pidfd)
{
    struct stat known, calling;
    struct statfs system;

    if (fstatfs(pidfd, &system) < 0 || system.f_type != PID_FS_MAGIC)
        return pid > 0 && session->pid == pid;
    return fstat(session->pidfd, &known) == 0 && fstat(pidfd, &calling) == 0 && known.st_dev == calling.st_dev &&
           known.st_ino == calling.st_ino;
}

struct session *session_to_resume(struct core *core, uint64_t id, const uint8_t secret[32],
                                  const struct principal *who, int32_t pid, int pidfd)
{
    static const uint8_t none[32];
    struct session *session = session_get(core, id);
    bool known = is_secret(secret, session ? session->secret : none) && session;

    if (!known || session->state != SESSION_DETACHED || !owner_equal(session->who.owner, who->owner) ||
        !process_lives(session) || !is_its_process(session, pid, pidfd))
        return NULL;
    return session;
}

static int by_number(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

void session_compare(struct session *session, struct resume *resume)
{
    resume->n_lost = 0;
    for (uint32_t i = 0; i < resume->n_leases; i++) {
        const struct lease *lease = lease_get(session->core, resume->leases[i]);
        if (!lease || lease->session != session)
            resume->lost[resume->n_lost++] = resume->leases[i];
    }
    if (resume->n_leases) {
        memcpy(resume->sorted, resume->leases, resume->n_leases * sizeof(*resume->leases));
        qsort(resume->sorted, resume->n_leases, sizeof(*resume->sorted), by_number);
    }
}

static uint32_t end_unlisted(struct session *session, const struct resume *resume)
{
    uint32_t ended = 0;

    list_for_each_safe (node, &session->leases) {
        struct lease *lease = list_entry(node, struct lease, node);
        if (resume->n_leases && bsearch(&lease->id, resume->sorted, resume->n_leases, sizeof(lease->id), by_number))
            continue;
        lease_free(lease);
        ended++;
    }
    return ended;
}

/* Slots of leases that were lost: their words stay the client's, and nobody asks for them back any more. */
static void reserve_slots(struct session *session, const uint64_t *used)
{
    memset(session->reserved, 0, sizeof(session->reserved));
    for (uint32_t slot = 0; slot < LOCKWORD_SLOTS; slot++) {
        if (session->slots[slot] || !(used[slot / 64] >> (slot % 64) & 1))
            continue;
        session->reserved[slot / 64] |= (uint64_t)1 << (slot % 64);
        lockword_withdraw(&session->words[slot]);
    }
}

static void tell(struct mapping *mapping, const struct reclaim *reclaim)
{
    struct session *session = mapping->session;
    uint64_t now = core_now(session->core), at = reclaim->timer.at_ms;

    if (session->link)
        session->send_reclaim(session, mapping->slot, at > now ? (uint32_t)(at - now) : 0);
}

/* The word again: the client went on since it was read at the start. True if a reclaim may have waited for this. */
static bool read_word(struct mapping *mapping)
{
    _Atomic uint64_t *word = &mapping->session->words[mapping->slot];
    struct reclaim *reclaim = mapping->arena ? mapping->arena->reclaim : NULL;

    mapping->present = !(atomic_load(word) & LOCKWORD_AWAY);
    mapping->reclaimed = mapping->present && reclaim;
    if (mapping->reclaimed) {
        lockword_request(word);
        tell(mapping, reclaim);
    } else {
        lockword_withdraw(word);
    }
    return reclaim && !mapping->present;
}

/* By id: a transition that goes on may free arenas, and mappings with them. */
static void read_words(struct session *session)
{
    size_t n = 0, room = 0;

    list_for_each (node, &session->mappings)
        room++;
    uint64_t *let_go = calloc(room + 1, sizeof(*let_go));
    list_for_each (node, &session->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, session_node);
        if (read_word(mapping) && let_go)
            let_go[n++] = mapping->arena->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct arena *arena = arena_get(session->core, let_go[i]);
        if (arena)
            reclaim_check(arena);
    }
    free(let_go);
}

void session_resume(struct session *session, const struct principal *who, int32_t pid, const char *client,
                    const struct resume *resume)
{
    struct core *core = session->core;

    session->state = SESSION_OPEN;
    session->pid = pid;
    session->who = *who;
    snprintf(session->client, sizeof(session->client), "%s", client);
    ledger_put_session(core, session);
    uint32_t ended = end_unlisted(session, resume);
    reserve_slots(session, resume->slots);
    event_emit(&core->events, "session.resumed", session->id, session->client, who->owner.listener, who->owner.uid,
               session->pid, "%u leases; %u had not arrived, %u are lost", resume->n_leases - resume->n_lost, ended,
               resume->n_lost);
    read_words(session);
}
