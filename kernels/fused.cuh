/* For units that are contiguous runs short enough for a team of threads: one read. A team loads its run into
 * registers, agrees on the amax, and codes what it holds. A team is 1..32 lanes of a warp or a whole block; what a
 * block cannot hold of a longer run it reads a second time, mostly from L2. */
#pragma once

#include "kernels/launch.cuh"
#include "kernels/two_pass.cuh"
#include "kernels/unit.cuh"

#define HELD 4u        /* chunks a thread holds */
#define FUSED_BLOCKS 4 /* a multiprocessor: what the registers are shared out for */
#define WARPS_THREADS 256u
#define BLOCK_THREADS_MAX 256u

struct fused {
    const void *in;
    void *out;
    unit_arrays units;
    struct codec_tally *total;
    struct codec_view view;
    unsigned team_log; /* threads: 2 to this */
    bool aligned;
};

/* The elements [begin, end) of one unit, and the chunks of them that are this thread's: the t-th of the team's and
 * every one a team further on. WHOLE: all of them are whole. */
template <unsigned N, bool WHOLE> struct run {
    uint64_t begin, end, first;
    unsigned step, chunks;
    bool aligned;

    __device__ __forceinline__ run(const fused &f, uint64_t unit, unsigned t)
        : step(N << f.team_log), aligned(f.aligned)
    {
        uint64_t row = f.view.groups == 1 ? unit : codec_divide(unit, f.view.groups, f.view.per_groups);
        uint64_t in_row = (unit - row * f.view.groups) * f.view.group;
        uint64_t left = f.view.row - in_row;

        begin = row * f.view.row + in_row;
        end = begin + (left < f.view.group ? left : f.view.group);
        unsigned all = (unsigned)((end - 1) / N - begin / N) + 1;
        first = (begin / N + t) * N;
        chunks = t < all ? ((all - t - 1) >> f.team_log) + 1 : 0;
    }
    __device__ __forceinline__ span<N> at(unsigned i) const
    {
        uint64_t start = first + (uint64_t)i * step;

        return WHOLE ? span<N>(start) : span<N>(start, begin, end, aligned);
    }
};

template <class Code, class Raw, bool WHOLE> struct held {
    typedef typename Raw::word word;
    static constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> c[HELD];

    __device__ __forceinline__ void load(const fused &f, const run<N, WHOLE> &r)
    {
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k < r.chunks)
                c[k] = span_load<word>(r.at(k), f.in);
    }
    __device__ __forceinline__ typename Code::range range(const run<N, WHOLE> &r) const
    {
        typename Code::range range;
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k < r.chunks)
                range.template look<Raw, N>(c[k]);
        return range;
    }
    __device__ __forceinline__ void encode(const fused &f, const run<N, WHOLE> &r, const typename Code::unit &unit,
                                           thread_tally &tally) const
    {
        few_tally few;

#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (k < r.chunks)
                packed_store(r.at(k), f.out, Code::template encode<Raw, N>(c[k], unit, few, tally));
        tally.few(few);
    }
};

template <class Code, class Raw, bool WHOLE>
static __global__ void __launch_bounds__(WARPS_THREADS, FUSED_BLOCKS) encode_by_lanes(fused f)
{
    unsigned lane = threadIdx.x % WARP, t = lane & ((1u << f.team_log) - 1);
    uint64_t stride = global_threads() >> f.team_log;
    thread_tally tally;

    /* All lanes of a warp go round together, for the shuffles; those past the last unit hold nothing. */
    for (uint64_t unit0 = (global_thread() - lane) >> f.team_log; unit0 < f.view.units; unit0 += stride) {
        uint64_t unit = unit0 + (lane >> f.team_log);
        bool active = unit < f.view.units;
        held<Code, Raw, WHOLE> mine;
        run<held<Code, Raw, WHOLE>::N, WHOLE> r(f, active ? unit : unit0, t);
        typename Code::range range;

        if (active) {
            mine.load(f, r);
            range = mine.range(r);
        }
        range.each([&](uint32_t most) {
            for (unsigned o = 1u << f.team_log >> 1; o; o >>= 1)
                most = max(most, __shfl_xor_sync(FULL_WARP, most, o));
            return most;
        });
        if (!active)
            continue;
        unit_params params = Code::params(range);
        if (t == 0)
            f.units.put<Code::has_zero>(unit, params);
        mine.encode(f, r, Code::of(params), tally);
    }
    block_publish(tally, f.total);
}

template <class Code, class Raw, bool WHOLE>
static __global__ void __launch_bounds__(BLOCK_THREADS_MAX, FUSED_BLOCKS) encode_by_blocks(fused f)
{
    typedef typename Raw::word word;
    constexpr unsigned N = held<Code, Raw, WHOLE>::N;
    thread_tally tally;

    for (uint64_t unit = blockIdx.x; unit < f.view.units; unit += gridDim.x) {
        run<N, WHOLE> r(f, unit, threadIdx.x);
        held<Code, Raw, WHOLE> mine;

        mine.load(f, r);
        typename Code::range range = mine.range(r);
        for (unsigned i = HELD; i < r.chunks; i++)
            range.template look<Raw, N>(span_load<word>(r.at(i), f.in));
        range.each([](uint32_t most) { return block_max(most); });

        unit_params params = Code::params(range);
        typename Code::unit coder = Code::of(params);
        if (threadIdx.x == 0)
            f.units.put<Code::has_zero>(unit, params);
        mine.encode(f, r, coder, tally);
        for (unsigned i = HELD; i < r.chunks; i++) {
            few_tally few;
            packed_store(r.at(i), f.out,
                         Code::template encode<Raw, N>(span_load<word>(r.at(i), f.in), coder, few, tally));
            tally.few(few);
        }
    }
    block_publish(tally, f.total);
}

template <class Code, class Raw, bool WHOLE>
static cudaError_t encode_fused(const struct codec_call &call, uint64_t chunks)
{
    fused f = {call.in, call.out, {call.scale, call.zero}, call.tally, call.view, 0, call.aligned};

    while (1u << f.team_log < BLOCK_THREADS_MAX && HELD << f.team_log < chunks)
        f.team_log++;
    unsigned team = 1u << f.team_log;
    if (team > WARP)
        return launch_few(encode_by_blocks<Code, Raw, WHOLE>, call.view.units, team, call.stream, f);
    unsigned teams = WARPS_THREADS / team;
    uint64_t blocks = call.view.units / teams + (call.view.units % teams != 0);
    return launch_few(encode_by_lanes<Code, Raw, WHOLE>, blocks, WARPS_THREADS, call.stream, f);
}

template <class Code, class Raw> static cudaError_t fused_encode(const struct codec_call &call)
{
    constexpr unsigned N = Code::template elements<Raw>;
    const struct codec_view &view = call.view;
    bool at_chunks = view.row % N == 0 && (view.groups == 1 || view.group % N == 0);
    /* Chunks that a run can touch: one more than it fills where it may start inside one. */
    uint64_t chunks = (view.group - 1) / N + 1 + (at_chunks ? 0 : 1);

    if (at_chunks && call.aligned)
        return encode_fused<Code, Raw, true>(call, chunks);
    if constexpr (Code::bits < 8) /* neighbours would write the same byte */
        return two_pass_encode<Code, Raw>(call);
    else
        return encode_fused<Code, Raw, false>(call, chunks);
}
