/* An arena: the physical unit. One extent, one owner, one mode, one group; it is mapped once per session and access and
 * moves between tiers as a whole. A plain allocation is an arena with one buffer. Kept by its buffers. */
#pragma once

#include "daemon/core/extent.h"
#include "daemon/core/wait.h"

struct transition;
struct reclaim;

/* What want of room did to it: daemon/core/pressure.c. */
struct eviction {
    uint64_t at_ms;            /* last time it was moved away so; 0: never */
    enum hbm_tier to;
    uint32_t n, bounces;       /* times in all; times that it was back soon, in a row */
    uint64_t spared_until_ms;  /* it is left alone: it bounced */
    uint64_t shunned_until_ms; /* it could not go */
};

struct arena {
    uint64_t id;
    struct core *core;
    struct list node; /* core->arenas */
    struct owner owner;
    bool shared; /* trusts all who may use its listener */
    uint32_t mode;
    enum hbm_handle handle;
    char group[HBM_GROUP_MAX];
    struct device *device; /* its own: where clients have it */
    struct extent *extent; /* where it is now; its tier is the arena's tier, PEER if it is another device's memory */
    struct list buffers;   /* struct buffer, by offset */
    struct list mappings;  /* struct mapping */
    struct transition *transition; /* the move under way, if any (weak) */
    struct reclaim *reclaim;       /* clients are being asked to let go (weak) */
    struct list waiters;   /* struct arena_wait: told when transition becomes NULL */
    struct list early_waiters; /* the same: when a move begins to fill memory that may be given out (coming.h) */
    bool early;            /* somebody locks it so: its memory is made before the copy that fills it */
    uint64_t visit;        /* the last of core->visits that came by */
    bool prefetched;       /* it is here, or comes, by a prefetch */
    bool live;             /* demoted under those who map it: for them it is resident in host memory */
    struct lock_waits lock_waits;
    uint64_t locked_ms;    /* when it was last used, as far as is known (daemon/core/recency.h) */
    uint32_t priority;     /* 0 goes first where there is want of room, 9 last; PRIORITY_NEVER */
    uint32_t wanted;       /* locks that wait for it, or for others of theirs */
    struct list recent_node;        /* device->recent, by tier and priority */
    uint64_t counted_in, counted;   /* recency.c's */
    struct model *weighs_for;       /* weight.c's, as the rest: whose weight it is part of; NULL: nobody's */
    uint32_t n_weighed;             /* buffers */
    uint64_t weight;                /* their bytes */
    bool weighed_away;
    struct eviction eviction;
    uint64_t parked_size; /* park.c's: what park_size says; 0: it has not been asked */
};

/* Takes the extent's ref on success; on failure (NULL, memory is out) the caller keeps it. */
struct arena *arena_new(struct core *core, struct owner owner, bool shared, uint32_t mode, enum hbm_handle handle,
                        const char *group, struct extent *extent);
/* Called by the last buffer's destructor. Drops the extent (mappings hold their own refs). Returns NULL. */
struct arena *arena_free(struct arena *arena);
struct arena *arena_get(struct core *core, uint64_t id);
/* The priority that it was made with. */
void arena_prefer(struct arena *arena, uint32_t wire_flags);
static inline enum hbm_tier arena_tier(const struct arena *arena)
{
    const struct extent *extent = arena->extent;

    return extent->tier == HBM_TIER_DEVICE && extent->device != arena->device ? HBM_TIER_PEER : extent->tier;
}
/* The device whose memory it lies in; NULL unless its tier is PEER. */
static inline const struct device *arena_peer(const struct arena *arena)
{
    return arena_tier(arena) == HBM_TIER_PEER ? arena->extent->device : NULL;
}
/* Whoever maps it needs no move: it is on its device, or in host memory where that will do (live, or `in_place`) and a
 * process can map it. */
bool arena_is_resident(const struct arena *arena, bool in_place);
bool arena_may_read(const struct arena *arena, const struct principal *who);
bool arena_may_write(const struct arena *arena, const struct principal *who);
/* The caller may map it directly; others who may read get a private copy. */
bool arena_trusts(const struct arena *arena, const struct principal *who);
/* Leases of any kind on any of its buffers, by others than nobody. */
bool arena_is_leased(const struct arena *arena);
/* In host memory, it is resident there for those who have it attached, if anybody has. */
void arena_demoted(struct arena *arena);
/* The last mapping has gone: what was demoted under them is a plain offloaded arena from now on. */
void arena_unmapped(struct arena *arena);
bool arena_has_writers(const struct arena *arena);
/* Writes "pid 12, pid 34" of those who have it attached. */
void arena_holders(const struct arena *arena, char *text, size_t size);
/* The same, without those who have let go of it. */
void arena_mappers(const struct arena *arena, char *text, size_t size);
/* Writes "m/a, m/b", what lies in it; as many names as there is room for. */
void arena_names(const struct arena *arena, char *text, size_t size);
/* transition ended: wakes the waiters. */
void arena_settled(struct arena *arena);
