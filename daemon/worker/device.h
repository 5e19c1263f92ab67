/* The device behind a worker. Two implementations, chosen when linking: host/ and cuda/.
 * Everything here may be called from any thread. Calls that fail record why in *failure and return its error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/worker/failure.h"
#include "kernels/codec.h"
#include "kernels/histogram.h"
#include "kernels/lossless.h"
#include "kernels/tally.h"
#include "proto/jobs.h"

/* One line a device, `UUID<TAB>NAME<TAB>TOTAL_BYTES`. A machine without the device gets no line. */
void device_probe(FILE *out);

/* First of all: picks the device. */
int device_start(const struct job_start_request *request, struct job_start_reply *reply, struct failure *failure);
/* Any kind but DISK. *fd gets the extent unless it is CUDA_IPC. */
int device_create(const struct job_create_request *request, struct job_create_reply *reply, int *fd,
                  struct failure *failure);
int device_destroy(const struct job_destroy_request *request, struct failure *failure);
int device_query(struct job_query_reply *reply, struct failure *failure);
int device_clients(const struct job_clients_request *request, struct job_clients_reply *reply,
                   struct failure *failure);

/* A job that maps, copies or computes stands between these two; outside of them the device may drop its context. */
int device_enter(struct failure *failure);
void device_leave(void);
/* True once an error has spoilt this process for good: it must end after its reply. */
bool device_spoilt(void);

/* An extent that is not DISK, mapped here. */
struct view {
    unsigned char *bytes;
    uint64_t size;
    bool on_device; /* bytes is no address for the CPU: only device_copy and kernels may use it */
    enum { VIEW_NONE, VIEW_MEMFD, VIEW_VMM, VIEW_BLOCK, VIEW_KEPT } origin;
    bool pinned;     /* MEMFD: registered with the driver */
    uint64_t handle; /* VMM: the allocation or import; the others: the device's own */
};
/* A host extent with a token may stay mapped here after device_unmap. */
int device_map(const struct job_extent *extent, int fd, struct view *view, struct failure *failure);
/* device_create and device_map in one, of kind DEVICE: on a GPU the way by the fd takes as long as the mapping. */
int device_make(const struct job_extent *extent, struct view *view, struct failure *failure);
/* Chunks (checksum.h) that the link carries in the time of a device_make; 0 where that takes none. At most HEAD_CHUNKS. */
unsigned device_make_chunks(void);
/* Once, of what device_make made and is still mapped: its fd, as device_create gives it. */
int device_share(struct view *view, int *fd, struct failure *failure);
void device_unmap(struct view *view);

/* Copies with a device address on at least one side are queued and may be waited for by a mark. */
enum device_stream { DEVICE_UP, DEVICE_DOWN, DEVICE_COMPUTE, DEVICE_UP_HASH, DEVICE_DOWN_HASH, DEVICE_STREAMS };
struct device_mark {
    void *event;
};
int device_mark_new(struct device_mark *mark, struct failure *failure);
void device_mark_free(struct device_mark *mark);
int device_copy(enum device_stream stream, void *target, const void *source, size_t bytes, struct failure *failure);
/* Again, of any stream: who waits for the mark from now on waits for this; who was told to wait before does not. */
int device_mark(enum device_stream stream, struct device_mark *mark, struct failure *failure);
int device_wait(struct device_mark *mark, struct failure *failure);
/* The same, of what is about to be done: looks again and again for a moment before it sleeps. */
int device_wait_soon(struct device_mark *mark, struct failure *failure);
/* After a failure or cancel: nothing of that stream touches memory any more. */
void device_drain(enum device_stream stream);

/* Grains of device memory hashed where they lie (checksum.h); bytes aligned to 16. Queued on a stream, behind a mark of
 * another one if it is given. The hashes are there when the stream has come so far; they go to memory from
 * device_hashes_new, which is NULL where there is none, or where the CPU shall hash. */
uint64_t *device_hashes_new(uint64_t n);
void device_hashes_free(uint64_t *hashes);
int device_hash(enum device_stream stream, const struct device_mark *after, const void *bytes, uint64_t grains,
                uint64_t *hashes, struct failure *failure);

/* Staging memory: makes host pages fast for the device's copies. Slower but right where that is refused. */
void device_pin(void *bytes, size_t size);
void device_unpin(void *bytes);

/* Codecs on mapped addresses. encode fills the receipt but for bytes_*, and the quality. */
int device_encode(const struct codec_job *job, struct hbm_receipt *receipt, struct hbm_quality *quality,
                  struct failure *failure);
int device_decode(const struct codec_job *job, struct failure *failure);
/* Raw bytes that are coded in one go: a larger buffer is coded in pieces, by the queue below. */
uint64_t device_codes_at_once(void);

/* What a codec whose size varies needs to know before: the code, and the words that each block takes by it. */
int device_measure(const void *elements, uint64_t n, struct lossless_code *code, uint32_t *words,
                   struct failure *failure);

/* What a pipeline is made of: queued on a stream, and done when a mark behind it is. The codecs' own work, the sums that
 * an encoder leaves, and what else passes through lie in scratch memory of the device's; tallies come down by
 * device_copy. */
int device_scratch_new(uint64_t bytes, unsigned char **scratch, struct failure *failure);
void device_scratch_free(unsigned char *scratch, uint64_t bytes);
int device_clear(enum device_stream stream, void *target, size_t bytes, struct failure *failure);
/* What is queued on the stream from now on waits for the mark. */
int device_after(enum device_stream stream, const struct device_mark *mark, struct failure *failure);
int device_encode_queued(enum device_stream stream, const struct codec_job *job, struct codec_tally *tally,
                         struct failure *failure);
int device_histogram_queued(enum device_stream stream, const struct histogram_job *job, uint64_t *counts,
                            struct failure *failure);
int device_decode_queued(enum device_stream stream, const struct codec_job *job, struct failure *failure);
