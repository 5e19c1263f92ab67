/* For units that are equal runs of whole chunks, short enough for a team of threads: one read. A thread copies its chunks
 * of the next unit into its own part of shared memory, past its registers, while it works on those of this one: what is on
 * its way does not depend on how many registers are left. The team agrees on what is measured of the unit, then codes it.
 * A team is some lanes of a warp or a whole block; what a block does not hold of a longer run it reads a second time,
 * mostly from L2. */
#pragma once

#include <cuda_pipeline.h>

#include "kernels/ragged.cuh"

#define FUSED_THREADS 256u /* of a block, at most */
#define FUSED_BLOCKS 3     /* a multiprocessor: what the registers are shared out for */
#define LANES_HELD 4u      /* chunks a thread holds, of a team of lanes */
#define BLOCK_HELD 8u

/* The exact way for what has been encoded. */
template <class Code, class Raw, unsigned N>
static __device__ __noinline__ thread_tally chunk_again(const void *in, void *out, uint64_t at, const unit_params params)
{
    const span<N> s(at);
    exact_chunk<Code, N> exact = chunk_exactly<Code, Raw, N>(span_load<typename Raw::word>(s, in), params);

    packed_store(s, out, exact.codes);
    return exact.tally;
}

template <class Code, class Raw, unsigned HELD, bool BLOCK>
static __global__ void __launch_bounds__(FUSED_THREADS, FUSED_BLOCKS) encode_even(fused f)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;
    constexpr unsigned VECTORS = sizeof(chunk<word, N>) / sizeof(uint4);
    extern __shared__ uint4 ring[]; /* two slots of HELD chunks for every thread, its vectors a block's width apart */
    const unsigned log = f.team_log, team = 1u << log, t = threadIdx.x & (team - 1), group = (unsigned)f.view.group;
    const unsigned all = group / N, chunks = t < all ? ((all - t - 1) >> log) + 1 : 0;
    const uint64_t teams = BLOCK ? gridDim.x : global_threads() >> log;
    const uint64_t first = BLOCK ? blockIdx.x : global_thread() >> log;
    const unsigned ahead = BLOCK ? 0 : threadIdx.x % WARP >> log; /* of the warp's first team: all its lanes go round together */
    uint4 *mine = ring + threadIdx.x;
    unsigned slot = 0, turn = 0;
    thread_tally tally;

    auto fetch = [&](uint64_t unit, unsigned to) {
        const word *from = static_cast<const word *>(f.in) + unit * group + t * N;
        uint4 *into = mine + to * HELD * VECTORS * blockDim.x;

        if (unit < f.view.units)
#pragma unroll
            for (unsigned k = 0; k < HELD; k++, from += N << log)
#pragma unroll
                for (unsigned v = 0; v < VECTORS; v++, into += blockDim.x)
                    if (k < chunks)
                        __pipeline_memcpy_async(into, reinterpret_cast<const uint4 *>(from) + v, sizeof(uint4));
        __pipeline_commit();
    };
    auto at = [&](unsigned k) {
        chunk<word, N> c;

#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++)
            reinterpret_cast<uint4 *>(&c)[v] = mine[((slot * HELD + k) * VECTORS + v) * blockDim.x];
        return c;
    };

    for (unsigned k = (chunks < HELD ? chunks : HELD) * VECTORS; k < HELD * VECTORS; k++) /* zeros change no range */
        mine[k * blockDim.x] = mine[(HELD * VECTORS + k) * blockDim.x] = make_uint4(0, 0, 0, 0);
    fetch(first, slot);
    for (uint64_t unit = first; unit - ahead < f.view.units; unit += teams, slot ^= 1) {
        typename Code::range range;

        fetch(unit + teams, slot ^ 1);
        __pipeline_wait_prior(1);
        range.template look_all<Raw, N, HELD>(at);
        if (BLOCK)
            for (unsigned k = HELD; k < chunks; k++)
                range.template look<Raw, N>(span_load<word>(span<N>(unit * group + (t + (k << log)) * N), f.in));
        if (BLOCK)
            range.each([&](uint32_t most) { return block_most(most, turn); });
        else
            for (unsigned o = team >> 1; o; o >>= 1)
                range.each([&](uint32_t most) { return max(most, __shfl_xor_sync(FULL_WARP, most, o)); });
        if (unit >= f.view.units)
            continue;

        unit_params params = Code::params(range);
        typename Code::unit coder = Code::of(params);
        uint8_t *to = static_cast<uint8_t *>(f.out) + (unit * group + t * N) * Code::bits / 8;
        few_tally few;
        if (t == 0)
            f.units.put<Code::has_zero>(unit, params);
#pragma unroll 4
        for (unsigned k = 0; k < HELD; k++)
            if (k < chunks)
                packed_store(span<N>(0), to + (k * N << log) * Code::bits / 8,
                             Code::template encode<Raw, N>(at(k), one_unit<typename Code::unit>{coder}, few));
        /* Sums are looked at once for all: where those do not hold, each chunk is read again and goes the exact way. */
        if (few.holds())
            tally.few(few);
        else
            for (unsigned k = 0; k < HELD && k < chunks; k++)
                tally.join(chunk_again<Code, Raw, N>(f.in, f.out, unit * group + (t + (k << log)) * N, params));
        if (BLOCK)
            for (unsigned k = HELD; k < chunks; k++) {
                span<N> s(unit * group + (t + (k << log)) * N);
                packed_store(s, f.out, chunk_encode<Code, Raw, N>(span_load<word>(s, f.in), coder, tally));
            }
    }
    block_publish(tally, f.total);
}

template <class Code, class Raw, unsigned HELD, bool BLOCK>
static cudaError_t launch_even(fused f, unsigned threads, cudaStream_t stream)
{
    auto *kernel = encode_even<Code, Raw, HELD, BLOCK>;
    const unsigned of_thread = 2 * HELD * sizeof(chunk<typename Raw::word, Code::template elements<Raw>>);
    uint64_t each = BLOCK ? 1 : threads >> f.team_log;
    /* The same at every launch: another thread may be between its own call of this and its launch. */
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)(of_thread * FUSED_THREADS));

    return error ? error
                 : launch_shared(kernel, (f.view.units - 1) / each + 1, threads, stream, of_thread * threads, f);
}

template <class Code, class Raw> static cudaError_t encode_equal(const struct codec_call &call)
{
    fused f = {call.in, call.out, {call.scale, call.zero}, call.tally, call.view, 0, call.aligned};
    uint64_t chunks = call.view.group / Code::template elements<Raw>;

    if (chunks <= LANES_HELD * WARP) {
        while (LANES_HELD << f.team_log < chunks)
            f.team_log++;
        return launch_even<Code, Raw, LANES_HELD, false>(f, FUSED_THREADS, call.stream);
    }
    f.team_log = 5;
    while (1u << f.team_log < FUSED_THREADS && BLOCK_HELD << f.team_log < chunks)
        f.team_log++;
    return launch_even<Code, Raw, BLOCK_HELD, true>(f, 1u << f.team_log, call.stream);
}

template <class Code, class Raw> static cudaError_t fused_encode(const struct codec_call &call)
{
    constexpr unsigned N = Code::template elements<Raw>;
    const struct codec_view &view = call.view;
    bool at_chunks = view.row % N == 0 && (view.groups == 1 || view.group % N == 0);

    if (at_chunks && call.aligned && (view.groups == 1 || view.row % view.group == 0))
        return encode_equal<Code, Raw>(call);
    if (Code::bits < 8 && !at_chunks) /* neighbours would write the same byte */
        return two_pass_encode<Code, Raw>(call);
    return encode_ragged<Code, Raw>(call);
}
