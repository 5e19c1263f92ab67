/* As fused.cuh, for runs that are not equal, or do not start and end with a chunk: a team loads its run into registers,
 * agrees on what is measured of it, and codes what it holds. */
#pragma once

#include "kernels/launch.cuh"
#include "kernels/two_pass.cuh"
#include "kernels/unit.cuh"

#define RAGGED_HELD 4u  /* chunks a thread holds */
#define RAGGED_BLOCKS 4 /* a multiprocessor: what the registers are shared out for */
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
 * every one a team further on. */
template <unsigned N> struct run {
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

        return span<N>(start, begin, end, aligned);
    }
};

template <class Code, class Raw> struct held {
    typedef typename Raw::word word;
    static constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> c[RAGGED_HELD];

    __device__ __forceinline__ void load(const fused &f, const run<N> &r)
    {
#pragma unroll
        for (unsigned k = 0; k < RAGGED_HELD; k++)
            if (k < r.chunks)
                c[k] = span_load<word>(r.at(k), f.in);
    }
    __device__ __forceinline__ typename Code::range range(const run<N> &r) const
    {
        typename Code::range range;
#pragma unroll
        for (unsigned k = 0; k < RAGGED_HELD; k++)
            if (k < r.chunks)
                range.template look<Raw, N>(c[k]);
        return range;
    }
    __device__ __forceinline__ void encode(const fused &f, const run<N> &r, const typename Code::unit &unit,
                                           thread_tally &tally) const
    {
#pragma unroll
        for (unsigned k = 0; k < RAGGED_HELD; k++)
            if (k < r.chunks)
                packed_store(r.at(k), f.out, chunk_encode<Code, Raw, N>(c[k], unit, tally));
    }
};

template <class Code, class Raw>
static __global__ void __launch_bounds__(WARPS_THREADS, RAGGED_BLOCKS) encode_by_lanes(fused f)
{
    unsigned lane = threadIdx.x % WARP, t = lane & ((1u << f.team_log) - 1);
    uint64_t stride = global_threads() >> f.team_log;
    thread_tally tally;

    /* All lanes of a warp go round together, for the shuffles; those past the last unit hold nothing. */
    for (uint64_t unit0 = (global_thread() - lane) >> f.team_log; unit0 < f.view.units; unit0 += stride) {
        uint64_t unit = unit0 + (lane >> f.team_log);
        bool active = unit < f.view.units;
        held<Code, Raw> mine;
        run<held<Code, Raw>::N> r(f, active ? unit : unit0, t);
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

template <class Code, class Raw>
static __global__ void __launch_bounds__(BLOCK_THREADS_MAX, RAGGED_BLOCKS) encode_by_blocks(fused f)
{
    typedef typename Raw::word word;
    constexpr unsigned N = held<Code, Raw>::N;
    thread_tally tally;

    for (uint64_t unit = blockIdx.x; unit < f.view.units; unit += gridDim.x) {
        run<N> r(f, unit, threadIdx.x);
        held<Code, Raw> mine;

        mine.load(f, r);
        typename Code::range range = mine.range(r);
        for (unsigned i = RAGGED_HELD; i < r.chunks; i++)
            range.template look<Raw, N>(span_load<word>(r.at(i), f.in));
        range.each([](uint32_t most) { return block_max(most); });

        unit_params params = Code::params(range);
        typename Code::unit coder = Code::of(params);
        if (threadIdx.x == 0)
            f.units.put<Code::has_zero>(unit, params);
        mine.encode(f, r, coder, tally);
        for (unsigned i = RAGGED_HELD; i < r.chunks; i++)
            packed_store(r.at(i), f.out, chunk_encode<Code, Raw, N>(span_load<word>(r.at(i), f.in), coder, tally));
    }
    block_publish(tally, f.total);
}

template <class Code, class Raw>
static cudaError_t encode_ragged(const struct codec_call &call)
{
    /* That a run can touch: one more than it fills where it may start inside one. */
    uint64_t chunks = (call.view.group - 1) / Code::template elements<Raw> + 2;
    fused f = {call.in, call.out, {call.scale, call.zero}, call.tally, call.view, 0, call.aligned};

    while (1u << f.team_log < BLOCK_THREADS_MAX && RAGGED_HELD << f.team_log < chunks)
        f.team_log++;
    unsigned team = 1u << f.team_log;
    if (team > WARP)
        return launch_few(encode_by_blocks<Code, Raw>, call.view.units, team, call.stream, f);
    unsigned teams = WARPS_THREADS / team;
    uint64_t blocks = call.view.units / teams + (call.view.units % teams != 0);
    return launch_few(encode_by_lanes<Code, Raw>, blocks, WARPS_THREADS, call.stream, f);
}
