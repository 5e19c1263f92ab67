/* What a session hands out, and how its end takes them along. */
#pragma once

#include "client/lib/mapping.h"
#include "proto/table.h"

struct hbm_lease {
    struct node node;
    hbm_session *session;
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
    bool building;
    void *bytes; /* the table, mapped */
    size_t size;
    struct table table;
    struct hold *holds; /* one an arena */
    struct name_index names;
};

struct hbm_op {
    struct node node;
    hbm_session *session;
    uint64_t id;
};

/* Let go of the mappings (not in a forked child) and free. Nothing is sent. */
void lease_free(hbm_lease *lease);
void model_free(hbm_model *model);

/* A grant that could not be used goes back; the error set before stays. */
void lease_give_back(hbm_session *session, uint64_t lease);

/* Makes a model of a reply: its table and arenas. On failure the lease has been given back. */
int model_take(hbm_session *session, uint64_t lease, uint32_t access, bool building, bool lock, uint32_t n_fds,
               struct conn_fds *fds, uint64_t before, uint32_t timeout_ms, hbm_model **ret);
/* Locks the given holds, however many. All or nothing. */
int model_lock_holds(hbm_model *model, struct hold *const *holds, unsigned n, uint32_t timeout_ms);

/* names.c: text to number; the texts are borrowed. */
int name_index_init(struct name_index *index, unsigned n);
bool name_index_add(struct name_index *index, const char *text, uint32_t value); /* false: there already */
int64_t name_index_find(const struct name_index *index, const char *text);       /* -1: not there */
