/* libhbm: memory that a broker owns and this process maps.
 *
 * Every call returns 0 or a negative hbm_error (proto/errors.def); hbm_strerror() names it and
 * hbm_last_error_detail() has the sentence of the calling thread's last failure. Sizes are bytes, times are
 * milliseconds (0 = do not wait, HBM_FOREVER = no limit). Strings given are copied; strings and pointers returned
 * live as long as the object they came from.
 *
 * Threads: any thread may call with any session. fork: the child's copies are inert (calls return HBM_E_FORKED), its
 * /dev/nvidia* descriptors are closed, and the parent's session lives on. exec: nothing is inherited.
 * The library loads on machines without CUDA; libcuda is looked for when a GPU buffer is first mapped, and the
 * calling thread's current context is used, or the device's primary context, kept until the process ends, if there is none.
 *
 * If the daemon goes away, what is mapped stays mapped, and locks of resident memory go on. When another has taken its
 * place (systemd or `hbmd --supervise` see to that, and keep the memory), the session goes on with it: same leases, ids
 * and pointers. Calls made in between wait for it, up to reconnect_ms on top of their own timeouts, then return
 * HBM_E_DISCONNECTED. Of the calls that it left unanswered, those that only ask or attach, lock or detach are asked
 * again; the others return HBM_E_RETRY: what they asked for is done or not, and has to be looked at. A session that the
 * daemon ended itself, or does not know any more, is DISCONNECTED for good: open another. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/errors.h"
#include "proto/vocab.h"

#pragma GCC visibility push(default)

#ifdef __cplusplus
extern "C" {
#endif

#define HBM_FOREVER 0xffffffffu

typedef struct hbm_session hbm_session;
typedef struct hbm_lease hbm_lease; /* a buffer attached */
typedef struct hbm_model hbm_model; /* a model attached, or being built */
typedef struct hbm_op hbm_op;       /* an operation under way in the daemon */

/* The sentence for an error code: what happened and what to do. Static storage. */
const char *hbm_strerror(int error);
/* "what: detail; remedy" of this thread's last failing call; "" if none failed. Valid until its next failing call. */
const char *hbm_last_error_detail(void);

/* ---- Sessions ---- */

enum {
    HBM_NO_THREAD = 1,    /* no internal thread: poll hbm_event_fd() and call hbm_dispatch() */
    HBM_NO_RECONNECT = 2, /* DISCONNECTED as soon as the daemon goes away, and for good */
};

struct hbm_options {
    const char *runtime_dir; /* NULL: HBM_RUNTIME_DIR, else /run/hbmd if it is there, else $XDG_RUNTIME_DIR/hbmd */
    const char *socket;      /* NULL: hbmd.sock in runtime_dir; else the whole path */
    const char *client;      /* shown to operators; NULL: the program's name */
    unsigned flags;
    uint32_t reconnect_ms; /* how long calls wait for a daemon that went away; 0: 10 s */
    /* Whom the daemon has to run as, or hbm_open is DENIED; 0: HBM_SERVER_UID if that is set (0 there is root), else
     * root, this process's user or the owner of the socket's directory. As seen from here: in a user namespace a user
     * outside of it is 65534. */
    uint32_t server_uid;
};

/* options may be NULL. */
int hbm_open(const struct hbm_options *options, hbm_session **ret);
/* Unmaps everything of the session, tells the daemon (waiting for it as calls do), frees it. GPU work on its
 * buffers must be done. NULL is fine. Leases, models and ops of the session are freed with it. */
void hbm_close(hbm_session *session);
/* Readable when hbm_dispatch() has something to do; for HBM_NO_THREAD, INVALID without. Owned by the session. */
int hbm_event_fd(hbm_session *session);
/* Handles what has arrived: lets go of unlocked arenas that the daemon asked back. Never waits for an answer of the
 * daemon, but for the GPU work that the arena was unlocked behind. While the daemon is away it looks for it, whenever
 * hbm_event_fd() is readable; DISCONNECTED once there is no way back. */
int hbm_dispatch(hbm_session *session);

struct hbm_device_info {
    char uuid[HBM_UUID_MAX];
    char name[64];
    int is_cuda;
    int ready; /* its worker has started, or did in an earlier daemon's life */
    uint64_t capacity;
    uint64_t used;
};
int hbm_device_count(hbm_session *session);
int hbm_device_get(hbm_session *session, unsigned index, struct hbm_device_info *ret);

/* ---- Buffers ---- */

enum {
    HBM_WAIT = 1,     /* attach: wait for a model that is being built */
    HBM_UNLOCKED = 2, /* attach: reserve addresses only; the first lock maps. Not for cuda-ipc buffers */
    HBM_KEEP = 4,     /* allocate: the buffer outlives its last lease */
    HBM_SHARED = 8,   /* a global name (administrators) */
    HBM_REPLACE = 16, /* publish: replace a sealed model of that name */
    HBM_FORCE = 32,   /* offload, window: past offload_limit */
    HBM_LIVE = 64,    /* offload to host: under those who have it attached, who go on there (hbm_offload) */
    HBM_IN_PLACE = 128, /* attach: what lies in host memory is mapped there, and not brought to the device */
    HBM_FORGET = 256,   /* observe: forget what was observed (hbm_observe) */
};
#define HBM_DEVICE_ANY 0xffffffffu
/* A flag of allocate and publish: in which order memory goes where others wait for room. 0 goes first, 9 last (none given:
 * 5), and HBM_NEVER stays. */
#define HBM_PRIORITY(priority) (((uint32_t)(priority) + 1u) << 16)
#define HBM_NEVER 10

struct hbm_spec {
    uint64_t size;      /* 0: from dtype and dims */
    uint32_t device;    /* index, or HBM_DEVICE_ANY for the first */
    uint32_t dtype;     /* enum hbm_dtype */
    uint32_t rank;      /* 0 with a size: a flat run of bytes */
    uint32_t handle;    /* HBM_HANDLE_FD or HBM_HANDLE_CUDA_IPC */
    uint32_t mode;      /* 0: 0600. Read and write bits of owner and others, as of a file */
    uint32_t flags;     /* HBM_KEEP, HBM_SHARED, HBM_PRIORITY() */
    const char *name;   /* NULL: none */
    const char *group;  /* NULL: none */
    uint64_t dims[HBM_RANK_MAX];
};

/* What a lease or a model's row is. */
struct hbm_info {
    uint64_t id;
    void *pointer; /* NULL while away */
    uint64_t size;
    const char *name; /* of a model's buffer: the tensor's name */
    const char *group;
    uint32_t device;
    uint32_t dtype; /* logical; the elements in memory are encoding.stored unless encoding.codec is RAW */
    uint32_t rank;
    uint32_t version;
    uint32_t access;
    uint32_t handle;
    uint64_t dims[HBM_RANK_MAX];
    struct hbm_encoding encoding;
    uint32_t tier; /* of what is mapped: HBM_TIER_DEVICE or HBM_TIER_HOST. Away: where it was last */
};

/* Zeroed memory, leased rw and locked. Freed when the last lease ends unless HBM_KEEP. */
int hbm_alloc(hbm_session *session, const struct hbm_spec *spec, hbm_lease **ret);
/* A locked lease on an existing buffer (access HBM_RO or HBM_RW; flags HBM_UNLOCKED, HBM_IN_PLACE). Waits for it to come
 * back from another tier. Attaching twice gives the same pointer, counted (with HBM_IN_PLACE another one).
 *
 * HBM_IN_PLACE is for engines that copy to the device themselves, on a stream of their own: the memory is mapped where it
 * lies. On a GPU machine that is pinned host memory which the GPU reaches over its link; copies and kernels use it like
 * device memory, and the CPU may, too. What is on disk comes to host memory (to the device where there is no host tier, where the
 * driver shares no host memory, and for what is parked, private copies and cuda-ipc buffers); what is on the device is mapped there. At each
 * lock it may have moved, at the same address: hbm_lease_info says where it is. It moves between tiers like any other, when
 * its holders are at a safe point; until then whoever wants it on the device waits, at most for the daemon's reclaim
 * deadline, and is refused with BUSY then. */
int hbm_attach(hbm_session *session, const char *name, unsigned access, unsigned flags, uint32_t timeout_ms,
               hbm_lease **ret);
int hbm_attach_id(hbm_session *session, uint64_t id, unsigned access, unsigned flags, uint32_t timeout_ms,
                  hbm_lease **ret);
void hbm_lease_info(const hbm_lease *lease, struct hbm_info *ret);
/* The address, the same for the lease's whole life: also while nothing is mapped there. */
void *hbm_pointer(const hbm_lease *lease);
/* Ends the lease and frees it (also on DISCONNECTED; a daemon that is away hears of it when it is back); unmaps with the
 * last of its arena. GPU work on it must be done. */
int hbm_detach(hbm_lease *lease);
/* Removes a buffer: BUSY while anyone leases it. */
int hbm_free(hbm_session *session, uint64_t id);

/* Streams are CUstream / cudaStream_t handles of this process. After unlock the arena may move; libhbm lets go of it
 * only when the work queued on these streams until now has finished. n = 0 promises that the work is done.
 * While the arena is resident neither call enters the kernel (n = 0). */
int hbm_unlock(hbm_lease *lease, void *const *streams, unsigned n);
/* Resident again, at the same address. NO_MEMORY or TIMEOUT leave it unlocked. LOST: the daemon lost the lease in a
 * restart; what is mapped stays readable until it is detached. */
int hbm_lock(hbm_lease *lease, uint32_t timeout_ms);
/* All or nothing. At most 128 arenas that are away. */
int hbm_lock_many(hbm_lease *const *leases, unsigned n, uint32_t timeout_ms);
/* As hbm_lock, for work of that stream alone (NULL: the default one): what is queued there from now on begins when the bytes have
 * arrived, and this call returns as soon as there is memory that they come to: the GPU waits for the copy, not the CPU. What
 * is resident is locked at once, and the stream left alone. Other streams see the memory when they are ordered behind this
 * one, the CPU when it has synchronized with it.
 * The stream never waits for ever: at most timeout_ms, a second more where the daemon does not answer, and not beyond the end of the
 * copy, of its worker, of the daemon, or of the session. Where the bytes have not come by then (TIMEOUT, CHECKSUM, WORKER_DIED,
 * CANCELLED, RETRY where the daemon restarted, ...) it goes on all the same, and its work finds memory without them: throw
 * away what it made. The next hbm_unlock returns that error, with the lease unlocked, and then it can be locked again;
 * hbm_lock returns it until then. So unlock it before you believe what was computed.
 * hbm_unlock, hbm_detach and other locks of the same arena wait on the CPU until the bytes have arrived: queue all work before.
 * INVALID: timeout_ms is HBM_FOREVER, or the stream is being captured. The CPU waits, as in hbm_lock, on the host device, for
 * cuda-ipc buffers and with HBM_NO_THREAD, and where a driver or the system will not let a stream wait. 1024 of a
 * process can wait at once; their words lie in the context that was current at the first. */
int hbm_lock_on(hbm_lease *lease, void *stream, uint32_t timeout_ms);
/* Between steps: where the daemon wants arenas back, unlocks all that the session holds on them, in every thread, lets
 * go, and relocks what was locked, waiting for it. On failure what could not be had again is unlocked. A no-op costing
 * one load an arena otherwise: it does not wait for the streams then. */
int hbm_safepoint(hbm_session *session, void *const *streams, unsigned n, uint32_t timeout_ms);

/* ---- Models ---- */

struct hbm_publish_buffer {
    const char *name;
    const char *group; /* buffers of one group share an arena and move together */
    uint32_t dtype;
    uint32_t rank;
    uint64_t dims[HBM_RANK_MAX];
};

struct hbm_publish {
    const char *name;
    const char *key; /* shown, and compared by waiters: what this model is built from */
    uint32_t device;
    uint32_t mode;  /* 0: 0600 */
    uint32_t flags; /* HBM_SHARED, HBM_REPLACE, HBM_WAIT, HBM_PRIORITY(); HBM_UNLOCKED: filled by hbm_fill alone, nothing is mapped here */
    const void *metadata;
    size_t metadata_size;
    const struct hbm_publish_buffer *buffers;
    unsigned n_buffers;
};

/* The first asker gets *must_build = 1 and the model's buffers mapped rw: fill them, then commit. Others wait for it
 * (HBM_WAIT) and get it attached read-only with *must_build = 0, or NOT_READY. EXISTS: sealed already, and neither
 * HBM_WAIT nor HBM_REPLACE given. */
int hbm_publish_begin(hbm_session *session, const struct hbm_publish *spec, uint32_t timeout_ms, hbm_model **ret,
                      int *must_build);
/* Seals (or discards) the model, unmaps it here and frees the handle. GPU work on it must be done. BUILDER_DIED: the
 * daemon restarted since it was begun, which discards it. */
int hbm_publish_commit(hbm_model *model);
int hbm_publish_abort(hbm_model *model);

/* One round trip for the whole model. Flags HBM_WAIT, HBM_UNLOCKED, HBM_IN_PLACE. */
int hbm_model_attach(hbm_session *session, const char *name, unsigned access, unsigned flags, uint32_t timeout_ms,
                     hbm_model **ret);
int hbm_model_detach(hbm_model *model);
unsigned hbm_model_count(const hbm_model *model);
void hbm_model_buffer(const hbm_model *model, unsigned i, struct hbm_info *ret); /* i < count */
/* Index of a tensor, or HBM_E_NOT_FOUND. */
int hbm_model_find(const hbm_model *model, const char *tensor);
const void *hbm_model_metadata(const hbm_model *model, size_t *size);
/* One group's arena, or all with group NULL. */
int hbm_model_unlock(hbm_model *model, const char *group, void *const *streams, unsigned n);
int hbm_model_lock(hbm_model *model, const char *group, uint32_t timeout_ms);
/* hbm_lock_on of one group, or of all, one after the other, with group NULL. */
int hbm_model_lock_on(hbm_model *model, const char *group, void *stream, uint32_t timeout_ms);
/* Declares the order in which this process uses the groups (NULL, 0: as they were published), after the last the first
 * again, each at most once. From then on a lock of one of them has the next `depth` that are away brought back meanwhile,
 * as far as there is room at once; while they are resident nothing is sent and no kernel entered. Depth 0 ends that.
 * The daemon keeps the order that was declared last with the model, which wakes in it.
 * The names are copied. NOT_FOUND, INVALID. */
int hbm_model_order(hbm_model *model, const char *const *groups, unsigned n, unsigned depth);
/* Of the groups in the order, only a window stays on the device from now on: the one locked last by name, the `depth` that
 * follow it and the `behind` before it. When the window moves on, what has left it goes to the host tier as soon as it is
 * unlocked, unless another client has it locked or in a window of its own; it comes back by the order, or when it is
 * locked. Off until it is asked for, after the order; HBM_FOREVER ends it, and moves nothing. Every lock by name takes a
 * mutex then, and those of what is resident enter no kernel still.
 * OFFLOAD_LIMIT, with the computed reason, where more of the model would be away than offload_limit allows, unless flags
 * has HBM_FORCE; DENIED to who may not write the model; INVALID without an order.
 *
 * A model that is larger than its share of the device, layer by layer:
 *     hbm_model_attach(session, "m", HBM_RO, HBM_UNLOCKED, 0, &m);
 *     hbm_model_order(m, NULL, 0, 2);
 *     hbm_model_window(m, 0, HBM_FORCE);
 *     for (;;) { hbm_model_lock(m, layer[i], HBM_FOREVER); use it; hbm_model_unlock(m, layer[i], &stream, 1); i = next; }
 * A ring of batches, of which one is in use, the one before is leaving and the next arriving: publish the ring as a model
 * whose groups are "batch.0" .. "batch.N-1", attach that HBM_RW, and declare
 *     hbm_model_order(ring, NULL, 0, 1);
 *     hbm_model_window(ring, 1, HBM_FORCE);
 * With behind 1 the batch before the one in use still stays, for what reads across the border; 0 lets it leave. */
int hbm_model_window(hbm_model *model, unsigned behind, unsigned flags);

/* ---- Operations in the daemon ----
 * With op == NULL the call waits for the end and returns its error; else *op is a handle to wait on, poll or cancel,
 * freed by hbm_op_free (which does not cancel). sel: a name, a glob, "id:0x...", "group:NAME", "model:NAME". */

struct hbm_range {
    uint64_t buffer; /* id */
    uint64_t buffer_offset;
    uint64_t file_offset;
    uint64_t bytes;
};
/* The daemon reads these ranges of an open file into buffers (or writes them out), at the disk's speed. fd is borrowed.
 * BUILDER_DIED: they are of a model that is being built here, and the daemon restarted since it was begun. */
int hbm_fill(hbm_session *session, int fd, const struct hbm_range *ranges, unsigned n, hbm_op **op);
int hbm_write_out(hbm_session *session, int fd, const struct hbm_range *ranges, unsigned n, hbm_op **op);

struct hbm_compress {
    const char *sel;
    const char *as; /* copy: name of the copy, NULL for NAME@CODEC.GRANULARITY */
    unsigned codec; /* enum hbm_codec */
    /* Of HBM_CODEC_INT8_SPLIT axis says of which axis the loudest channels stay in fp16, group how many (0: one of a hundred, at
     * least one). They lie in NAME.outliers, of the tensor's shape with `group` in place of that axis, their numbers in
     * NAME.channels. */
    unsigned granularity, axis, group;
    int copy;           /* 0: replace */
    int park;           /* not now: whenever it leaves the device, and decoded on the way back; nothing moves yet */
    double min_sqnr_db; /* 0: no bound */
    double max_error;   /* 0: no bound */
    /* By what the range is chosen: "minmax" (as NULL); or, for int8, int8-asym and fp8 with one scale a tensor, by a range that clips
     * the rest: "percentile:P" (of int8-asym half of it at either end), "mse", "entropy" (int8, int8-asym), "range:T" for -T to T; or by what was observed (hbm_observe): "observed",
     * "observed:average", "observed:percentile:P", "observed:mse", "observed:entropy". INVALID: none of these, or not for this codec. */
    const char *calibrate;
    const char *observed; /* the name of the buffer whose observed ranges are used; NULL: of each its own */
};
int hbm_compress(hbm_session *session, const struct hbm_compress *spec, struct hbm_receipt *receipt, hbm_op **op);
int hbm_decompress(hbm_session *session, const char *sel, hbm_op **op);
/* What is in these buffers now (F32, F16, BF16, not encoded, on the device or in host memory) is one more batch: its range, and how
 * its elements are distributed, are added to those of the batches before. Kept with each buffer, over the daemon's restarts, until
 * it is freed; who may write the buffer may do so, and its owner is charged (account_observations). momentum: how much of the
 * moving average a batch leaves, 0 or more and less than 1: HBM_MOMENTUM, say. What writes the batch must be done before:
 * synchronize the stream, then call; the buffer may stay locked. The next batch may be written when the op has ended.
 * With flag HBM_FORGET nothing is counted, and all that was observed is forgotten. */
int hbm_observe(hbm_session *session, const char *sel, double momentum, unsigned flags, hbm_op **op);
/* What was observed of a buffer so far. NOT_FOUND where that is nothing. */
int hbm_observed(hbm_session *session, const char *name, struct hbm_observation *ret);
/* tier: HBM_TIER_HOST, HBM_TIER_DISK, or HBM_TIER_PEER, the memory of another device (UNSUPPORTED where none is in reach, for
 * which the daemon's offload_limit does not count).
 * Flags HBM_FORCE, HBM_LIVE. HBM_LIVE (tier HBM_TIER_HOST): those who have it attached go on with it in host memory, at the
 * same address, from their next safe point (or unlock) on, slower; their locks find it resident there. Kernels and the
 * driver's copies reach it as on the device, the CPU no more than there (attach HBM_IN_PLACE for that). It is all of it or
 * nothing: BUSY, naming the pids, if one of them reaches no safe point in time. hbm_restore brings it back the same way;
 * when nobody has it attached any more it is like anything else that was offloaded. UNSUPPORTED where the driver has no host
 * memory that processes share. Waiting for it (op NULL) with the buffer locked in this thread waits for oneself. */
int hbm_offload(hbm_session *session, const char *sel, unsigned tier, unsigned flags, hbm_op **op);
int hbm_restore(hbm_session *session, const char *sel, hbm_op **op);
/* Restore as a hint: arenas come one after the other, a model's as they were published, and each can be locked as soon as
 * it is there. 0 also where some did not come, for want of room or because another operation has them. A lock does not
 * have to wait for the rest; nor does a cancel take back what has come. */
int hbm_prefetch(hbm_session *session, const char *sel, hbm_op **op);

struct hbm_op_status {
    int done;  /* ended, well or not */
    int error; /* 0 or the hbm_error it ended with */
    uint64_t bytes_done, bytes_total;
    struct hbm_receipt receipt;
};
/* HBM_E_TIMEOUT if it has not ended in time (0 polls); else the op's own error; HBM_E_RETRY if the daemon restarted
 * meanwhile, which ends its ops, done or not done. status may be NULL. */
int hbm_op_wait(hbm_op *op, uint32_t timeout_ms, struct hbm_op_status *status);
int hbm_op_cancel(hbm_op *op);
uint64_t hbm_op_id(const hbm_op *op);
hbm_op *hbm_op_free(hbm_op *op);

/* ---- For bindings ----
 * Tensors outlive the object that they were made from. A claim counts who still uses a lease, a model or a session, and
 * ends it with the last of them. Any thread may let go, at any time; that may take a request to the daemon. */

typedef struct hbm_claim hbm_claim;

/* The claim takes what it is for, with one reference, the caller's. A lease's or a model's keeps its session's claim
 * (NULL: nobody closes the session before). On failure nothing is taken. */
int hbm_claim_session(hbm_session *session, hbm_claim **ret);
int hbm_claim_lease(hbm_lease *lease, hbm_claim *session, hbm_claim **ret);
int hbm_claim_model(hbm_model *model, hbm_claim *session, hbm_claim **ret);
hbm_claim *hbm_claim_ref(hbm_claim *claim);
void hbm_claim_unref(hbm_claim *claim); /* NULL is fine */
/* What it is for is ended by other means, as by hbm_publish_commit. */
void hbm_claim_disown(hbm_claim *claim);

#define HBM_DLPACK_NAME "dltensor"
#define HBM_DLPACK_VERSIONED_NAME "dltensor_versioned"

struct hbm_dlpack {
    void *pointer;
    uint32_t device_type, device_id; /* DLDeviceType: 1 is host memory, 2 a GPU, which is device_id in this process */
    uint32_t code, bits;             /* DLDataType */
    uint32_t rank;
    uint32_t versioned; /* a DLManagedTensorVersioned of 1.0, else a DLManagedTensor, which cannot say read_only */
    uint32_t read_only;
    uint64_t dims[HBM_RANK_MAX]; /* rows are contiguous */
};

/* A tensor whose deleter lets go of a reference of its own. */
int hbm_dlpack_export(hbm_claim *claim, const struct hbm_dlpack *what, void **ret);
/* The destructor of a Python capsule of that tensor, by either name: frees what nobody has taken. */
void hbm_dlpack_capsule_ends(void *capsule);

/* ---- For PyTorch ----
 * What torch.cuda.memory.CUDAPluggableAllocator wraps: an engine's tensors then lie in memory of the broker's, which counts
 * it, may take it when asked to, and gives it back when the process dies. Threads: any; fork: as everywhere, the child's is
 * refused. */

/* Where the calling thread's allocations come from until it calls again: a session by its claim, which has to stay until
 * then, and a group, by which they are locked, unlocked and named ("group:NAME"). NULL, NULL, as in threads that never
 * called: the process's own session, opened at the first of them, and no group: that memory stays locked. */
int hbm_torch_use(hbm_claim *session, const char *group);
/* Zeroed and locked; NULL where there is none, and hbm_last_error_detail() says why. device is torch's number of the GPU; on
 * the host device its index. */
void *hbm_torch_alloc(size_t size, int device, void *stream);
/* Waits for the work queued on the stream, then gives back. NULL, and what is not of hbm_torch_alloc, is left alone. */
void hbm_torch_free(void *pointer, size_t size, int device, void *stream);
/* hbm_unlock and hbm_lock of all that the group has in this process. Locking is all or nothing. Who allocates or frees
 * meanwhile waits. */
int hbm_torch_unlock(const char *group, void *const *streams, unsigned n);
int hbm_torch_lock(const char *group, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility pop
