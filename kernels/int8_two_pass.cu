/* int8 for units that no block can hold: the tensor, long rows, and channels that are not contiguous.
 * scale[] gathers the bits of every unit's amax, becomes the scale in place, then the elements are coded. */
#include "kernels/int8.cuh"
#include "kernels/launch.cuh"

#define THREADS 256u
#define LANES 4u

template <class Raw> constexpr unsigned elements = chunk_elements<typename Raw::word, int8_t>;

template <class Raw>
static __global__ void __launch_bounds__(THREADS)
    amax_of_one(const void *in, uint32_t *amax, uint64_t count, bool aligned)
{
    typedef typename Raw::word word;
    constexpr unsigned N = elements<Raw>;
    chunk<word, N> raw[LANES];
    uint32_t most = 0;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N>) { most = max(most, chunk_magnitude<Raw, N>(raw[k])); };
    for_chunks<N, LANES>(count, aligned, load, look);
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
    typedef typename Raw::word word;
    constexpr unsigned N = elements<Raw>;
    chunk<word, N> raw[LANES];

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N> s) {
        struct codec_walk walk = codec_walk_at(&view, s.at);
        uint64_t unit = walk.unit;
        uint32_t most = 0;

        if (codec_walk_uniform(&view, &walk, s.past)) {
            raise(&amax[unit], chunk_magnitude<Raw, N>(raw[k]));
            return;
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (i >= s.past)
                break;
            if (walk.unit != unit) {
                raise(&amax[unit], most);
                unit = walk.unit;
                most = 0;
            }
            most = max(most, element_magnitude(Raw::up(raw[k].w[i])));
            codec_walk_step(&view, &walk);
        }
        raise(&amax[unit], most);
    };
    for_chunks<N, LANES>(view.count, aligned, load, look);
}

static __global__ void __launch_bounds__(THREADS) scale_of_amax(float *scale, uint64_t units)
{
    for (uint64_t i = global_thread(); i < units; i += global_threads())
        scale[i] = int8_scale(scale[i]);
}

template <class Raw, enum int8_units UNITS>
static __global__ void __launch_bounds__(THREADS, 4)
    encode(const void *in, void *out, const float *scale, struct codec_view view, bool aligned,
           struct codec_tally *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = elements<Raw>;
    chunk<word, N> raw[LANES];
    int8_unit one = int8_unit_of(scale[0]);
    thread_tally tally;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto code = [&](unsigned k, span<N> s) {
        chunk<int8_t, N> coded;
        struct codec_walk walk;
        uint64_t unit;

        if (int8_unit_at<UNITS>(view, s.at, s.past, unit, walk)) {
            few_tally few;
            coded =
                int8_encode_chunk<Raw, N>(raw[k], UNITS == ONE_UNIT ? one : int8_unit_of(scale[unit]), few, tally)
                    .bytes();
            tally.few(few);
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                if (i >= s.past)
                    break;
                coded.w[i] = int8_encode_exact(Raw::up(raw[k].w[i]), scale[walk.unit], tally);
                codec_walk_step(&view, &walk);
            }
        }
        span_store(s, out, coded);
    };
    for_chunks<N, LANES>(view.count, aligned, load, code);
    block_publish(tally, total);
}

template <class Raw> cudaError_t int8_two_pass_encode(const struct codec_call &call)
{
    const struct codec_view &view = call.view;
    uint64_t blocks = chunk_blocks(view.count, THREADS, LANES * elements<Raw>);
    uint32_t *amax = reinterpret_cast<uint32_t *>(call.scale);
    cudaError_t error;

    if (view.units == 0)
        return cudaSuccess;
    if ((error = cudaMemsetAsync(amax, 0, view.units * sizeof(*amax), call.stream)))
        return error;
    if (view.count && view.units == 1)
        error = launch_few(amax_of_one<Raw>, blocks, THREADS, call.stream, call.in, amax, view.count, call.aligned);
    else if (view.count)
        error = launch_few(amax_of_many<Raw>, blocks, THREADS, call.stream, call.in, amax, view, call.aligned);
    if (error)
        return error;
    error = launch_few(scale_of_amax, view.units / THREADS + 1, THREADS, call.stream, call.scale, view.units);
    if (error || !view.count)
        return error;
    return launch_few(view.units == 1 ? encode<Raw, ONE_UNIT> : encode<Raw, ANY_UNITS>, blocks, THREADS,
                      call.stream, call.in, call.out, (const float *)call.scale, view, call.aligned, call.tally);
}

template codec_launch int8_two_pass_encode<f32>;
template codec_launch int8_two_pass_encode<f16>;
template codec_launch int8_two_pass_encode<bf16>;
