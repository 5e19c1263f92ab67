/* The world of a core under fuzzing: jobs end at once, or when told, or fail; a clock that stands still; a store
 * that outlives the core. It holds the core to its word: every job is one that a worker would take, the books
 * balance. */
#pragma once

#include "daemon/core/ledger.h"
#include "daemon/core/names.h"
#include "daemon/core/verbs.h"
#include "tests/fuzz/input.h"

struct kept {
    struct list node;
    char name[STORE_NAME_MAX];
    int fd;
};

struct world {
    struct core *core;
    struct device *host, *gpu;
    struct ledger *ledger; /* NULL: without */
    int dir_fd;
    int copy; /* of the ledger, if the store has one; else -1 */
    int lowest_fd; /* the lowest free one at the start: a leak would take it; -1: not to be looked at */
    uint64_t now, wake;
    struct list jobs;    /* struct job, submitted, oldest first */
    struct list storing; /* struct store_request */
    struct list store;   /* struct kept */
    uint64_t blocks;     /* cuda-ipc blocks made so far */
    bool driver_lists;   /* NVML still lists whoever is asked for */
    unsigned fail_in;    /* the n-th job from now fails */
    int fail_error;
    bool too_late; /* jobs can't be cancelled any more */
    bool dead;     /* killed: what the core still does reaches nobody */
    /* What a job that succeeds does to the memory, where the harness looks at it; may fail the job. NULL: nothing.
     */
    void (*perform)(struct world *world, struct job *job);
};

extern const struct principal alice, bob, root;

void world_begin(struct world *world, bool with_ledger);
/* Sessions' processes end, all comes to rest, the books must balance and no fd be left. */
void world_end(struct world *world);
/* Up to n store requests and jobs end. */
void world_step(struct world *world, unsigned n);
/* One of them, whichever the harness chooses. */
void world_end_store(struct world *world, struct store_request *request);
void world_end_job(struct world *world, struct job *job);
/* Jobs and timers until nothing is left to do, or for so long that it is a bug. */
void world_run(struct world *world);
/* The process dies and another takes over what the ledger and the store have. What ledger_readopt says. */
int world_restart(struct world *world);
void world_crash(struct world *world);
int world_come_back(struct world *world);
void world_keep(struct world *world, const char *name, int fd);
/* used and charged are what the extents add up to; only while no job runs and no session is left. */
void world_check_books(struct world *world);

/* A call whose outcome nobody reads but the harness; frees itself. */
struct call *world_call(struct principal who, struct session *session);
/* Sealed model "m" with groups "g" and "h" and tensors m/x, m/y, and a kept buffer "w", alice's. */
void world_furnish(struct world *world);
/* A client of alice's that maps "w" and all of "m"; it stays until the world ends. */
void world_visit(struct world *world);
/* A table out of the input, as a sealed memfd. */
int take_table(struct input *in);
/* Walks everything as `ls` and `show` do: every object must be whole. Returns a digest of it. */
uint64_t world_digest(struct world *world);
