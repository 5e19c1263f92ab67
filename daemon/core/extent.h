/* An extent: one exported allocation (device, host or file). Whoever holds its fd owns the memory, so an extent lives
 * as long as anything refers to it: its arena, a session that maps it, a job that reads it. */
#pragma once

#include "daemon/core/account.h"
#include "daemon/core/device.h"

struct packing;

struct extent {
    unsigned refs;
    uint64_t id;
    struct core *core;
    struct list node; /* core->extents */
    struct device *device;
    struct account *account;
    enum hbm_tier tier;
    enum job_extent_kind kind;
    uint64_t size;
    int fd;         /* -1: cuda-ipc, or lost */
    int fd_to_read; /* the same, opened read-only for those who only read; -1: nobody has asked */
    uint64_t token; /* what the worker knows it by. cuda-ipc: the block; host: the id that it was first given; disk: the id */
    uint8_t ipc_handle[64];
    uint64_t checksum; /* of the whole extent as it was copied here; valid if has_checksum */
    bool has_checksum;
    uint64_t spill_key; /* disk: the key that it is encrypted with; 0: plain */
    bool exported; /* host memory: a client was given it and may have kept it, or a worker that does not end */
    struct packing *packing; /* host, disk: it holds the packed form of an arena, so; NULL: the raw one */
    bool stored; /* a copy of fd is with whoever outlives us */
    bool is_object; /* and the account pays for it there */
    bool lost;   /* what it held is gone (cuda-ipc after its worker's death; an fd missing after a restart) */
    struct list farewells; /* farewell.h: to the workers that know its token */
    uint64_t visit; /* the last of core->visits that came by */
    bool uncounted; /* lost with nothing left of it: neither tier nor account pay for it any more */
};

struct extent *extent_ref(struct extent *extent);
/* The last one: tombstone in the ledger, then out of the store, fd closed (or block destroyed, or both left to the host
 * pool), charges released, waiters for memory tried again. NULL is fine; returns NULL. */
struct extent *extent_unref(struct extent *extent);
/* What a client maps for that access; the fd stays the extent's, and is -1 for cuda-ipc. 0 or -errno. */
int extent_fd_for(struct extent *extent, enum hbm_access access, int *fd);
/* False of a GPU's host memory where the driver shares none: a memfd that only the worker pins. */
bool extent_is_shareable(const struct extent *extent);
/* The same of the fd of a GPU's host memory. */
bool fd_is_shareable(int fd);
/* A client is about to map it. What somebody may write has no checksum any more. */
void extent_export(struct extent *extent, enum hbm_access access);
/* Of the raw form, which is what clients map. */
uint64_t extent_raw_size(const struct extent *extent);
/* False of device memory that the job which fills it is still to make. */
bool extent_is_made(const struct extent *extent);
/* How jobs name it, on job->device; the fd, if any, goes to job->fds in the same order. */
void extent_describe(const struct extent *extent, struct job *job, struct job_extent *wire);
/* The fd store's name of an extent: "x-ID-UID-SIZE", in hex: all names share one environment string. */
void extent_store_name(const struct extent *extent, char name[STORE_NAME_MAX]);

/* A new extent, asynchronously: room in the tier and the account is taken at once (or waited for, up to wait_ms), then the
 * worker creates it, then the store has it, then done. On success the caller owns create->extent (one ref). */
struct extent_create {
    struct core *core;
    struct device *device;
    struct account *account;
    enum hbm_tier tier;
    enum job_extent_kind kind;
    uint64_t size; /* rounded up to the device's granularity (disk: 4096) by extent_create_start */
    uint32_t wait_ms;
    bool moves; /* it takes another's place, or passes through */
    /* One COPY writes every byte before anyone reads: of host memory, what the account let go of before will do; device
     * memory is made by that job, and the extent has no fd until extent_create_finish. */
    bool filled_at_once;
    bool shared; /* clients are to map it: no host memory that is pinned in pieces */
    void (*done)(struct extent_create *create);
    void *context; /* the caller's */
    int error;
    char detail[HBM_DETAIL_MAX];
    struct extent *extent;
    /* own */
    struct job job;
    struct store_request store;
    struct list node;
    struct timer timer;
    bool cancelled;
    bool is_object; /* charged */
    uint64_t waits_since_ms;
    uint64_t again_until_ms; /* what is being given back is waited for; 0: nothing was short yet */
    int pooled_fd; /* from the host pool; -1: none */
    uint64_t pooled_token;
    struct list pooled_farewells;
};
/* create->done follows exactly once, possibly before this returns. */
void extent_create_start(struct extent_create *create);
/* The job that was to make create->extent has: takes the fd; done follows, as for a new one. Of create only core, extent,
 * moves and done are looked at. */
void extent_create_finish(struct extent_create *create, int fd);
/* done still follows, with CANCELLED unless it was too late. */
void extent_create_cancel(struct extent_create *create);
/* Memory came free: tries those that wait, oldest first. Fired by core->memory_timer, never from within a release. */
void extent_create_retry(struct timer *timer);
/* Its copy is with the store: the account pays for that, whatever its limit. */
void extent_count_stored(struct extent *extent);
/* Nothing is left of it: its room is free. */
void extent_discount(struct extent *extent);
/* Of that id, or of the next one (0); takes the fd, and nothing of room or account. NULL, and the fd is still the caller's,
 * if memory is out. */
struct extent *extent_new(struct core *core, uint64_t id, struct device *device, struct account *account,
                          enum hbm_tier tier, enum job_extent_kind kind, uint64_t size, int fd);
/* Restores an extent from the ledger: takes the fd, charges without limit. NULL if memory is out. */
struct extent *extent_adopt(struct core *core, uint64_t id, struct device *device, struct owner owner, enum hbm_tier tier,
                            enum job_extent_kind kind, uint64_t size, int fd);
