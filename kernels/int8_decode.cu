/* int8 back to floats: code times the scale of its unit. */
#include "kernels/chunk.cuh"
#include "kernels/launch.cuh"

#define THREADS 256u

template <class Raw>
static __global__ void __launch_bounds__(THREADS)
    decode(const void *in, void *out, const float *scale, struct codec_view view, bool aligned)
{
    uint64_t stride = global_threads() * CHUNK;

    for (uint64_t at = global_thread() * CHUNK; at < view.count; at += stride) {
        span s(at, 0, view.count, aligned);
        chunk<int8_t> coded = span_load<int8_t>(s, in);
        struct codec_walk walk = codec_walk_at(&view, at);
        chunk<typename Raw::word> raw;

        if (codec_walk_uniform(&view, &walk, s.past)) {
            float one = scale[walk.unit];
#pragma unroll
            for (unsigned i = 0; i < CHUNK; i++)
                raw.w[i] = Raw::down(int8_value(coded.w[i], one));
        } else {
#pragma unroll
            for (unsigned i = 0; i < CHUNK; i++) {
                if (i >= s.past)
                    break;
                raw.w[i] = Raw::down(int8_value(coded.w[i], scale[walk.unit]));
                codec_walk_step(&view, &walk);
            }
        }
        span_store(s, out, raw);
    }
}

template <class Raw> cudaError_t int8_decode(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    return launch(decode<Raw>, chunk_blocks(call.view.count, THREADS), THREADS, call.stream, call.in, call.out,
                  (const float *)call.scale, call.view, call.aligned);
}

template codec_launch int8_decode<f32>;
template codec_launch int8_decode<f16>;
template codec_launch int8_decode<bf16>;
