/* A transition: some arenas take another form (tier, layout, encoding), all or nothing, never in place. For each: a new
 * extent, clients let go (where asked), steps that copy or code into the new extent; when every arena has come through,
 * all are swapped in one go and the old extents released. An error, a cancel or a crash before that leaves everything
 * as it was. */
#pragma once

#include "daemon/core/residency.h"

/* What becomes of one buffer. */
struct placement {
    uint64_t buffer; /* id */
    uint64_t offset, size;
    struct hbm_encoding encoding;
    uint64_t scale_offset, scale_size; /* 0 size: no scale */
    bool has_receipt;
    struct hbm_receipt receipt;
};

enum step_kind { STEP_COPY, STEP_ENCODE, STEP_DECODE };

/* One job of a plan. Offsets are in the old and the new extent. */
struct step {
    enum step_kind kind;
    uint64_t source_offset, target_offset, bytes; /* COPY */
    struct job_code code;                         /* ENCODE, DECODE */
    double min_sqnr_db, max_error;
    size_t placement; /* ENCODE: whose receipt */
};

/* What becomes of one arena. */
struct plan {
    uint64_t arena; /* id */
    enum hbm_tier tier;
    uint64_t size;
    bool reclaim; /* clients must let go first; else BUSY if anyone writes, and readers keep the old extent */
    struct placement *placements;
    size_t n_placements;
    struct step *steps;
    size_t n_steps;
    /* own */
    struct extent *source, *target;
    uint64_t checksum;
};

struct transition {
    struct core *core;
    struct plan *plans; /* freed with the transition */
    size_t n;
    uint32_t memory_wait_ms;
    bool cancellable_by_lock; /* a client's lock calls it off (offload) */
    int error;
    char detail[HBM_DETAIL_MAX];
    uint64_t bytes_done, bytes_total, bytes_step; /* bytes_done counts finished steps; bytes_step the running one */
    void (*progress)(struct transition *transition);
    void (*done)(struct transition *transition);
    /* own */
    size_t at, step;
    struct extent_create create;
    struct reclaim reclaim;
    struct job job;
    enum { TRANSITION_IDLE, TRANSITION_CREATING, TRANSITION_RECLAIMING, TRANSITION_STEPPING } phase;
    bool cancelled;
};

/* Plan of a whole-arena copy to a tier. 0 or NO_MEMORY. */
int plan_move(struct plan *plan, struct arena *arena, enum hbm_tier tier);
void plan_clear(struct plan *plan);
/* BUSY at once (done is called) if another transition has one of the arenas. done follows exactly once, possibly before this returns. */
void transition_start(struct transition *transition);
/* done follows, with CANCELLED (or error, if set by the caller before) unless it has committed already. */
void transition_cancel(struct transition *transition, const char *why);
