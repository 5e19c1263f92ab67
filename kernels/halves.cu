/* fp16 and bf16: one rounding an element, no scales. */
#include "kernels/chunk.cuh"
#include "kernels/launch.cuh"
#include "kernels/tally.cuh"

#define THREADS 256u

template <class Raw, class Stored>
static __global__ void __launch_bounds__(THREADS)
    encode(const void *in, void *out, uint64_t count, bool aligned, struct codec_tally *total)
{
    uint64_t stride = global_threads() * CHUNK;
    thread_tally tally;

    for (uint64_t at = global_thread() * CHUNK; at < count; at += stride) {
        span s(at, 0, count, aligned);
        chunk<typename Raw::word> raw = span_load<typename Raw::word>(s, in);
        chunk<typename Stored::word> stored;

        /* Past the end lie zeros, which add nothing. */
#pragma unroll
        for (unsigned i = 0; i < CHUNK; i++) {
            float x = Raw::up(raw.w[i]);

            stored.w[i] = Stored::down(x);
            tally.add(x, Stored::up(stored.w[i]), element_magnitude(x) > Stored::most);
        }
        span_store(s, out, stored);
    }
    block_publish(tally, total);
}

template <class Raw, class Stored>
static __global__ void __launch_bounds__(THREADS) decode(const void *in, void *out, uint64_t count, bool aligned)
{
    uint64_t stride = global_threads() * CHUNK;

    for (uint64_t at = global_thread() * CHUNK; at < count; at += stride) {
        span s(at, 0, count, aligned);
        chunk<typename Stored::word> stored = span_load<typename Stored::word>(s, in);
        chunk<typename Raw::word> raw;

#pragma unroll
        for (unsigned i = 0; i < CHUNK; i++)
            raw.w[i] = Raw::down(Stored::up(stored.w[i]));
        span_store(s, out, raw);
    }
}

template <class Raw, class Stored> cudaError_t halves_encode(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    return launch(encode<Raw, Stored>, chunk_blocks(call.view.count, THREADS), THREADS, call.stream, call.in,
                  call.out, call.view.count, call.aligned, call.tally);
}

template <class Raw, class Stored> cudaError_t halves_decode(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    return launch(decode<Raw, Stored>, chunk_blocks(call.view.count, THREADS), THREADS, call.stream, call.in,
                  call.out, call.view.count, call.aligned);
}

template codec_launch halves_encode<f32, f16>;
template codec_launch halves_encode<f16, f16>;
template codec_launch halves_encode<bf16, f16>;
template codec_launch halves_encode<f32, bf16>;
template codec_launch halves_encode<f16, bf16>;
template codec_launch halves_encode<bf16, bf16>;
template codec_launch halves_decode<f32, f16>;
template codec_launch halves_decode<f16, f16>;
template codec_launch halves_decode<bf16, f16>;
template codec_launch halves_decode<f32, bf16>;
template codec_launch halves_decode<f16, bf16>;
template codec_launch halves_decode<bf16, bf16>;
