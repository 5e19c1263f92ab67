/* A device: a GPU, a MIG instance or host memory, by UUID, with its tiers. */
#pragma once

#include "daemon/base/traffic.h"
#include "daemon/core/core.h"
#include "daemon/core/wait.h"

/* The driver's word about a device, as its worker last brought it. */
struct books {
    struct job job;
    bool asked;     /* the job is under way */
    uint64_t at_ms; /* 0: never answered */
    struct job_query_reply said;
};

/* How its worker reads and writes the disk tier. */
struct disk_access {
    enum { DISK_UNSEEN, DISK_BY_RING, DISK_BY_THREADS } by; /* unseen: no worker has served yet */
    int refused; /* the errno that refuses io_uring; 0: it was not asked for */
    enum { DISK_UNTRIED, DISK_PAST_CACHE, DISK_THROUGH_CACHE } cache; /* untried: nothing has been put there yet */
};

/* When something is to go for want of room: daemon/core/survey.h. */
#define PRIORITY_NORMAL 5u
#define PRIORITY_NEVER 10u
#define PRIORITIES 11u

/* recency.c's: bytes that were used in a span of time, and in the one before it. */
struct working_set {
    uint64_t span, now, last;
};

#define PRESSURE_MOVES 4 /* under way at once, out of all tiers of a device */

/* pressure.c's. */
struct pressure_move {
    struct device *device;
    uint64_t op, arena; /* ids; op 0: none */
    enum hbm_tier from, to;
    uint64_t size;
    bool ended;
    struct op_wait wait;
};
struct pressure {
    struct timer timer;
    struct pressure_move moves[PRESSURE_MOVES];
    bool easing[HBM_TIERS];            /* from over the high mark down to the low one */
    uint64_t full_until_ms[HBM_TIERS]; /* a tier that took nothing a moment ago */
    uint64_t told_ms;                  /* when it was last said that the working set does not fit */
};

/* host_ahead.c's: host memory that is ready for the next move. */
struct ahead {
    uint64_t cap, bytes; /* bytes: of device->pooled */
    unsigned n, failures; /* failures: in a row */
    struct list pieces;
    struct timer timer;
    struct job job;
    bool making;            /* the job is under way */
    uint64_t since_ms;      /* it began */
    uint64_t not_before_ms; /* the next one begins */
    uint64_t used_ms;       /* when something last happened on the device */
};

enum device_state { DEVICE_STARTING, DEVICE_READY, DEVICE_DRAINED, DEVICE_FAILED };

struct device {
    struct core *core;
    struct list node;
    uint32_t index;
    char uuid[HBM_UUID_MAX];
    char name[64];
    bool is_cuda;
    enum device_state state;
    uint64_t capacity[HBM_TIERS], used[HBM_TIERS];
    uint64_t pooled;              /* of used[HBM_TIER_HOST]: nobody's now, gives way (daemon/core/host_pool.h) */
    uint64_t closing[HBM_TIERS];  /* of used: free as soon as its fd is closed (daemon/core/room.h) */
    uint64_t granularity;         /* of device extents, bytes */
    bool can_fd, can_cuda_ipc;
    unsigned link_share;          /* links.c's: how fast it was when it last helped with another's copy; 0: it has not */
    unsigned moves;               /* copies and other steps of moves that its worker has now */
    uint64_t reaches;             /* a bit an index: whose memory its worker can use; all, until it has said */
    int32_t worker_pid;           /* 0: none now */
    uint32_t worker_restarts;
    char worker_why[HBM_DETAIL_MAX]; /* what became of the last one */
    uint64_t worker_gone_ms;         /* when; 0: none has gone */
    uint64_t recovery_ms;            /* from then until the next one served; 0: none has yet */
    struct books books;              /* daemon/core/books.c's */
    struct ahead ahead;
    struct traffic links[JOB_LINKS]; /* daemon/job counts and limits them */
    struct disk_access disk;
    struct list recent[HBM_TIERS][PRIORITIES]; /* struct arena, other devices' here too; what was used last is last: daemon/core/recency.h */
    struct working_set working_set;
    struct pressure pressure;
};

/* capacity 0 in a tier means the tier is not there. Index is the order of adding. NULL if memory is out. */
struct device *device_add(struct core *core, const char *uuid, const char *name, bool is_cuda,
                          const uint64_t capacity[HBM_TIERS]);
struct device *device_at(struct core *core, uint32_t index); /* WIRE_DEVICE_ANY gives the first; NULL if none */
struct device *device_by_text(struct core *core, const char *uuid_or_index);
/* 0, or DRAINED with detail: it gives no more memory out, and takes none back. */
int device_check_drained(const struct device *device, char *detail);
/* 0, or why nothing can be put there: NO_DEVICE, DRAINED, or DEVICE_LOST with what became of its worker. device may be
 * NULL. */
int device_check_ready(const struct device *device, char *detail);
const char *device_state_name(enum device_state state);
/* Its worker has put something on disk, past the page cache or through it. */
void device_tell_cache(struct device *device, bool direct);
/* The worker's process ended: cuda-ipc extents of the device are lost for new attaches. */
void device_worker_gone(struct core *core, struct device *device, const char *why);
