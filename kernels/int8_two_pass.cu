/* int8 for units that no block can hold: the tensor, long rows, and channels that are not contiguous.
 * scale[] gathers the bits of every unit's amax, becomes the scale in place, then the elements are coded. */
#include "kernels/int8.cuh"
#include "kernels/launch.cuh"

#define THREADS 256u

template <class Raw>
static __global__ void __launch_bounds__(THREADS)
    amax_of_one(const void *in, uint32_t *amax, uint64_t count, bool aligned)
{
    uint64_t stride = global_threads() * CHUNK;
    uint32_t most = 0;

    for (uint64_t at = global_thread() * CHUNK; at < count; at += stride)
        most = max(most, chunk_magnitude<Raw>(span_load<typename Raw::word>(span(at, 0, count, aligned), in)));
    most = block_max(most);
    if (threadIdx.x == 0)
        atomicMax(amax, most);
}

/* Most values do not raise their unit's amax; a look at L2 spares those the atomic. */
static __device__ __forceinline__ void raise(uint32_t *amax, uint32_t value)
{
    if (value > __ldcg(amax))
        atomicMax(amax, value);
}

template <class Raw>
static __global__ void __launch_bounds__(THREADS)
    amax_of_many(const void *in, uint32_t *amax, struct codec_view view, bool aligned)
{
    uint64_t stride = global_threads() * CHUNK;

    for (uint64_t at = global_thread() * CHUNK; at < view.count; at += stride) {
        span s(at, 0, view.count, aligned);
        chunk<typename Raw::word> raw = span_load<typename Raw::word>(s, in);
        struct codec_walk walk = codec_walk_at(&view, at);

        if (codec_walk_uniform(&view, &walk, s.past)) {
            raise(&amax[walk.unit], chunk_magnitude<Raw>(raw));
            continue;
        }
        uint64_t unit = walk.unit;
        uint32_t most = 0;
        for (unsigned i = 0; i < s.past; i++, codec_walk_step(&view, &walk)) {
            if (walk.unit != unit) {
                raise(&amax[unit], most);
                unit = walk.unit;
                most = 0;
            }
            most = max(most, element_magnitude(Raw::up(raw.w[i])));
        }
        raise(&amax[unit], most);
    }
}

static __global__ void __launch_bounds__(THREADS) scale_of_amax(float *scale, uint64_t units)
{
    for (uint64_t i = global_thread(); i < units; i += global_threads())
        scale[i] = int8_scale(scale[i]);
}

template <class Raw>
static __global__ void __launch_bounds__(THREADS)
    encode(const void *in, void *out, const float *scale, struct codec_view view, bool aligned,
           struct codec_tally *total)
{
    uint64_t stride = global_threads() * CHUNK;
    thread_tally tally;

    for (uint64_t at = global_thread() * CHUNK; at < view.count; at += stride) {
        span s(at, 0, view.count, aligned);
        chunk<typename Raw::word> raw = span_load<typename Raw::word>(s, in);
        struct codec_walk walk = codec_walk_at(&view, at);

        if (codec_walk_uniform(&view, &walk, s.past)) {
            int8_encode_chunk<Raw>(s, raw, int8_unit_of(scale[walk.unit]), out, tally);
            continue;
        }
        chunk<int8_t> coded;
#pragma unroll
        for (unsigned i = 0; i < CHUNK; i++) {
            if (i >= s.past)
                break;
            coded.w[i] = int8_encode_one(Raw::up(raw.w[i]), int8_unit_of(scale[walk.unit]), tally);
            codec_walk_step(&view, &walk);
        }
        span_store(s, out, coded);
    }
    block_publish(tally, total);
}

template <class Raw> cudaError_t int8_two_pass_encode(const struct codec_call &call)
{
    const struct codec_view &view = call.view;
    uint64_t blocks = chunk_blocks(view.count, THREADS);
    uint32_t *amax = reinterpret_cast<uint32_t *>(call.scale);
    cudaError_t error;

    if (view.units == 0)
        return cudaSuccess;
    if ((error = cudaMemsetAsync(amax, 0, view.units * sizeof(*amax), call.stream)))
        return error;
    if (view.count && view.units == 1)
        error = launch(amax_of_one<Raw>, blocks, THREADS, call.stream, call.in, amax, view.count, call.aligned);
    else if (view.count)
        error = launch(amax_of_many<Raw>, blocks, THREADS, call.stream, call.in, amax, view, call.aligned);
    if (error)
        return error;
    error = launch(scale_of_amax, view.units / THREADS + 1, THREADS, call.stream, call.scale, view.units);
    if (error || !view.count)
        return error;
    return launch(encode<Raw>, blocks, THREADS, call.stream, call.in, call.out, (const float *)call.scale, view,
                  call.aligned, call.tally);
}

template codec_launch int8_two_pass_encode<f32>;
template codec_launch int8_two_pass_encode<f16>;
template codec_launch int8_two_pass_encode<bf16>;
