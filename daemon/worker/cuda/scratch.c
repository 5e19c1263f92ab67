/* Device memory that pipelines pass through, and what they queue beside copies and hashes. */
#include <pthread.h>

#include "daemon/worker/checksum.h"
#include "daemon/worker/cuda/context.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"

/* Making some, and above all freeing it, takes longer than many a chunk: a few of the common size are used again. */
#define KEPT_MAX 6u
#define KEPT_BYTES (CHECKSUM_CHUNK + CHECKSUM_GRAIN)

static struct {
    pthread_mutex_t mutex;
    unsigned char *kept[KEPT_MAX];
    unsigned n;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static unsigned char *take_kept(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned char *scratch = pool.n ? pool.kept[--pool.n] : NULL;
    pthread_mutex_unlock(&pool.mutex);
    return scratch;
}

static bool keep(unsigned char *scratch)
{
    pthread_mutex_lock(&pool.mutex);
    bool there_is_room = pool.n < KEPT_MAX;
    if (there_is_room)
        pool.kept[pool.n++] = scratch;
    pthread_mutex_unlock(&pool.mutex);
    return there_is_room;
}

int device_scratch_new(uint64_t bytes, unsigned char **scratch, struct failure *failure)
{
    *scratch = bytes <= KEPT_BYTES ? take_kept() : NULL;
    if (*scratch)
        return 0;
    return runtime_check(failure, "cudaMalloc of memory to pack through",
                         cudaMalloc((void **)scratch, bytes <= KEPT_BYTES ? KEPT_BYTES : bytes));
}

void device_scratch_free(unsigned char *scratch, uint64_t bytes)
{
    if (scratch && (bytes > KEPT_BYTES || !keep(scratch)))
        runtime_note("cudaFree", cudaFree(scratch));
}

void scratch_drop(void)
{
    unsigned char *scratch;

    while ((scratch = take_kept()))
        runtime_note("cudaFree", cudaFree(scratch));
}

int device_clear(enum device_stream stream, void *target, size_t bytes, struct failure *failure)
{
    return runtime_check(failure, "cudaMemsetAsync", cudaMemsetAsync(target, 0, bytes, context_stream(stream)));
}

int device_after(enum device_stream stream, const struct device_mark *mark, struct failure *failure)
{
    return runtime_check(failure, "cudaStreamWaitEvent",
                         cudaStreamWaitEvent(context_stream(stream), mark->event, cudaEventWaitDefault));
}

int device_encode_queued(enum device_stream stream, const struct codec_job *job, struct codec_tally *tally,
                         struct failure *failure)
{
    if (runtime_check(failure, "the encoder", (cudaError_t)codec_encode_cuda(job, tally, context_stream(stream))))
        return failure->error;
    return runtime_check(failure, "the measuring of what was encoded",
                         (cudaError_t)codec_measure_cuda(job, tally, context_stream(stream)));
}

int device_histogram_queued(enum device_stream stream, const struct histogram_job *job, uint64_t *counts,
                            struct failure *failure)
{
    return runtime_check(failure, "the histogram", (cudaError_t)histogram_cuda(job, counts, context_stream(stream)));
}

int device_decode_queued(enum device_stream stream, const struct codec_job *job, struct failure *failure)
{
    return runtime_check(failure, "the decoder", (cudaError_t)codec_decode_cuda(job, context_stream(stream)));
}
