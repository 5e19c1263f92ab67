/* A transition: some arenas take another form (tier, layout, encoding), all or nothing, never in place. For each: a new
 * extent, clients let go (where asked), steps that copy or code into the new extent; when every arena has come through,
 * all are swapped in one go and the old extents released. An error, a cancel or a crash before that leaves everything
 * as it was. */
#pragma once

#include "daemon/core/reclaim.h"

/* What becomes of one buffer. */
struct placement {
    uint64_t buffer; /* id */
    uint64_t offset, size;
    struct hbm_encoding encoding;
    struct {
        uint64_t offset, size; /* 0 size: it has none such */
    } parts[PARTS];
    bool has_receipt;
    struct hbm_receipt receipt;
    struct hbm_quality quality;
    /* own */
    bool made[PARTS];
};

enum step_kind { STEP_COPY, STEP_ENCODE, STEP_DECODE, STEP_PACK, STEP_UNPACK };

/* One job of a plan. Offsets are in the old and the new extent. */
struct step {
    enum step_kind kind;
    uint64_t source_offset, target_offset, bytes; /* COPY; PACK, UNPACK: bytes of the raw form */
    struct job_code code;                         /* ENCODE, DECODE */
    double min_sqnr_db, max_error;
    struct job_calibration calibration;
    uint64_t observation; /* ENCODE: what its range is searched for in; 0: nothing */
    size_t placement; /* ENCODE: whose receipt */
};

/* What becomes of one arena. */
struct plan {
    uint64_t arena; /* id; 0 in a copy that brings its own source */
    enum hbm_tier tier;
    bool to_peer;          /* the tier is DEVICE, of a peer that is chosen when the memory is made */
    struct device *device; /* whose tier that is; NULL: the source's */
    struct device *home;   /* the arena's own; NULL: the source's */
    uint64_t size;
    bool reclaim; /* clients must let go; else BUSY if anyone writes, and readers keep the old extent */
    struct placement *placements;
    size_t n_placements;
    struct step *steps;
    size_t n_steps;
    struct packing *packing; /* one ref: PACK and UNPACK go by it, and a copy of a packed extent takes it along */
    struct job_receipt *receipts; /* PACK: what it cost, in the packing's order */
    /* own; a copy's creator may set source (one ref, taken) and, when done, take target */
    struct extent *source, *target;
    struct transition *transition;
    struct reclaim wait;
    bool waiting;
    bool begun; /* of a transition that is swapped one by one */
    bool late; /* nobody writes it, and who reads it goes on in the copy: they let go when that is made */
};

/* One arena's new extent, and then its steps, one after the other. Of several arenas as many go side by side as a link has threads: while one is
 * mapped, answered and booked, the other's bytes are on the link. Of small ones some more wait in the worker: being
 * booked takes as long as they do, and no thread is to wait for that. */
#define TRANSITION_AT_ONCE 2
#define TRANSITION_TRACKS 8
#define TRANSITION_SMALL ((uint64_t)32 << 20) /* bytes under way, from which on no more are sent ahead */

struct links;

struct track {
    struct transition *transition; /* NULL: idle */
    struct plan *plan;
    size_t step;
    struct job job;
    int table;                 /* PACK, UNPACK: the pieces, ENCODE: what was observed, while the job runs; -1: none */
    struct extent_create keep; /* the plan's target, before its steps; or what a step made */
    bool keeping, starting;
    uint64_t bytes; /* of the running step */
    struct links *links; /* the running step goes over several (daemon/core/links.h); NULL: over one */
};

struct transition {
    struct core *core;
    struct plan *plans; /* freed by transition_clear */
    size_t n;
    uint32_t memory_wait_ms;
    bool yields;              /* to whoever has one of the arenas in use when it would ask to let go: BUSY at once */
    bool cancellable_by_lock; /* a client's lock calls it off (offload) */
    /* Each arena is swapped, and free for others, as soon as it has come through; those that somebody waits for come first.
     * Whatever ends it early leaves these where they are now, and the rest where it was. */
    bool one_by_one;
    bool live;                /* what comes to the host tier is resident there for those who have it attached */
    bool gives_way;           /* the daemon's own: it gives way to whatever anybody asks for */
    /* The arenas stay as they are, nobody lets go of anything and nothing is swapped: commit, called when all steps are
     * done, makes of the targets what it likes (0, or an error with detail; NULL: they stay in the plans). */
    bool copy;
    int (*commit)(struct transition *transition);
    struct account *account; /* who pays for the new extents; NULL: each arena's owner */
    const char *verb;        /* with op: what others who find an arena busy are told */
    uint64_t op;
    int error;
    char detail[HBM_DETAIL_MAX];
    uint64_t bytes_done, bytes_total; /* in finished steps, and in all */
    void (*progress)(struct transition *transition);
    void (*done)(struct transition *transition);
    uint64_t worked_ns; /* in jobs; those that ran side by side share it */
    unsigned links;     /* that one copy went over at once, at most */
    /* own */
    size_t at, reclaims;
    int reclaim_error, step_error;
    struct track *tracks; /* while it is under way: as many as there are plans, at most TRANSITION_TRACKS */
    unsigned n_tracks, n_busy;
    size_t swapped;  /* one by one */
    bool copied;            /* all steps are done */
    bool asking;            /* inside the loop that asks all clients */
    char why[128];
    struct job measuring; /* of plans[at] */
    int measures;         /* its pieces; -1: none */
    bool measured;        /* that came first: everybody has let go by the time that memory is made */
    enum { TRANSITION_IDLE, TRANSITION_MEASURING, TRANSITION_CREATING, TRANSITION_RECLAIMING, TRANSITION_STEPPING } phase;
    bool cancelled;
};

/* Plan of a whole arena to a tier of its device, or to a peer: a copy, or packed where buffers of it are parked. 0 or
 * NO_MEMORY. */
int plan_move(struct plan *plan, struct arena *arena, enum hbm_tier tier);
/* The same, with all that can be encoded as `park` says, whatever the buffers' own policies; NULL: by these. */
int plan_move_as(struct plan *plan, struct arena *arena, enum hbm_tier tier, const struct parking *park);
/* Where the target is, or is going to be made; and whose worker does the steps: the side that is a device's memory, and
 * between two devices the arena's own. */
struct device *plan_device(const struct plan *plan);
struct device *plan_worker(const struct plan *plan);
void plan_clear(struct plan *plan);
/* Bytes that its steps go through. */
uint64_t plan_bytes(const struct plan *plan);
uint64_t step_bytes(const struct step *step);
/* BUSY at once (done is called) if another transition has one of the arenas. done follows exactly once, possibly before this returns. */
void transition_start(struct transition *transition);
/* done follows, with CANCELLED (or error, if set by the caller before) unless it has committed already. */
void transition_cancel(struct transition *transition, const char *why);
/* The creation is one of its. */
bool transition_creates(const struct transition *transition, const struct extent_create *create);
/* Done so far, the running steps' included. */
uint64_t transition_bytes(const struct transition *transition);
/* Frees the plans. One that is under way is dropped where it stands: only when the core itself goes. */
void transition_clear(struct transition *transition);

/* Keeps others' transitions off the plans' arenas, without one of its own, while their contents are being filled. 0,
 * STALE or BUSY with detail (then nothing is held). */
int transition_hold(struct transition *transition);
void transition_let_go(struct transition *transition);
