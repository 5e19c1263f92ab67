/* A session: one connected process. Its end, however it comes, is session_gone: leases freeze until the process is
 * quiescent (its pidfd fired, and NVML lists it no more), then everything it held is released. */
#pragma once

#include <stdatomic.h>

#include "daemon/base/origin.h"
#include "daemon/core/lease.h"
#include "proto/lockword.h"

enum session_state {
    SESSION_OPEN,
    SESSION_DETACHED,    /* the owner restarted: no connection, the process lives, its leases count */
    SESSION_QUARANTINED, /* gone; awaiting quiescence */
};

struct session {
    uint64_t id;
    struct core *core;
    struct list node; /* core->sessions */
    struct principal who;
    struct account *account;
    enum session_state state;
    int32_t pid; /* for people; identity is the pidfd */
    int pidfd;
    bool process_ended; /* the pidfd has fired */
    bool late;          /* in quarantine for so long that it was told of */
    bool stored;        /* pidfd and page are with whoever outlives us */
    int page_fd;
    _Atomic uint64_t *words; /* LOCKWORD_SLOTS of them */
    uint8_t secret[32];
    char client[64];
    uint64_t since_ms, gone_ms, ended_ms; /* ended: when the pidfd fired */
    struct list leases, mappings, calls;
    uint64_t ahead, behind; /* ids of its last moves by declared order (verb_ahead.c), 0 = none */
    uint64_t locked, locked_ms; /* lock_waits.c's: id of the model that it locked last, and when it had it */
    bool retired;  /* commit.c's: one of its mappings has */
    struct origin origin; /* empty until it is known */
    struct mapping **slots; /* LOCKWORD_SLOTS pointers */
    uint32_t slot_hint;
    uint64_t reserved[LOCKWORD_SLOTS / 64]; /* slots that the client still uses for leases that were lost */
    uint64_t former[256]; /* ids of buffers it once leased, a ring: STALE instead of NOT_FOUND */
    unsigned former_next;
    /* The link's; NULL when there is none. Events never wait and never fail the caller. */
    void *link;
    void (*send_reclaim)(struct session *session, uint32_t slot, uint32_t deadline_ms);
    void (*send_op_ended)(struct session *session, uint64_t op, int error);
    void (*kick)(struct session *session, int error, const char *reason); /* closes the link; session_gone follows */
    struct store_request store_pidfd, store_page;
    void (*ready)(struct session *session,
                  int error); /* once, when the store has pidfd and page; LIMIT if it is full */
    bool free_when_stored;
    /* Whoever polls pidfd; called before it is closed. NULL: nobody does. */
    void *watch;
    void (*watch_end)(struct session *session);
};

/* Takes pidfd on success. NULL with error (LIMIT, NO_MEMORY, SHUTTING_DOWN) and detail. session->ready follows session_start. */
struct session *session_new(struct core *core, struct principal who, int32_t pid, int pidfd, const char *client, int *error,
                            char *detail);
/* A session with nothing in it, listed: for session_new and for re-adoption. NULL if memory is out. */
struct session *session_blank(struct core *core, struct principal who);
/* Maps page_fd. 0 or -errno. */
int session_map_page(struct session *session);
/* Puts pidfd and page where they outlive us; ready is called when that is done, possibly at once. */
void session_start(struct session *session);
struct session *session_get(struct core *core, uint64_t id);

/* What the client of a DETACHED session has, by its own account (daemon/core/resume.c). */
struct resume {
    const uint64_t *leases; /* ids */
    uint32_t n_leases;
    const uint64_t *slots; /* LOCKWORD_SLOTS bits: it maps something there */
    uint64_t *lost;        /* room for n_leases; filled with those that are not known */
    uint32_t n_lost;
    uint64_t *sorted; /* room for n_leases */
};
/* The session of that id, if it is detached, that secret is its own, and `who` with `pidfd` is whom it belongs to; `pid`
 * counts where the kernel can't tell by pidfds. NULL says not which. */
struct session *session_to_resume(struct core *core, uint64_t id, const uint8_t secret[32], const struct principal *who,
                                  int32_t pid, int pidfd);
/* Fills `lost` and changes nothing. */
void session_compare(struct session *session, struct resume *resume);
/* Its client is back, on session->link: leases that it does not list end, and what it maps now is counted as mapped.
 * May end transitions that waited for it. session_compare comes before. */
void session_resume(struct session *session, const struct principal *who, int32_t pid, const char *client,
                    const struct resume *resume);

/* The client is gone: HUP, violation, kick or BYE (clean = it unmapped everything first). */
void session_gone(struct session *session, bool clean, const char *why);
/* Its pidfd fired. */
void session_process_ended(struct session *session);
/* A writer, or anything that GPU work of it could still touch. */
bool session_can_write(const struct session *session);
void session_remember(struct session *session, uint64_t buffer);
bool session_held(const struct session *session, uint64_t buffer);
struct session *session_free(struct session *session);
const char *session_state_name(enum session_state state);
/* What a quarantined session waits for ("its process to end", "the driver to let go of pid 12"), since when, and what
 * would end the wait. False if it is in no quarantine. */
struct awaiting {
    char what[96];
    const char *remedy;
    uint64_t since_ms;
};
bool session_awaiting(const struct session *session, struct awaiting *awaiting);
