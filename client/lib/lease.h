/* What a session hands out, and how its end takes them along. */
#pragma once

#include "client/lib/ahead.h"
#include "client/lib/mapping.h"
#include "proto/table.h"

struct hbm_lease {
    struct node node;
    hbm_session *session;
    _Atomic bool lost; /* a restarted daemon does not know it: what is mapped stays, and can be let go of */
    struct hold hold;
    struct wire_grant grant;
};

struct name_index {
    struct name_row {
        const char *text;
        uint32_t value;
    } * rows;
    uint32_t mask;
};

struct hbm_model {
    struct node node;
    hbm_session *session;
    uint64_t lease;
    uint32_t access;
    _Atomic bool lost;
    bool building;
    uint64_t life;      /* that it was granted in: what is building ends with it */
    _Atomic bool whole; /* what follows may be read by any thread that finds it listed */
    void *bytes;        /* the table, mapped */
    size_t size;
    struct table table;
    struct hold *holds; /* one an arena */
    struct hold **each; /* pointers to them */
    struct name_index names;
    struct ahead ahead;
};

struct hbm_op {
    struct node node;
    hbm_session *session;
    uint64_t id;
    uint64_t life; /* that it was started in, and ends with */
};

/* Let go of the mappings (not in a forked child) and free. Nothing is sent. They say in which life: session_remove.
 */
uint64_t lease_free(hbm_lease *lease);
uint64_t model_free(hbm_model *model);

/* DETACH of what is not in the session's lists any more since that life: past, the daemon has ended it unasked. */
int lease_end(hbm_session *session, uint64_t lease, uint64_t life);
/* A grant that could not be used goes back; the error set before stays. */
void lease_give_back(hbm_session *session, uint64_t lease, uint64_t life);
/* Sets and returns LOST. */
int lease_set_lost(void);

/* Makes a model of a reply: its table and arenas. On failure the lease has been given back. CONN_CUT: it came in a
 * life that is past, so that there is no such lease. */
int model_take(hbm_session *session, uint64_t lease, uint32_t access, bool building, unsigned flags, uint32_t n_fds,
               struct conn_fds *fds, uint64_t before, uint32_t timeout_ms, hbm_model **ret);
/* Sets and returns BUILDER_DIED: what was being built ended with the daemon of that life. */
int model_set_discarded(void);
/* True if that buffer is of a model that was being built here when the daemon of its life went away. */
bool model_was_discarded(hbm_session *session, uint64_t buffer);
/* Locks the given holds, however many. All or nothing. */
int model_lock_holds(hbm_model *model, struct hold *const *holds, unsigned n, uint32_t timeout_ms);

/* claim.c: whose claim it is. */
hbm_session *claim_session(const hbm_claim *claim);

/* names.c: text to number; the texts are borrowed. */
int name_index_init(struct name_index *index, unsigned n);
bool name_index_add(struct name_index *index, const char *text, uint32_t value); /* false: there already */
int64_t name_index_find(const struct name_index *index, const char *text);       /* -1: not there */
