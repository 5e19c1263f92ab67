/* hbmctl advise: from what is known to which bottleneck is real, and which strategy pays. Nothing is asked or
 * printed here. */
#pragma once

#include "client/ctl/facts.h"

enum branch {
#define BRANCH(name, bottleneck, strategy) BRANCH_##name,
#include "client/ctl/branches.def"
#undef BRANCH
    BRANCHES
};

struct remark {
    enum branch branch;
    const char *bottleneck, *strategy; /* as branches.def has them */
    char *why;                         /* the figures that say so */
    char *gain;                        /* what the strategy would gain; NULL: not known, or nothing */
    char *todo;                        /* by which command; NULL: none */
    char *unknown;                     /* what is not known, and what to run for it; NULL: nothing */
    const char *metric;                /* that shows the gain afterwards (gain_now); NULL: none here does */
    double before, predicted;          /* of it; NAN: not known */
};

struct remarks {
    struct remark all[BRANCHES];
    unsigned n;
};

/* `sel`: how commands name what is meant. */
void bottlenecks_find(const struct facts *facts, const char *sel, struct remarks *remarks);
void remarks_clear(struct remarks *remarks);

/* A metric as it is by these facts; NAN: not known. */
double gain_now(const struct facts *facts, const char *metric);
