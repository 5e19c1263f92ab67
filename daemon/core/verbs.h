/* What can be asked of the core: one verb a file, the same for clients (wire) and operators (rpc). Each ends its call
 * exactly once; `result` says what call->done is given. Permission is judged here, by object: what the caller may not see is
 * NOT_FOUND, in the same words as what never was. */
#pragma once

#include "daemon/core/op.h"

/* ---- Clients ---- */

struct alloc_args {
    uint64_t size;
    uint64_t dims[HBM_RANK_MAX];
    uint32_t device, dtype, rank, handle, mode, flags;
    char name[HBM_NAME_MAX];
    char group[HBM_GROUP_MAX];
};
void verb_alloc(struct core *core, struct call *call, const struct alloc_args *args); /* result: struct lease (rw) */

struct attach_args {
    uint64_t id; /* 0: by name */
    char name[HBM_NAME_MAX];
    uint32_t access, flags, timeout_ms;
};
void verb_attach(struct core *core, struct call *call, const struct attach_args *args); /* result: struct lease */
void verb_attach_model(struct core *core, struct call *call, const struct attach_args *args); /* result: struct lease */

struct publish_args {
    char name[HBM_NAME_MAX], key[128];
    uint32_t device, mode, flags, timeout_ms;
    struct table table; /* valid until the verb returns */
};
void verb_publish(struct core *core, struct call *call, const struct publish_args *args); /* result: struct lease; ->builder */
void verb_commit(struct core *core, struct call *call, uint64_t lease, bool commit); /* result: uint64_t layout hash */

/* Of at most WIRE_SLOTS_MAX slots. result: uint64_t[2], a bit for each that was away and is to be mapped from its mapping->extent
 * now. */
void verb_lock(struct core *core, struct call *call, const uint32_t *slots, uint32_t n, uint32_t timeout_ms);
/* One slot, whose client waits for the bytes elsewhere. result: uint64_t; 1: mapping->early is to be mapped, whose bytes are on
 * their way, 0: mapping->extent, as after verb_lock. */
void verb_lock_early(struct core *core, struct call *call, uint32_t slot, uint32_t timeout_ms);
/* How that ends: the slot's memory has arrived, or the move's error. TIMEOUT; STALE: it was let go of. result: NULL */
void verb_arrived(struct core *core, struct call *call, uint32_t slot, uint32_t timeout_ms);
void verb_released(struct core *core, struct session *session, uint32_t slot); /* one-way; a wrong slot is ignored */
/* One-way: what the client will use next, in order. */
void verb_ahead(struct core *core, struct session *session, const uint32_t *slots, uint32_t n);
void verb_behind(struct core *core, struct session *session, const uint32_t *slots, uint32_t n);
/* From turn `at` on; what does not go on where the last one ended is forgotten. */
void verb_order(struct core *core, struct session *session, uint64_t lease, uint32_t at, const uint32_t *slots,
                uint32_t n);
void verb_window(struct core *core, struct call *call, uint64_t lease, uint32_t groups, bool force); /* result: NULL */
#define AHEAD_MAX 128 /* arenas that wait for their turn, a session */
void verb_detach(struct core *core, struct call *call, uint64_t lease);
void verb_free(struct core *core, struct call *call, uint64_t id);
/* fds are borrowed; ranges valid until the verb returns. result: struct op */
/* ranges: mapped by itself; taken. */
void verb_transfer(struct core *core, struct call *call, int file, struct wire_range *ranges, uint32_t n, bool write);

/* ---- Clients and operators; result: struct op, already running or ended ---- */

struct compress_args {
    char sel[HBM_NAME_MAX], as[HBM_NAME_MAX];
    struct hbm_encoding encoding; /* granularity 0xff: channel 0, tensor where rank < 2 */
    enum wire_mode mode;
    double min_sqnr_db, max_error;
    struct job_calibration calibration;
    char observed[HBM_NAME_MAX]; /* of which buffer, where the range is of what was observed; empty: of each its own */
};
void verb_compress(struct core *core, struct call *call, const struct compress_args *args);
/* What to encode it as: every candidate is tried, and goes again. */
struct advise_args {
    char sel[HBM_NAME_MAX];
    unsigned codec;                /* RAW: all */
    double min_sqnr_db, max_error; /* 0: no bound */
    bool apply;
};
void verb_advise(struct core *core, struct call *call, const struct advise_args *args);
void verb_decompress(struct core *core, struct call *call, const char *sel);
void verb_offload(struct core *core, struct call *call, const char *sel, enum hbm_tier tier, bool force);
/* Offload to host memory under whoever has it attached: he goes on there, at his next safe point. */
void verb_demote(struct core *core, struct call *call, const char *sel, bool force);
void verb_restore(struct core *core, struct call *call, const char *sel);
void verb_prefetch(struct core *core, struct call *call, const char *sel);
/* park: all that can is encoded so for this sleep; NULL: what is parked as it is, the rest raw. */
void verb_sleep(struct core *core, struct call *call, const char *model, enum hbm_tier tier, const struct parking *park);
void verb_wake(struct core *core, struct call *call, const char *model);
void verb_hash(struct core *core, struct call *call, const char *sel);
/* What is in buffers now is one more batch of theirs; momentum: how much of the moving average it leaves. */
void verb_observe(struct core *core, struct call *call, const char *sel, double momentum);
/* By id, or by name where id is 0. result: struct hbm_observation, until call->done returns */
void verb_observed(struct core *core, struct call *call, uint64_t id, const char *name);
/* What others found takes the place of what was observed: of all of these buffers, or of none. */
struct observed_range {
    uint64_t buffer;
    float lo, hi;
};
void verb_set_ranges(struct core *core, struct call *call, const struct observed_range *ranges, size_t n);
/* All that was observed of them. */
void verb_forget(struct core *core, struct call *call, const char *sel);
void verb_op_cancel(struct core *core, struct call *call, uint64_t op);

/* ---- Operators ---- */

/* 0 goes first for want of room, 9 last; PRIORITY_NEVER. result: struct selection, until call->done returns */
void verb_priority(struct core *core, struct call *call, const char *sel, uint32_t priority);
void verb_free_sel(struct core *core, struct call *call, const char *sel); /* result: struct op with rows, ended */
void verb_rm(struct core *core, struct call *call, const char *model);     /* result: uint64_t bytes */
void verb_rename(struct core *core, struct call *call, const char *name, const char *to); /* result: NULL */
void verb_kick(struct core *core, struct call *call, uint64_t session);    /* result: int32_t pid */
void verb_drain(struct core *core, struct call *call, const char *device); /* NULL: all. result: struct op */

/* Used by verb_attach for readers that the arena does not trust: a copy that only they own, kept by its lease.
 * done gets the copy's buffer id, or 0 with error and detail. */
struct private_copy;
void private_copy_start(struct core *core, struct session *session, struct buffer *original,
                        void (*done)(void *context, uint64_t buffer, int error, const char *detail), void *context);
/* Used by residency: brings these arenas to the device, or to host memory, as the daemon itself. NULL with error and
 * detail. */
struct op *restore_arenas(struct core *core, const uint64_t *arenas, size_t n, enum hbm_tier tier, int *error,
                          char *detail);
