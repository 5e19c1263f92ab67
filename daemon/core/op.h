/* An op: one asynchronous request, with its state, progress and rows. It points at its session by id only: a client's
 * death cancels what it started, a finished op stays for a while so that it can be asked about. */
#pragma once

#include "daemon/core/advice.h"
#include "daemon/core/transition.h"
#include "proto/messages.h"

struct op_row {
    uint64_t buffer;
    char name[HBM_NAME_MAX]; /* as the asker writes it */
    int error;
    const char *skipped;     /* why a pattern's member was left out; NULL if it was not */
    enum hbm_tier tier;
    const struct device *peer; /* tier PEER: which */
    struct hbm_encoding encoding;
    struct hbm_encoding park;   /* the policy; RAW: none */
    struct hbm_encoding packed; /* how it lies now; RAW: as it is */
    uint64_t stored;            /* bytes there */
    uint64_t size, bytes_before, bytes_after, hash;
    bool has_receipt;
    struct hbm_receipt receipt;
    struct hbm_quality quality;
};

struct op {
    uint64_t id;
    struct core *core;
    struct list node; /* core->ops, oldest first */
    const char *verb; /* static */
    bool quiet;       /* a hint that nobody waits for: its end is told only where it failed */
    struct principal who;
    uint64_t session; /* id; 0: an operator or the daemon itself */
    enum wire_op_state state;
    int error;
    char detail[HBM_DETAIL_MAX];
    uint64_t bytes_done, bytes_total, started_ms, ended_ms, worked_ns;
    unsigned links; /* that one of its copies went over at once, at most; 0: each over its device's own */
    struct op_row *rows;
    size_t n_rows;
    struct advice *advice; /* advise-codec's, a row a row; else NULL */
    struct list waiters;
    struct account *charged; /* while it runs; NULL: the daemon's own */
    /* The verb's: asks it to end early; free its state when the op is freed. */
    void (*cancel)(struct op *op);
    void (*clear)(struct op *op);
    void *state_of_verb;
};

#define OPS_KEPT 256        /* ended ones */
#define OP_ROWS_COUNTED 16384 /* while it runs, an op counts as one more for each so many rows */
#define OP_ROWS_KEPT 16384 /* of all ended ones; the last one to end keeps its own in any case */

/* NULL with LIMIT or NO_MEMORY in *error and a sentence in detail. who == NULL: the daemon itself. */
struct op *op_new(struct core *core, const char *verb, const struct principal *who, struct session *session, size_t n_rows,
                  int *error, char *detail);
/* The same, of rows that are filled already. Takes them, whatever it returns; NULL rows: memory is out. */
struct op *op_of_rows(struct core *core, const char *verb, const struct principal *who, struct session *session,
                      struct op_row *rows, size_t n_rows, int *error, char *detail);
struct op *op_get(struct core *core, uint64_t id);
bool op_visible(const struct op *op, const struct principal *who);
/* RUNNING -> DONE, FAILED or CANCELLED; wakes the waiters, tells the session, trims old ops. The op may be freed by it. */
void op_end(struct op *op, int error, const char *detail);
/* Calls wait->ended when the op has ended: at once if it has. */
void op_wait(struct op *op, struct op_wait *wait);
void op_cancel(struct op *op, const char *why);
/* The session is gone: cancels what it started. */
void op_cancel_of_session(struct core *core, uint64_t session);
bool op_has_ended(const struct op *op);
/* Bytes done now, running step included. */
uint64_t op_progress(const struct op *op);
struct op *op_free(struct op *op);
