/* Prefetch: arenas come to their device in the order in which they will be used, two at a time and each swapped in
 * as soon as it is there. A hint: it waits for no memory, takes none that others wait for, and makes nobody let go.
 * The other way round, with `tier`: what has left the window of a declared order goes, unless someone has it locked or
 * wants it next, or locks it meanwhile. What comes by such an order waits for the room that this makes. */
#pragma once

#include "daemon/core/op.h"

#define PREFETCH_LANES 2 /* moves at once: one copies while the other makes room, or waits for the disk */

struct prefetch;

/* An arena, and which of the op's rows are of its buffers. */
struct wanted {
    uint64_t arena; /* id */
    size_t row, n_rows;
};

struct lane {
    struct prefetch *prefetch;
    struct transition transition;
    struct wanted wanted; /* of no arena: idle */
    uint64_t worked_ns;
};

/* What an op has as its state. */
struct prefetch {
    struct core *core;
    uint64_t op;
    enum hbm_tier tier;    /* where they go */
    struct wanted *wanted; /* in order of use; its own */
    size_t n, at, asked, failed;
    uint64_t bytes_done;
    int error; /* the first */
    char detail[HBM_DETAIL_MAX];
    bool advancing; /* in the loop that starts moves: one that ends at once must not start another */
    bool waits;     /* for what leaves by the same order */
    struct lane lanes[PREFETCH_LANES];
};

/* Takes wanted in any case. The op, whose rows the caller fills before prefetch_start; NULL with error and detail.
 */
struct op *prefetch_new(struct core *core, enum hbm_tier tier, struct wanted *wanted, size_t n, const struct principal *who,
                        struct session *session, size_t n_rows, int *error, char *detail);
/* The op may have ended when it returns. */
void prefetch_start(struct op *op);

/* ---- One that grows: made with room for so many arenas, and none ---- */

/* Sets `visit` of the arenas that still have their turn. */
void prefetch_mark(const struct op *op, uint64_t visit);
/* Another one that has no rows, at the end; left out if room arenas wait for their turn already. prefetch_start
 * follows. */
void prefetch_add(struct op *op, uint64_t arena, size_t room);
