/* cuda-ipc blocks. Each is an allocation of its own of whole 2 MiB, because the driver puts smaller ones together
 * in one block and the handle of one then opens its neighbours. A living block keeps the context. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/list.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"

#define BLOCK_ALIGN ((uint64_t)2 << 20)

struct block {
    struct list all;
    uint64_t token, size;
    void *bytes;
    unsigned mapped;
};

static struct {
    pthread_mutex_t mutex;
    struct list all;
    uint64_t last_token;
} blocks = {.mutex = PTHREAD_MUTEX_INITIALIZER, .all = LIST_INIT(blocks.all)};

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((struct job_create_reply *)0)->ipc_handle), "64 bytes");

static struct block *find(uint64_t token)
{
    list_for_each (node, &blocks.all)
        if (list_entry(node, struct block, all)->token == token)
            return list_entry(node, struct block, all);
    return NULL;
}

static int allocate(struct block *block, struct job_create_reply *reply, struct failure *failure)
{
    cudaIpcMemHandle_t handle;

    if (runtime_check(failure, "cudaMalloc", cudaMalloc(&block->bytes, block->size)))
        return failure->error;
    if (runtime_check(failure, "cudaMemset", cudaMemset(block->bytes, 0, block->size)) ||
        runtime_check(failure, "cudaStreamSynchronize", cudaStreamSynchronize(NULL)) ||
        runtime_check(failure, "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, block->bytes))) {
        runtime_note("cudaFree", cudaFree(block->bytes));
        return failure->error;
    }
    memcpy(reply->ipc_handle, &handle, sizeof(handle));
    return 0;
}

int block_create(uint64_t size, struct job_create_reply *reply, struct failure *failure)
{
    _cleanup_free_ struct block *block = calloc(1, sizeof(*block));

    if (!block)
        return fail(failure, HBM_E_SYSTEM, "out of memory for a block");
    list_init(&block->all);
    block->size = (size + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    if (device_enter(failure))
        return failure->error;
    if (allocate(block, reply, failure)) {
        device_leave();
        return failure->error;
    }
    pthread_mutex_lock(&blocks.mutex);
    block->token = ++blocks.last_token;
    reply->token = block->token;
    reply->size = block->size;
    list_append(&blocks.all, &TAKE_PTR(block)->all);
    pthread_mutex_unlock(&blocks.mutex);
    return 0;
}

int block_destroy(uint64_t token, struct failure *failure)
{
    pthread_mutex_lock(&blocks.mutex);
    struct block *block = find(token);
    bool busy = block && block->mapped;
    if (block && !busy)
        list_unlink(&block->all);
    pthread_mutex_unlock(&blocks.mutex);
    if (!block)
        return 0;
    if (busy)
        return fail(failure, HBM_E_BUSY, "a job uses the block");
    /* An enter of its own: cudaFree needs the context in this thread. */
    if (!device_enter(failure)) {
        runtime_check(failure, "cudaFree", cudaFree(block->bytes));
        device_leave();
    }
    device_leave();
    free(block);
    return failure->error;
}

int block_map(const struct job_extent *extent, struct view *view, struct failure *failure)
{
    int error = 0;

    pthread_mutex_lock(&blocks.mutex);
    struct block *block = find(extent->token);
    if (!block)
        error =
            fail(failure, HBM_E_LOST, "this worker has no cuda-ipc block %llu", (unsigned long long)extent->token);
    else if (block->size != extent->size)
        error = fail(failure, HBM_E_BAD_REQUEST, "the block has %llu bytes, not %llu",
                     (unsigned long long)block->size, (unsigned long long)extent->size);
    else {
        block->mapped++;
        view->bytes = block->bytes;
        view->origin = VIEW_BLOCK;
        view->handle = block->token;
    }
    pthread_mutex_unlock(&blocks.mutex);
    return error;
}

void block_unmap(uint64_t token)
{
    pthread_mutex_lock(&blocks.mutex);
    struct block *block = find(token);
    if (block)
        block->mapped--;
    pthread_mutex_unlock(&blocks.mutex);
}
