/* fp16 and bf16: one rounding an element, no scales. */
#include "kernels/chunk.cuh"
#include "kernels/launch.cuh"
#include "kernels/quality.cuh"
#include "kernels/tally.cuh"

#define THREADS 256u
#define LANES 2u

/* Elements that what is encoded or measured is taken by: a vector of the narrower side, two of the wider. */
template <class Raw, class Stored>
constexpr unsigned wide_elements =
    16 / (sizeof(typename Raw::word) < sizeof(typename Stored::word) ? sizeof(typename Raw::word)
                                                                     : sizeof(typename Stored::word));

/* A chunk by the words of element.h. */
template <class Raw, class Stored, unsigned N>
static __device__ __noinline__ void encode_exact(const chunk<typename Raw::word, N> raw,
                                                 chunk<typename Stored::word, N> &stored, thread_tally &tally)
{
    for (unsigned i = 0; i < N; i++) {
        float x = Raw::up(raw.w[i]);

        stored.w[i] = Stored::down(x);
        tally.add(x, Stored::up(stored.w[i]), element_magnitude(x) > Stored::most);
    }
}

/* A chunk whose magnitudes are such that nothing saturates and the squares are far from binary32's ends. */
template <class Raw, class Stored, unsigned N>
static __device__ __forceinline__ chunk<typename Stored::word, N>
encode_plain(const chunk<typename Raw::word, N> &raw, thread_tally &tally)
{
    few_tally few;
    float x[N];
    chunk<typename Stored::word, N> stored;

    chunk_up<Raw, N>(raw, x);
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        stored.w[i] = Stored::down_finite(x[i]);
        few.add(x[i], element_sub(x[i], Stored::up_finite(stored.w[i])));
    }
    tally.few(few);
    return stored;
}

template <class Stored> static __device__ __forceinline__ bool is_plain(uint32_t most)
{
    const uint32_t least = 0x2b800000u /* 2^-40 */, large = 0x5d800000u /* 2^60 */;

    return most == 0 || (most >= least && most <= (Stored::most < large ? Stored::most : large));
}

template <class Raw, class Stored>
static __global__ void __launch_bounds__(THREADS, 4)
    encode(const void *in, void *out, uint64_t count, bool aligned, struct codec_tally *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = wide_elements<Raw, Stored>;
    chunk<word, N> raw[LANES];
    thread_tally tally;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto convert = [&](unsigned k, span<N> s) {
        /* Past the end lie zeros, which add nothing. */
        if (is_plain<Stored>(chunk_most<Raw, N>(raw[k]))) {
            span_store(s, out, encode_plain<Raw, Stored, N>(raw[k], tally));
            return;
        }
        chunk<typename Stored::word, N> stored;
        thread_tally exact;
        encode_exact<Raw, Stored, N>(raw[k], stored, exact);
        tally.join(exact);
        span_store(s, out, stored);
    };
    for_chunks<N, LANES>(count, aligned, load, convert);
    block_publish(tally, total);
}

template <class Raw, class Stored>
static __global__ void __launch_bounds__(THREADS) decode(const void *in, void *out, uint64_t count, bool aligned)
{
    typedef typename Stored::word word;
    constexpr unsigned N = chunk_elements<word, typename Raw::word>;
    chunk<word, N> stored[LANES];

    auto load = [&](unsigned k, span<N> s) { stored[k] = span_load<word>(s, in); };
    auto convert = [&](unsigned k, span<N> s) {
        chunk<typename Raw::word, N> raw;

#pragma unroll
        for (unsigned i = 0; i < N; i++)
            raw.w[i] = Raw::down(Stored::up(stored[k].w[i]));
        span_store(s, out, raw);
    };
    for_chunks<N, LANES>(count, aligned, load, convert);
}

template <class Raw, class Stored>
static __global__ void __launch_bounds__(THREADS, 3)
    measure(const void *in, const void *coded, uint64_t count, bool aligned, struct codec_tally *total)
{
    constexpr unsigned N = wide_elements<Raw, Stored>;
    chunk<typename Raw::word, N> raw[LANES];
    chunk<typename Stored::word, N> stored[LANES];
    thread_quality<Raw> quality(total);

    auto load = [&](unsigned k, span<N> s) {
        raw[k] = span_load<typename Raw::word>(s, in);
        stored[k] = span_load<typename Stored::word>(s, coded);
    };
    auto compare = [&](unsigned k, span<N> s) {
        if (s.past == N && chunk_most<Raw, N>(raw[k]) <= Stored::most) {
            float back[N];

            chunk_up<Stored, N>(stored[k], back);
            if (quality.template add_chunk<true, N>(raw[k], back))
                return;
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float x = Raw::up(raw[k].w[i]);

            if (s.has(i))
                quality.add(x, Stored::up(stored[k].w[i]), element_magnitude(x) > Stored::most);
        }
    };
    for_chunks<N, LANES>(count, aligned, load, compare, [&] { quality.share(); });
    quality.publish_block(total);
}

template <class Raw, class Stored> static uint64_t blocks_for(uint64_t count)
{
    return chunk_blocks(count, THREADS, LANES * wide_elements<Raw, Stored>);
}

template <class Raw, class Stored> cudaError_t halves_encode(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    return launch_few(encode<Raw, Stored>, blocks_for<Raw, Stored>(call.view.count), THREADS, call.stream, call.in,
                      call.out, call.view.count, call.aligned, call.tally);
}

template <class Raw, class Stored> cudaError_t halves_decode(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    const unsigned each = LANES * chunk_elements<typename Raw::word, typename Stored::word>;
    return launch_all(decode<Raw, Stored>, chunk_blocks(call.view.count, THREADS, each), THREADS, call.stream, call.in,
                      call.out, call.view.count, call.aligned);
}

template <class Raw, class Stored> cudaError_t halves_measure(const struct codec_call &call)
{
    if (!call.view.count)
        return cudaSuccess;
    return launch_few(measure<Raw, Stored>, blocks_for<Raw, Stored>(call.view.count), THREADS, call.stream, call.in,
                      (const void *)call.out, call.view.count, call.aligned, call.tally);
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
template codec_launch halves_measure<f32, f16>;
template codec_launch halves_measure<f16, f16>;
template codec_launch halves_measure<bf16, f16>;
template codec_launch halves_measure<f32, bf16>;
template codec_launch halves_measure<f16, bf16>;
template codec_launch halves_measure<bf16, bf16>;
