/* Staging: what HASH and FILE jobs can't read as it lies is copied (and checked), unpacked or decoded into a temporary
 * extent. */
#pragma once

#include "daemon/core/recode.h"

struct stage {
    struct core *core;
    struct account *account; /* who pays for the temporary extents */
    uint64_t arena;          /* named if its stored copy turns out to be damaged */
    struct extent *extent;   /* one ref: what lies there; in the end what to read instead */
    struct plan decode;      /* steps that leave the raw bytes in a temporary extent; n_steps 0: none */
    uint64_t worked_ns;
    int error;
    char detail[HBM_DETAIL_MAX];
    void (*done)(struct stage *stage);
    /* own */
    struct transition transition;
};

/* done follows exactly once, possibly before this returns. */
void stage_start(struct stage *stage);
/* done follows, with CANCELLED. */
void stage_cancel(struct stage *stage, const char *why);
/* Drops what it holds. */
void stage_clear(struct stage *stage);
