/* What of a tier could go, and in which order: the lowest priority first, then what was used longest ago. */
#pragma once

#include "daemon/core/arena.h"

enum fate {
    FATE_IDLE,     /* not used since the last look */
    FATE_RECENT,   /* used since then, and not locked now */
    FATE_LOCKED,   /* or wanted by a lock that waits, or on its way to who attached it */
    FATE_NEVER,    /* its priority */
    FATE_SPARED,   /* it came back again and again */
    FATE_HOMELESS, /* no tier has room for it */
    FATE_LIMIT,    /* offload_limit of a model that is leased */
    FATE_STUCK,    /* it could not go a moment ago, or is no thing to move */
    FATE_MOVING,
    FATES
};

#define SURVEY_VICTIMS 2

struct survey {
    uint64_t bytes[FATES];
    struct arena *victims[SURVEY_VICTIMS]; /* in order */
    unsigned n;
};

/* recent: what was used since the last look may go too, where that is all there is. Walks over the arenas of the
 * tier. */
void survey_take(struct survey *survey, struct device *device, enum hbm_tier tier, bool recent);
/* Where it would go: host takes it while it is under its mark, then disk, then what room host has, as far as its
 * owner may have more there. False: nowhere. */
bool survey_target(struct arena *arena, enum hbm_tier *to);
/* Somebody has, now. */
bool arena_is_locked(const struct arena *arena);
