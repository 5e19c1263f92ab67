/* Hashing where the device's memory lies. A CPU core hashes 4 to 10 GB/s of pinned 4 KiB pages, so that a dozen of
 * them would have to follow one link; the device does it in passing, and the host's side needs no look at all. */
#include <assert.h>
#include <pthread.h>

#include "daemon/base/list.h"
#include "daemon/worker/checksum.h"
#include "daemon/worker/cuda/context.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"
#include "kernels/xxh3.h"

static_assert(CHECKSUM_GRAIN == XXH3_GRAIN, "what the kernel hashes is what a checksum is made of");

/* Enough for 8 GiB. */
#define ROOM_MIN 8192u

/* Pinned memory that kernels write their hashes to. Making some takes longer than many a copy: they are used again.
 */
struct results {
    struct list idle;
    uint64_t room;
    uint64_t hashes[];
};

static struct {
    pthread_mutex_t mutex;
    struct list idle;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .idle = LIST_INIT(pool.idle)};

uint64_t *device_hashes_new(uint64_t n)
{
    struct results *results = NULL;
    uint64_t room = n < ROOM_MIN ? ROOM_MIN : n;

    pthread_mutex_lock(&pool.mutex);
    list_for_each (node, &pool.idle)
        if (list_entry(node, struct results, idle)->room >= n)
            results = list_entry(node, struct results, idle);
    if (results)
        list_unlink(&results->idle);
    pthread_mutex_unlock(&pool.mutex);
    if (results)
        return results->hashes;
    cudaError_t error =
        cudaHostAlloc((void **)&results, sizeof(*results) + room * sizeof(uint64_t), cudaHostAllocPortable);
    runtime_note("cudaHostAlloc for hashes", error);
    if (error)
        return NULL;
    results->room = room;
    return results->hashes;
}

void device_hashes_free(uint64_t *hashes)
{
    struct results *results = hashes ? container_of(hashes, struct results, hashes) : NULL;

    if (!results)
        return;
    pthread_mutex_lock(&pool.mutex);
    list_append(&pool.idle, &results->idle);
    pthread_mutex_unlock(&pool.mutex);
}

void hashes_drop(void)
{
    pthread_mutex_lock(&pool.mutex);
    list_for_each_safe (node, &pool.idle) {
        list_unlink(node);
        runtime_note("cudaFreeHost", cudaFreeHost(list_entry(node, struct results, idle)));
    }
    pthread_mutex_unlock(&pool.mutex);
}

int device_hash(enum device_stream stream, const struct device_mark *after, const void *bytes, uint64_t grains,
                uint64_t *hashes, struct failure *failure)
{
    if (after && runtime_check(failure, "cudaStreamWaitEvent",
                               cudaStreamWaitEvent(context_stream(stream), after->event, cudaEventWaitDefault)))
        return failure->error;
    return runtime_check(failure, "the hashing kernel",
                         (cudaError_t)xxh3_grains_cuda(bytes, grains, hashes, context_stream(stream)));
}
