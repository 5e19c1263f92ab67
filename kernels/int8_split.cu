/* int8-split: the bits of int8_split_ref.c. What the channels reach is measured as int8 per channel measures it; one block finds the
 * loudest of them; then the elements are coded as int8 per tensor codes them, but for what lies apart. */
#include "kernels/int8.cuh"
#include "kernels/int8_split.h"

#define PICK_THREADS 1024u
#define SPLIT_THREADS 256u
#define SPLIT_LANES 2u

struct split {
    struct codec_view view; /* its channels are the units */
    float *scale;
    uint32_t *marks; /* a channel: what it reaches; then 1 + its place among those that lie apart, or 0 */
    int32_t *channels;
    uint16_t *outliers;
    uint32_t kept;
};

/* How many channels reach that, in every thread of the block. */
static __device__ uint32_t reach(const split &s, uint32_t least)
{
    __shared__ uint32_t total;
    uint32_t mine = 0;

    __syncthreads(); /* the last total has been read */
    if (threadIdx.x == 0)
        total = 0;
    for (uint64_t i = threadIdx.x; i < s.view.units; i += PICK_THREADS)
        mine += s.marks[i] >= least;
    mine = __reduce_add_sync(FULL_WARP, mine);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        atomicAdd(&total, mine);
    __syncthreads();
    return total;
}

/* A thread has a run of channels; those of the threads before it say where its own go. */
static __global__ void __launch_bounds__(PICK_THREADS) pick(split s)
{
    __shared__ uint32_t louder[PICK_THREADS], alike[PICK_THREADS];
    const uint64_t run = (s.view.units - 1) / PICK_THREADS + 1, from = threadIdx.x * run;
    const uint64_t to = from + run < s.view.units ? from + run : s.view.units;
    uint32_t least = 0, rest = 0, here = 0, like = 0;

    for (uint32_t bit = 1u << (SPLIT_BITS - 1); bit; bit >>= 1)
        if (reach(s, least | bit) >= s.kept)
            least |= bit;
    const uint32_t spare = s.kept - reach(s, least + 1); /* of those at the threshold the first */
    for (uint64_t i = from; i < to; i++) {
        here += s.marks[i] > least;
        like += s.marks[i] == least;
    }
    louder[threadIdx.x] = here;
    alike[threadIdx.x] = like;
    __syncthreads();
    here = like = 0;
    for (unsigned t = 0; t < threadIdx.x; t++) {
        here += louder[t];
        like += alike[t];
    }
    for (uint64_t i = from; i < to; i++) {
        uint32_t mark = s.marks[i];
        bool apart = mark > least || (mark == least && like < spare);
        uint32_t place = here + (like < spare ? like : spare);

        if (apart)
            s.channels[place] = (int32_t)i;
        else
            rest = max(rest, mark);
        s.marks[i] = apart ? place + 1 : 0;
        here += mark > least;
        like += mark == least;
    }
    rest = block_max(rest);
    if (threadIdx.x == 0)
        s.scale[0] = int8_scale(element_float(rest));
}

/* Whether any of n elements from there on lies apart. */
static __device__ __forceinline__ bool any_apart(const split &s, struct codec_walk walk, unsigned n)
{
    uint32_t any = s.marks[walk.unit];

    if (codec_walk_uniform(&s.view, &walk, n))
        return any;
    for (unsigned i = 1; i < n; i++) {
        codec_walk_step(&s.view, &walk);
        any |= s.marks[walk.unit];
    }
    return any;
}

template <class Raw>
static __global__ void __launch_bounds__(SPLIT_THREADS)
    encode_split(const void *in, void *out, split s, bool aligned, struct codec_tally *total)
{
    constexpr unsigned N = int8::elements<Raw>;
    const unit_params params = {s.scale[0], 0};
    const int8::unit unit = int8::of(params);
    chunk<typename Raw::word, N> raw[SPLIT_LANES];
    thread_tally tally;

    auto load = [&](unsigned k, span<N> at) { raw[k] = span_load<typename Raw::word>(at, in); };
    auto code = [&](unsigned k, span<N> at) {
        struct codec_walk walk = codec_walk_at(&s.view, at.at);
        packed<8, N> codes;

        if (!any_apart(s, walk, at.past)) {
            packed_store(at, out, chunk_encode<int8, Raw, N>(raw[k], unit, tally));
            return;
        }
        thread_tally exact;
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (i >= at.past)
                break;
            float x = Raw::up(raw[k].w[i]);
            uint32_t mark = s.marks[walk.unit];

            if (mark) {
                uint16_t half = f16::down(x);

                s.outliers[split_at(&s.view, s.kept, mark - 1, at.at + i, walk.in_row)] = half;
                exact.add(x, f16::up(half), element_magnitude(x) > ELEMENT_F16_MAX);
                codes.put(i, 0);
            } else {
                codes.put(i, int8::encode_exact(x, params, exact));
            }
            codec_walk_step(&s.view, &walk);
        }
        tally.join(exact);
        packed_store(at, out, codes);
    };
    for_chunks<N, SPLIT_LANES>(s.view.count, aligned, load, code);
    block_publish(tally, total);
}

template <class Raw>
static __global__ void __launch_bounds__(SPLIT_THREADS)
    measure_split(const void *in, const void *coded, split s, bool aligned, struct codec_tally *total)
{
    constexpr unsigned N = int8::elements<Raw>;
    const unit_params params = {s.scale[0], 0};
    const bool may_clip = params.scale < __uint_as_float(ELEMENT_LEAST);
    chunk<typename Raw::word, N> raw[SPLIT_LANES];
    packed<8, N> codes[SPLIT_LANES];
    thread_quality<Raw> quality(total);

    auto load = [&](unsigned k, span<N> at) {
        raw[k] = span_load<typename Raw::word>(at, in);
        codes[k] = packed_load<8>(at, coded);
    };
    auto compare = [&](unsigned k, span<N> at) {
        struct codec_walk walk = codec_walk_at(&s.view, at.at);

        if (at.past == N && is_plain(params.scale) && chunk_most<Raw, N>(raw[k]) < ELEMENT_INF && !any_apart(s, walk, N)) {
            float stored[N];

            int8::values<N>(codes[k], params, stored);
            if (quality.template add_chunk<false, N>(raw[k], stored))
                return;
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (i >= at.past)
                break;
            float x = Raw::up(raw[k].w[i]), most = quality.most, least = quality.least;
            uint32_t mark = s.marks[walk.unit];

            if (mark) { /* the range is that of the other channels' codes */
                float half = f16::up(s.outliers[split_at(&s.view, s.kept, mark - 1, at.at + i, walk.in_row)]);

                quality.add(x, half, element_magnitude(x) > ELEMENT_F16_MAX);
                quality.most = most;
                quality.least = least;
            } else {
                quality.add(x, int8::value(codes[k].get(i), params), may_clip && is_clipped<int8>(x, params));
            }
            codec_walk_step(&s.view, &walk);
        }
    };
    for_chunks<N, SPLIT_LANES>(s.view.count, aligned, load, compare, [&] { quality.share(); });
    quality.publish_block(total);
}

/* What lies apart, over what its codes of 0 became. */
template <class Raw>
static __global__ void __launch_bounds__(SPLIT_THREADS) put_back(void *out, split s, uint64_t n)
{
    for (uint64_t i = global_thread(); i < n; i += global_threads()) {
        uint64_t row = codec_divide(i, s.view.row, s.view.per_row), in_row = i - row * s.view.row, outer = row / s.kept;
        uint64_t channel = (uint32_t)s.channels[row - outer * s.kept];

        if (channel < s.view.units) /* whoever may write the buffer may have written anything there */
            static_cast<typename Raw::word *>(out)[(outer * s.view.units + channel) * s.view.row + in_row] =
                Raw::down(f16::up(s.outliers[i]));
    }
}

static split split_of(const struct codec_job *job, struct codec_tally *tally)
{
    uint32_t *marks = tally ? reinterpret_cast<uint32_t *>(tally + 1) : nullptr;

    return {split_view_of(job), job->scale, marks, job->channels, job->outliers, job->encoding.group};
}

static uint64_t blocks_for(uint64_t count, unsigned elements)
{
    return chunk_blocks(count, SPLIT_THREADS, SPLIT_LANES * elements);
}

template <class Raw> static cudaError_t encode_of(const struct codec_job *job, const struct codec_call &call)
{
    const split s = split_of(job, call.tally);
    struct codec_call channels = call;

    channels.view = s.view;
    channels.scale = reinterpret_cast<float *>(s.marks);
    channels.ranged = false;
    cudaError_t error = two_pass_measure<int8, Raw>(channels);
    if (!error)
        error = launch_all(pick, 1, PICK_THREADS, call.stream, s);
    return error || !s.view.count ? error
                                  : launch_few(encode_split<Raw>, blocks_for(s.view.count, int8::elements<Raw>), SPLIT_THREADS,
                                               call.stream, call.in, call.out, s, call.aligned, call.tally);
}

template <class Raw> static cudaError_t measure_of(const struct codec_job *job, const struct codec_call &call)
{
    const split s = split_of(job, call.tally);

    return s.view.count ? launch_few(measure_split<Raw>, blocks_for(s.view.count, int8::elements<Raw>), SPLIT_THREADS, call.stream,
                                     call.in, (const void *)call.out, s, call.aligned, call.tally)
                        : cudaSuccess;
}

template <class Raw> static cudaError_t decode_of(const struct codec_job *job, const struct codec_call &call)
{
    const split s = split_of(job, nullptr);

    if (!s.view.count)
        return cudaSuccess;
    const uint64_t n = s.view.rows / s.view.period * s.kept * s.view.row;
    cudaError_t error = int8_decode<Raw>(call);
    return error ? error
                 : launch_all(put_back<Raw>, chunk_blocks(n, SPLIT_THREADS, 1), SPLIT_THREADS, call.stream, call.out, s, n);
}

#define BY_RAW_TYPE(of, job, call)                                                                                     \
    ((job)->dtype == HBM_F32 ? of<f32>(job, call) : (job)->dtype == HBM_F16 ? of<f16>(job, call) : of<bf16>(job, call))

int split_encode_cuda(const struct codec_job *job, const struct codec_call &call)
{
    return BY_RAW_TYPE(encode_of, job, call);
}

int split_measure_cuda(const struct codec_job *job, const struct codec_call &call)
{
    return BY_RAW_TYPE(measure_of, job, call);
}

int split_decode_cuda(const struct codec_job *job, const struct codec_call &call)
{
    return BY_RAW_TYPE(decode_of, job, call);
}
