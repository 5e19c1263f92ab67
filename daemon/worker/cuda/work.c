/* Copies, marks, pinning and kernels. */
#include "daemon/worker/cuda/context.h"
#include "daemon/worker/cuda/error.h"
#include "daemon/worker/cuda/extent.h"
#include "daemon/worker/device.h"
#include "daemon/worker/job.h"

#define SOON_NS 200000

int device_mark_new(struct device_mark *mark, struct failure *failure)
{
    cudaEvent_t event = NULL;

    /* Blocking: a thread that spins on an event takes a core from the inference engine. */
    if (runtime_check(failure, "cudaEventCreate",
                      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync)))
        return failure->error;
    mark->event = event;
    return 0;
}

void device_mark_free(struct device_mark *mark)
{
    if (mark->event)
        runtime_note("cudaEventDestroy", cudaEventDestroy(mark->event));
    mark->event = NULL;
}

int device_copy(enum device_stream stream, void *target, const void *source, size_t bytes, struct failure *failure)
{
    unsigned char *to = target;
    const unsigned char *from = source;

    while (bytes) {
        size_t part = map_up_to_seam(to, map_up_to_seam(from, bytes));
        if (runtime_check(failure, "cudaMemcpyAsync",
                          cudaMemcpyAsync(to, from, part, cudaMemcpyDefault, context_stream(stream))))
            return failure->error;
        to += part, from += part, bytes -= part;
    }
    return 0;
}

int device_mark(enum device_stream stream, struct device_mark *mark, struct failure *failure)
{
    return runtime_check(failure, "cudaEventRecord", cudaEventRecord(mark->event, context_stream(stream)));
}

int device_wait(struct device_mark *mark, struct failure *failure)
{
    return runtime_check(failure, "cudaEventSynchronize", cudaEventSynchronize(mark->event));
}

int device_wait_soon(struct device_mark *mark, struct failure *failure)
{
    uint64_t until = monotonic_ns() + SOON_NS;
    cudaError_t state;

    while ((state = cudaEventQuery(mark->event)) == cudaErrorNotReady && monotonic_ns() < until)
        ;
    (void)cudaGetLastError(); /* it remembers that something was not ready */
    return state == cudaErrorNotReady ? device_wait(mark, failure) : runtime_check(failure, "cudaEventQuery", state);
}

void device_drain(enum device_stream stream)
{
    runtime_note("cudaStreamSynchronize", cudaStreamSynchronize(context_stream(stream)));
}

void device_pin(void *bytes, size_t size)
{
    runtime_note("cudaHostRegister", cudaHostRegister(bytes, size, cudaHostRegisterPortable));
}

void device_unpin(void *bytes)
{
    /* Not registered is fine: pinning may have been refused. */
    if (cudaHostUnregister(bytes) != cudaSuccess)
        (void)cudaGetLastError();
}

/* Start and end of a kernel on the device's own clock. */
struct stopwatch {
    cudaEvent_t start, end;
};

static void stopwatch_free(struct stopwatch *watch)
{
    if (watch->start)
        runtime_note("cudaEventDestroy", cudaEventDestroy(watch->start));
    if (watch->end)
        runtime_note("cudaEventDestroy", cudaEventDestroy(watch->end));
}

static int stopwatch_start(struct stopwatch *watch, cudaStream_t stream, struct failure *failure)
{
    if (runtime_check(failure, "cudaEventCreate", cudaEventCreateWithFlags(&watch->start, cudaEventDefault)) ||
        runtime_check(failure, "cudaEventCreate", cudaEventCreateWithFlags(&watch->end, cudaEventBlockingSync)))
        return failure->error;
    return runtime_check(failure, "cudaEventRecord", cudaEventRecord(watch->start, stream));
}

static int stopwatch_stop(struct stopwatch *watch, cudaStream_t stream, double *seconds, struct failure *failure)
{
    float milliseconds = 0;

    if (runtime_check(failure, "cudaEventRecord", cudaEventRecord(watch->end, stream)) ||
        runtime_check(failure, "cudaEventSynchronize after a kernel", cudaEventSynchronize(watch->end)) ||
        runtime_check(failure, "cudaEventElapsedTime",
                      cudaEventElapsedTime(&milliseconds, watch->start, watch->end)))
        return failure->error;
    *seconds = milliseconds / 1e3;
    return 0;
}

static int encode_with(const struct codec_job *job, void *workspace, struct stopwatch *watch, double *seconds,
                       struct failure *failure)
{
    cudaStream_t stream = context_stream(DEVICE_COMPUTE);

    if (stopwatch_start(watch, stream, failure))
        return failure->error;
    if (runtime_check(failure, "the encoder", (cudaError_t)codec_encode_cuda(job, workspace, stream))) {
        device_drain(DEVICE_COMPUTE);
        return failure->error;
    }
    return stopwatch_stop(watch, stream, seconds, failure);
}

int device_encode(const struct codec_job *job, struct hbm_receipt *receipt, struct hbm_quality *quality,
                  struct failure *failure)
{
    uint64_t bytes = codec_workspace_bytes(job);
    struct stopwatch watch = {0};
    void *workspace = NULL;
    double seconds = 0;

    if (bytes && runtime_check(failure, "cudaMalloc of the encoder's workspace", cudaMalloc(&workspace, bytes)))
        return failure->error;
    if (!encode_with(job, workspace, &watch, &seconds, failure) &&
        !runtime_check(failure, "the measuring of what was encoded",
                       (cudaError_t)codec_measure_cuda(job, workspace, context_stream(DEVICE_COMPUTE)))) {
        device_drain(DEVICE_COMPUTE);
        runtime_check(failure, "the receipt", (cudaError_t)codec_receipt_cuda(job, workspace, receipt, quality));
    }
    receipt->seconds = seconds;
    stopwatch_free(&watch);
    if (workspace)
        runtime_note("cudaFree", cudaFree(workspace));
    return failure->error;
}

int device_decode(const struct codec_job *job, struct failure *failure)
{
    cudaStream_t stream = context_stream(DEVICE_COMPUTE);
    struct stopwatch watch = {0};
    double seconds;

    if (!stopwatch_start(&watch, stream, failure)) {
        if (runtime_check(failure, "the decoder", (cudaError_t)codec_decode_cuda(job, stream)))
            device_drain(DEVICE_COMPUTE);
        else
            stopwatch_stop(&watch, stream, &seconds, failure);
    }
    stopwatch_free(&watch);
    return failure->error;
}

int device_measure(const void *elements, uint64_t n, struct lossless_code *code, uint32_t *words,
                   struct failure *failure)
{
    uint64_t counts[256], words_bytes = lossless_blocks(n) * sizeof(*words), bytes = sizeof(counts) + words_bytes;
    cudaStream_t stream = context_stream(DEVICE_COMPUTE);
    unsigned char *scratch;

    if (device_scratch_new(bytes, &scratch, failure))
        return failure->error;
    uint32_t *words_there = (uint32_t *)(scratch + sizeof(counts));
    if (!device_clear(DEVICE_COMPUTE, scratch, sizeof(counts), failure) &&
        !runtime_check(failure, "counting", (cudaError_t)lossless_count_cuda(elements, n, (uint64_t *)scratch, stream)) &&
        !device_copy(DEVICE_COMPUTE, counts, scratch, sizeof(counts), failure) &&
        !runtime_check(failure, "cudaStreamSynchronize after counting", cudaStreamSynchronize(stream))) {
        lossless_code_of(counts, code);
        if (!runtime_check(failure, "measuring", (cudaError_t)lossless_words_cuda(elements, n, code, words_there, stream)))
            device_copy(DEVICE_COMPUTE, words, words_there, words_bytes, failure);
    }
    device_drain(DEVICE_COMPUTE);
    device_scratch_free(scratch, bytes);
    return failure->error;
}

/* A tenth of a millisecond's work: what a kernel takes to begin and to end is small beside it. */
uint64_t device_codes_at_once(void)
{
    return (uint64_t)256 << 20;
}
