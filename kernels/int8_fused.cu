/* int8 for units that are contiguous runs short enough for a team of threads: one read. A team loads its run into
 * registers, agrees on the amax, and codes what it holds. A team is 4..32 lanes of a warp or a whole block; what a
 * block cannot hold of a longer run it reads a second time, mostly from L2. */
#include "kernels/int8.cuh"
#include "kernels/launch.cuh"

#define HELD 4u /* chunks a thread holds */
#define WARPS_THREADS 256u
#define BLOCK_THREADS_MAX 512u

struct fused {
    const void *in;
    void *out;
    float *scale;
    struct codec_tally *total;
    struct codec_view view;
    unsigned team; /* threads: a power of two */
    bool aligned;
};

/* The elements [begin, end) of one unit, and the chunks that they touch. */
struct run {
    uint64_t begin, end, first, chunks;
    bool aligned;

    __device__ __forceinline__ run(const fused &f, uint64_t unit) : aligned(f.aligned)
    {
        uint64_t row = f.view.groups == 1 ? unit : unit / f.view.groups;
        uint64_t in_row = (unit - row * f.view.groups) * f.view.group;
        uint64_t left = f.view.row - in_row;

        begin = row * f.view.row + in_row;
        end = begin + (left < f.view.group ? left : f.view.group);
        first = begin / CHUNK;
        chunks = (end - 1) / CHUNK - first + 1;
    }
    __device__ __forceinline__ span at(uint64_t i) const
    {
        return span((first + i) * CHUNK, begin, end, aligned);
    }
};

template <class Raw> struct held {
    typedef typename Raw::word word;
    chunk<word> c[HELD];

    __device__ __forceinline__ void load(const fused &f, const run &r, unsigned t)
    {
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k * f.team + t < r.chunks)
                c[k] = span_load<word>(r.at(k * f.team + t), f.in);
    }
    __device__ __forceinline__ uint32_t magnitude(const fused &f, const run &r, unsigned t) const
    {
        uint32_t most = 0;
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k * f.team + t < r.chunks)
                most = max(most, chunk_magnitude<Raw>(c[k]));
        return most;
    }
    __device__ __forceinline__ void encode(const fused &f, const run &r, unsigned t, const int8_unit &unit,
                                           thread_tally &tally) const
    {
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k * f.team + t < r.chunks)
                int8_encode_chunk<Raw>(r.at(k * f.team + t), c[k], unit, f.out, tally);
    }
};

template <class Raw> static __global__ void __launch_bounds__(WARPS_THREADS) encode_by_lanes(fused f)
{
    unsigned lane = threadIdx.x % WARP, t = lane % f.team;
    uint64_t stride = global_threads() / f.team;
    thread_tally tally;

    /* All lanes of a warp go round together, for the shuffles; those past the last unit hold nothing. */
    for (uint64_t unit0 = (global_thread() - lane) / f.team; unit0 < f.view.units; unit0 += stride) {
        uint64_t unit = unit0 + lane / f.team;
        bool active = unit < f.view.units;
        run r(f, active ? unit : unit0);
        held<Raw> mine;
        uint32_t most = 0;

        if (active) {
            mine.load(f, r, t);
            most = mine.magnitude(f, r, t);
        }
        for (unsigned o = f.team / 2; o; o >>= 1)
            most = max(most, __shfl_xor_sync(FULL_WARP, most, o));
        if (!active)
            continue;
        int8_unit coder = int8_unit_of(int8_scale(element_float(most)));
        if (t == 0)
            f.scale[unit] = coder.scale;
        mine.encode(f, r, t, coder, tally);
    }
    block_publish(tally, f.total);
}

template <class Raw> static __global__ void __launch_bounds__(BLOCK_THREADS_MAX) encode_by_blocks(fused f)
{
    unsigned t = threadIdx.x;
    thread_tally tally;

    for (uint64_t unit = blockIdx.x; unit < f.view.units; unit += gridDim.x) {
        run r(f, unit);
        held<Raw> mine;

        mine.load(f, r, t);
        uint32_t most = mine.magnitude(f, r, t);
        for (uint64_t i = HELD * f.team + t; i < r.chunks; i += f.team)
            most = max(most, chunk_magnitude<Raw>(span_load<typename Raw::word>(r.at(i), f.in)));

        int8_unit coder = int8_unit_of(int8_scale(element_float(block_max(most))));
        if (t == 0)
            f.scale[unit] = coder.scale;
        mine.encode(f, r, t, coder, tally);
        for (uint64_t i = HELD * f.team + t; i < r.chunks; i += f.team) {
            span s = r.at(i);
            int8_encode_chunk<Raw>(s, span_load<typename Raw::word>(s, f.in), coder, f.out, tally);
        }
    }
    block_publish(tally, f.total);
}

/* Chunks that a run can touch: one more than it fills where it may start inside one. */
static uint64_t most_chunks(const struct codec_view &view)
{
    bool at_chunks = view.row % CHUNK == 0 && (view.groups == 1 || view.group % CHUNK == 0);

    return (view.group - 1) / CHUNK + 1 + (at_chunks ? 0 : 1);
}

template <class Raw> cudaError_t int8_fused_encode(const struct codec_call &call)
{
    uint64_t chunks = most_chunks(call.view);
    fused f = {call.in, call.out, call.scale, call.tally, call.view, 4, call.aligned};

    while (f.team < BLOCK_THREADS_MAX && f.team * HELD < chunks)
        f.team *= 2;
    if (f.team <= WARP) {
        unsigned teams = WARPS_THREADS / f.team;
        uint64_t blocks = call.view.units / teams + (call.view.units % teams != 0);

        return launch(encode_by_lanes<Raw>, blocks, WARPS_THREADS, call.stream, f);
    }
    return launch(encode_by_blocks<Raw>, call.view.units, f.team, call.stream, f);
}

template codec_launch int8_fused_encode<f32>;
template codec_launch int8_fused_encode<f16>;
template codec_launch int8_fused_encode<bf16>;
