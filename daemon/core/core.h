/* The core: catalog, state changes and their rules, with no socket, no CUDA and no clock of its own. It is given the
 * world as function pointers, so a test can be the world. Single-threaded: everything runs on the owner's loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/core/events.h"
#include "daemon/core/thing.h"
#include "daemon/job/job.h"
#include "proto/errors.h"
#include "proto/vocab.h"

enum id_kind { ID_EXTENT = 1, ID_ARENA, ID_BUFFER, ID_MODEL, ID_LEASE, ID_SESSION, ID_OP, ID_OBSERVATION };

struct ledger;
struct owner;
struct store_request;

/* What the core needs of the world. Nothing here blocks. */
struct core_env {
    void *context;
    /* Hands a job to its device's worker; job->done follows, later. */
    void (*submit)(void *context, struct job *job);
    /* Asks a submitted job to end early; job->done still follows, exactly once. */
    void (*cancel)(void *context, struct job *job);
    /* Gives a copy of request->fd to whoever outlives this process under request->name; request->done follows,
     * later or at once, when it is safe there (or when there is nobody to keep it: then a restart loses it), or is
     * refused. */
    void (*store)(void *context, struct store_request *request);
    void (*unstore)(void *context, const char *name);
    uint64_t (*now_ms)(void *context); /* monotonic */
    /* core_tick() is wanted at this time, 0 = not at all; the last word counts. */
    void (*wake_at)(void *context, uint64_t at_ms);
    /* Closes the last fd of memory elsewhere; closed follows, later or at once. NULL: closing is quick here. */
    void (*close_memory)(void *context, int fd, void (*closed)(void *argument), void *argument);
    /* The same for what clients of the owner sent (daemon/core/sent.h). fd -1: none. True if so much
     * of it does not close that the owner is to be given no more of our fds. */
    bool (*close_sent)(void *context, struct owner owner, int fd);
    /* Which container its process is in: session->origin, later. NULL: nobody asks. */
    void (*find_origin)(void *context, uint64_t session, int32_t pid);
};

/* Says NO_MEMORY of no tier. */
#define OWNER_OUT_OF_MEMORY "the owner is out of memory for its own tables: the host is short of it, or MemoryMax= of the unit is too low"

#define STORE_NAME_MAX 64
#define STORE_IS_FULL                                                                                              \
    "the store that keeps memory and sessions over a restart of hbmd is full; free some, or raise "                \
    "FileDescriptorStoreMax= of the unit and store_max"
/* What something in the store is for. New memory leaves some of it to moves and sessions, and moves to sessions. */
enum store_use { STORE_SESSION, STORE_MOVE, STORE_NEW };

struct store_request {
    int fd;
    char name[STORE_NAME_MAX]; /* letters, digits, '.', '-', '_' */
    enum store_use use;
    bool refused; /* the store is full: nothing is kept */
    void (*done)(struct store_request *request);
    struct list node; /* the world's own */
};

/* Percent of a tier's capacity (daemon/core/pressure.h). high 0: nothing is moved out of it for want of room. */
struct watermarks {
    unsigned high, low;
};

struct core_limits {
    uint64_t account[ACCOUNT_THINGS]; /* of each user of the main listener; 0 = no limit, here and below */
    unsigned soft_percent;            /* of an account's limit, from where on an event warns */
    uint32_t sessions;
    uint64_t pieces_bytes;    /* of host memory that is pinned in pieces, at least; 0: none is */
    uint64_t split_bytes;     /* of a copy that goes over neighbours' links too (daemon/core/links.h), at least; 0: none does */
    unsigned offload_percent; /* of a model's bytes, cumulative */
    uint32_t reclaim_ms;      /* how long a move waits for clients to let go */
    uint32_t memory_wait_ms;  /* how long an allocation waits for memory to come free */
    uint64_t host_pool_idle_ms; /* without anything happening on a device, until what was made ahead for it goes */
    struct watermarks watermarks[HBM_TIERS]; /* of disk: none */
};

/* What the daemon may lack for taking on more: daemon/core/health.h. */
enum ailment { AILMENT_LEDGER, AILMENT_FDS, AILMENT_MEMORY, AILMENTS };
struct ailing {
    uint64_t since_ms; /* 0: it does not lack it */
    char cause[128];
};

/* Counters that only grow. */
struct core_counters {
    uint64_t reclaimed_sessions; /* clients whose death was cleaned up after */
    uint64_t late_reclaims;      /* of clients that were not quiescent for 15 s */
    uint64_t violations;         /* clients disconnected for what they sent */
    uint64_t lost;               /* arenas whose contents are gone */
    uint64_t degraded;           /* times that the daemon lacked something for taking on more */
    uint64_t evictions, evicted_bytes; /* arenas moved away for want of room */
    uint64_t bounces;            /* of those, how many were back soon */
    uint64_t spared;             /* times that one was left alone for it */
    uint64_t attaches, attached_bytes; /* leases on what was there already */
    uint64_t refusals[64];       /* answers to clients and operators that were an error, by -hbm_error */
};

/* Since this daemon started; they only grow. */
struct lock_waits {
    uint64_t n, ms;      /* locks that found memory away, and how long they took */
    uint64_t prefetched; /* locks that found memory back, or on its way, by a prefetch; they may have waited too */
};

struct timer {
    struct list node;  /* in core->timers, or in the `later` of an earlier one */
    struct list later; /* daemon/core/timers.c */
    uint64_t at_ms; /* 0 = not armed */
    void (*fire)(struct timer *timer);
};

struct core {
    struct core_env env;
    struct core_limits limits;
    struct core_counters counters;
    struct lock_waits lock_waits;
    struct idmap ids;
    struct events events;
    struct ledger *ledger; /* NULL: nothing is remembered (tests) */
    struct list devices, listeners, accounts, extents, arenas, buffers, models, sessions, ops, timers;
    struct list memory_waiters; /* struct extent_create, oldest first */
    struct list host_pool;      /* released host extents: daemon/core/host_pool.c */
    struct list closing;        /* released memory whose fd is being closed: daemon/core/room.c */
    struct list books_waiters;  /* struct books_wait */
    uint32_t books_asked;       /* devices whose driver has not answered yet */
    void *buffer_names, *model_names; /* tsearch roots: daemon/core/names.c */
    uint32_t n_devices, n_buffers, n_models, n_sessions, n_leases, n_ops, n_quarantined;
    bool keeps;             /* there is a store: what is in it is charged */
    uint64_t spill_key;     /* the id of the key that workers have; 0: none */
    uint64_t grain, passing; /* LINKS_GRAIN and LINKS_PASSING, but where all is smaller (the simulation) */
    bool encrypts_spill;    /* new disk extents are encrypted with it */
    uint64_t visits;        /* walks that mark what they have seen */
    bool draining;          /* stopping: nothing new is granted */
    struct timer quarantine_timer, memory_timer, host_pool_timer, health_timer, accounts_timer;
    struct ailing ailing[AILMENTS];
    uint64_t plenty_until_ms; /* fds and memory need not be looked at before */
    bool quarantine_asked; /* a CLIENTS job is under way */
    bool driver_is_mute;   /* the last one found that NVML does not tell */
};

struct core *core_new(const struct core_env *env, const struct core_limits *limits);
/* Frees every object without telling anyone: fds close, the ledger stays. */
struct core *core_free(struct core *core);
/* Fires the timers that are due and asks for the next wake-up. */
void core_tick(struct core *core);
/* Nothing new from now on; running ops go on. */
void core_drain(struct core *core);
/* True when no op and no job of the core's is under way. */
bool core_is_idle(const struct core *core);

/* An answer that is this error goes out; what is none of errors.def's is not counted. */
static inline void core_count_refusal(struct core *core, int error)
{
    if (error < 0 && -error < (int)(sizeof(core->counters.refusals) / sizeof(core->counters.refusals[0])))
        core->counters.refusals[-error]++;
}

static inline uint64_t core_now(const struct core *core)
{
    return core->env.now_ms(core->env.context);
}

/* Arms (or re-arms) a timer of the caller's; timer->fire must be set. delay 0 fires at the next tick. */
void timer_arm(struct core *core, struct timer *timer, uint64_t delay_ms);
void timer_stop(struct core *core, struct timer *timer);
