/* For units that no block can hold: the tensor, long rows, and channels that are not contiguous. The arrays of
 * scales and zero points gather what is measured of every unit, become those in place, then the elements are coded.
 */
#pragma once

#include "kernels/columns.cuh"
#include "kernels/launch.cuh"
#include "kernels/unit.cuh"

#define TWO_PASS_THREADS 256u
#define TWO_PASS_LANES 4u
#define NO_RANGE UINT32_MAX

template <class Code, class Raw>
static __global__ void __launch_bounds__(TWO_PASS_THREADS)
    measure_one(const void *in, unit_arrays units, uint64_t count, bool aligned)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> raw[TWO_PASS_LANES];
    typename Code::range range;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N>) { range.template look<Raw, N>(raw[k]); };
    for_chunks<N, TWO_PASS_LANES>(count, aligned, load, look);
    range.each([](uint32_t most) { return block_max(most); });
    if (threadIdx.x == 0)
        range.gather(units, 0);
}

template <class Code, class Raw>
static __global__ void __launch_bounds__(TWO_PASS_THREADS)
    measure_many(const void *in, unit_arrays units, struct codec_view view, bool aligned)
{
    typedef typename Raw::word word;
    typedef typename Code::range ranges;
    constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> raw[TWO_PASS_LANES];

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto look = [&](unsigned k, span<N> s) {
        struct codec_walk walk = codec_walk_at(&view, s.at);
        uint64_t unit = walk.unit;
        ranges range;

        if (codec_walk_uniform(&view, &walk, s.past)) {
            range.template look<Raw, N>(raw[k]);
            range.gather(units, unit);
            return;
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (i >= s.past)
                break;
            if (walk.unit != unit) {
                range.gather(units, unit);
                unit = walk.unit;
                range = ranges();
            }
            range.look(Raw::up(raw[k].w[i]));
            codec_walk_step(&view, &walk);
        }
        range.gather(units, unit);
    };
    for_chunks<N, TWO_PASS_LANES>(view.count, aligned, load, look);
}

template <class Code>
static __global__ void __launch_bounds__(TWO_PASS_THREADS) params_of_ranges(unit_arrays units, uint64_t n)
{
    for (uint64_t i = global_thread(); i < n; i += global_threads()) {
        typename Code::range range;

        range.gathered(units, i);
        units.put<Code::has_zero>(i, Code::params(range));
    }
}

template <class Code, class Raw, enum unit_layout UNITS>
static __global__ void __launch_bounds__(TWO_PASS_THREADS, 4)
    encode_units(const void *in, void *out, unit_arrays units, struct codec_view view, bool aligned,
                 uint32_t within, float lo, float hi, struct codec_tally *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> raw[TWO_PASS_LANES];
    typename Code::unit one = Code::of(units.at<Code::has_zero>(0));
    thread_tally tally;

    auto load = [&](unsigned k, span<N> s) { raw[k] = span_load<word>(s, in); };
    auto code = [&](unsigned k, span<N> s) {
        packed<Code::bits, N> coded;
        struct codec_walk walk;
        uint64_t unit;

        if (UNITS == ONE_UNIT && within != NO_RANGE && !chunk_within<Code, Raw, N>(raw[k], within, lo, hi)) {
            coded = chunk_exact<Code, Raw, N>(raw[k], units.at<Code::has_zero>(0), tally);
        } else if (unit_at<UNITS>(view, s.at, s.past, unit, walk)) {
            coded = chunk_encode<Code, Raw, N>(
                raw[k], UNITS == ONE_UNIT ? one : Code::of(units.at<Code::has_zero>(unit)), tally);
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                if (i >= s.past)
                    break;
                coded.put(i, Code::encode_exact(Raw::up(raw[k].w[i]), units.at<Code::has_zero>(walk.unit), tally));
                codec_walk_step(&view, &walk);
            }
        }
        packed_store(s, out, coded);
    };
    for_chunks<N, TWO_PASS_LANES>(view.count, aligned, load, code);
    block_publish(tally, total);
}

/* A range that was given, where one that was measured would be: as the range types gather it. */
template <class Code> static cudaError_t gather_given(const struct codec_call &call, const unit_arrays &units)
{
    float above = call.hi, below = call.lo < 0 ? -call.lo : 0;
    cudaError_t error = cudaMemcpyAsync(units.scale, &above, sizeof(above), cudaMemcpyHostToDevice, call.stream);

    if (Code::has_zero && !error)
        error = cudaMemcpyAsync(units.zero, &below, sizeof(below), cudaMemcpyHostToDevice, call.stream);
    return error;
}

/* The bits of the largest magnitude that lies within on either side. A chunk that does not goes the exact way. */
static inline uint32_t bits_within(const struct codec_call &call)
{
    return element_bits(call.hi < -call.lo ? call.hi : -call.lo) & ELEMENT_ABS; /* -0 is 0 */
}

/* The first pass: what is measured of every unit, where its scale and zero point will be. */
template <class Code, class Raw> static cudaError_t two_pass_measure(const struct codec_call &call)
{
    const struct codec_view &view = call.view;
    const unit_arrays units = {call.scale, call.zero};
    const unsigned threads = TWO_PASS_THREADS;
    uint64_t blocks = chunk_blocks(view.count, threads, TWO_PASS_LANES * Code::template elements<Raw>);
    cudaError_t error;

    if ((error = cudaMemsetAsync(units.scale, 0, view.units * sizeof(*units.scale), call.stream)) ||
        (Code::has_zero && (error = cudaMemsetAsync(units.zero, 0, view.units * sizeof(*units.zero), call.stream))))
        return error;
    if (call.ranged)
        return gather_given<Code>(call, units);
    if (view.count && view.units == 1)
        return launch_few(measure_one<Code, Raw>, blocks, threads, call.stream, call.in, units, view.count, call.aligned);
    if (columns_fit<Code, Raw>(call))
        return columns_measure<Code, Raw>(call);
    return view.count ? launch_few(measure_many<Code, Raw>, blocks, threads, call.stream, call.in, units, view, call.aligned)
                      : cudaSuccess;
}

template <class Code, class Raw> static cudaError_t two_pass_encode(const struct codec_call &call)
{
    const struct codec_view &view = call.view;
    const unit_arrays units = {call.scale, call.zero};
    const unsigned threads = TWO_PASS_THREADS;
    uint64_t blocks = chunk_blocks(view.count, threads, TWO_PASS_LANES * Code::template elements<Raw>);

    if (view.units == 0)
        return cudaSuccess;
    cudaError_t error = two_pass_measure<Code, Raw>(call);
    if (error)
        return error;
    error = launch_few(params_of_ranges<Code>, view.units / threads + 1, threads, call.stream, units, view.units);
    if (error || !view.count)
        return error;
    if (columns_fit<Code, Raw>(call))
        return columns_encode<Code, Raw>(call);
    return launch_few(view.units == 1 ? encode_units<Code, Raw, ONE_UNIT> : encode_units<Code, Raw, ANY_UNITS>,
                      blocks, threads, call.stream, call.in, call.out, units, view, call.aligned,
                      call.ranged ? bits_within(call) : NO_RANGE, call.lo, call.hi, call.tally);
}
