/* A question that will be answered: what wire and rpc hand to a verb. A verb ends each call exactly once, by
 * call_done or call_refuse, at once or later. If the session goes first, call->session is NULL by then: the verb
 * cleans up and still ends the call. */
#pragma once

#include "daemon/core/core.h"

struct session;

struct owner {
    uint32_t listener;
    uint32_t uid;
};

/* What shared names live under, a listener each: this one's. */
static inline struct owner owner_shared(uint32_t listener)
{
    return (struct owner){listener, UINT32_MAX};
}

/* What a name lives under. */
static inline struct owner owner_scope(struct owner owner, bool shared)
{
    return shared ? owner_shared(owner.listener) : owner;
}

static inline bool owner_equal(struct owner a, struct owner b)
{
    return a.listener == b.listener && a.uid == b.uid;
}

/* Who asks. */
struct principal {
    struct owner owner;
    bool admin;
};

struct call {
    struct principal who;
    struct session *session; /* NULL: an operator, or the session is gone */
    struct list node;        /* in session->calls */
    char detail[HBM_DETAIL_MAX];
    /* Called once. result depends on the verb; the callee copies what it needs. The call may be freed in it. */
    void (*done)(struct call *call, int error, void *result);
};

void call_init(struct call *call, struct principal who, struct session *session,
               void (*done)(struct call *call, int error, void *result));
void call_done(struct call *call, void *result);
/* error is a negative hbm_error; the sentence says what exactly was refused. NO_MEMORY needs none where the owner
 * itself is short of it. */
__attribute__((format(printf, 3, 4))) void call_refuse(struct call *call, int error, const char *format, ...);
/* Says so where nothing else was said: a tier that is full has words of its own. */
void explain_no_memory(int error, char detail[HBM_DETAIL_MAX]);
