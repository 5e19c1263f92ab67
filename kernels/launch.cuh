/* The host side of a kernel: the one signature that the table of codec_cuda.cu holds, and the launch itself. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/codec.h"
#include "kernels/tally.h"
#include "kernels/view.h"

struct codec_call {
    const void *in; /* raw for encode, stored for decode */
    void *out;
    float *scale;
    struct codec_tally *tally; /* on the device; NULL for decode */
    struct codec_view view;
    bool aligned; /* both sides allow 16-byte accesses at every 8th element */
    cudaStream_t stream;
};

typedef cudaError_t codec_launch(const struct codec_call &call);

/* Each of these is instantiated for the three raw types in the .cu file of its name. */
template <class Raw> codec_launch int8_two_pass_encode;
template <class Raw> codec_launch int8_fused_encode;
template <class Raw> codec_launch int8_decode;
template <class Raw, class Stored> codec_launch halves_encode;
template <class Raw, class Stored> codec_launch halves_decode;

/* As many blocks as are resident at once, or fewer if there is less to do: every kernel strides over the rest. */
template <class... Args>
cudaError_t launch(void (*kernel)(Args...), uint64_t blocks, unsigned threads, cudaStream_t stream, Args... args)
{
    void *argv[] = {&args...};
    int device, processors, each;
    cudaError_t error;

    if ((error = cudaGetDevice(&device)) ||
        (error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, (int)threads, 0)))
        return error;
    uint64_t resident = (uint64_t)processors * (uint64_t)(each > 0 ? each : 1);
    if (blocks > resident)
        blocks = resident;
    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks), dim3(threads), argv, 0, stream);
}
