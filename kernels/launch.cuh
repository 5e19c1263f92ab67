/* The host side of a kernel: the one signature that the table of codec_cuda.cu holds, and the launch itself. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/codec.h"
#include "kernels/tally.h"
#include "kernels/view.h"

struct codec_call {
    const void *in; /* raw for encode and measure, stored for decode */
    void *out;      /* measure: what is stored, which it reads */
    float *scale;
    int32_t *zero;             /* NULL for codecs without zero points */
    struct codec_tally *tally; /* on the device; NULL for decode; measure: its second half */
    struct codec_view view;
    bool aligned; /* both sides allow 16-byte accesses at every 8th element */
    cudaStream_t stream;
    bool ranged; /* encode and measure, one unit: lo to hi is its range */
    float lo, hi;
};

typedef cudaError_t codec_launch(const struct codec_call &call);

/* Of the codecs that have units, from the .cu file of their name, for the three raw types of chunk.cuh. */
#define UNIT_LAUNCHES(name)                                                                                        \
    template <class Raw> cudaError_t name##_two_pass_encode(const struct codec_call &call);                        \
    template <class Raw> cudaError_t name##_fused_encode(const struct codec_call &call);                           \
    template <class Raw> cudaError_t name##_decode(const struct codec_call &call);                                 \
    template <class Raw> cudaError_t name##_measure(const struct codec_call &call)

UNIT_LAUNCHES(int8);
UNIT_LAUNCHES(fp8_e4m3);
UNIT_LAUNCHES(fp8_e5m2);
UNIT_LAUNCHES(fp16_scaled);
UNIT_LAUNCHES(int4_packed);
UNIT_LAUNCHES(int8_asym);
/* Of codecs that vary, a stream each: no view is common to them. */
int lossless_encode_cuda(const struct codec_job *job, struct codec_tally *tally, cudaStream_t stream);
int lossless_decode_cuda(const struct codec_job *job, cudaStream_t stream);
/* Of the codec that splits; `call` is of the tensor, and encode and measure have a word a channel behind its tally. */
int split_encode_cuda(const struct codec_job *job, const struct codec_call &call);
int split_measure_cuda(const struct codec_job *job, const struct codec_call &call);
int split_decode_cuda(const struct codec_job *job, const struct codec_call &call);
template <class Raw, class Stored> codec_launch halves_encode;
template <class Raw, class Stored> codec_launch halves_decode;
template <class Raw, class Stored> codec_launch halves_measure;

/* What is not taken on by a block of its own, a kernel strides over. */
template <class... Args>
cudaError_t launch_all(void (*kernel)(Args...), uint64_t blocks, unsigned threads, cudaStream_t stream,
                       Args... args)
{
    void *argv[] = {&args...};
    const uint64_t most = 0x7fffffff;

    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(threads),
                            argv, 0, stream);
}

/* For kernels whose blocks have something to do at their end, as joining their sums: no more of them than keep the
 * device busy to the last. shared: bytes of a block beside those that the kernel names. */
template <class... Args>
cudaError_t launch_shared(void (*kernel)(Args...), uint64_t blocks, unsigned threads, cudaStream_t stream,
                          unsigned shared, Args... args)
{
    const uint64_t rounds = 4;
    void *argv[] = {&args...};
    int device, processors, each;
    cudaError_t error;

    if ((error = cudaGetDevice(&device)) ||
        (error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, (int)threads, shared)))
        return error;
    uint64_t most = rounds * (uint64_t)processors * (uint64_t)(each > 0 ? each : 1);
    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(threads), argv,
                            shared, stream);
}

template <class... Args>
cudaError_t launch_few(void (*kernel)(Args...), uint64_t blocks, unsigned threads, cudaStream_t stream,
                       Args... args)
{
    return launch_shared(kernel, blocks, threads, stream, 0, args...);
}
