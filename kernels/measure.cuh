/* Codes that have units, beside the original: the second half of a tally, whatever kernel encoded them. */
#pragma once

#include "kernels/launch.cuh"
#include "kernels/quality.cuh"
#include "kernels/unit.cuh"

#define MEASURE_THREADS 256u
#define MEASURE_LANES 2u

/* Where nothing is given nothing is clipped, but with a scale that is subnormal; the reference tells. */
template <class Code> static __device__ __noinline__ bool is_clipped(float x, const unit_params params)
{
    thread_tally tally;

    Code::encode_exact(x, params, tally);
    return tally.clipped != 0;
}

/* Of a scale with which nothing is clipped, and whose codes' squares are far from binary32's ends. */
static __device__ __forceinline__ bool is_plain(float scale)
{
    return scale >= 0x1p-50f && scale <= 0x1p+40f;
}

template <class Code, class Raw, enum unit_layout UNITS>
static __global__ void __launch_bounds__(MEASURE_THREADS)
    measure_units(const void *in, const void *coded, unit_arrays units, struct codec_view view, bool aligned, float lo,
                  float hi, struct codec_tally *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;
    chunk<word, N> raw[MEASURE_LANES];
    packed<Code::bits, N> codes[MEASURE_LANES];
    thread_quality<Raw> quality(total);
    const uint32_t within = __float_as_uint(fminf(hi, -lo)) & ELEMENT_ABS; /* -0 is 0 */

    auto load = [&](unsigned k, span<N> s) {
        raw[k] = span_load<word>(s, in);
        codes[k] = packed_load<Code::bits>(s, coded);
    };
    auto compare = [&](unsigned k, span<N> s) {
        struct codec_walk walk;
        uint64_t unit;
        bool one = unit_at<UNITS>(view, s.at, s.past, unit, walk);
        unit_params params = units.at<Code::has_zero>(unit);

        if (s.past == N && chunk_within<Code, Raw, N>(raw[k], within, lo, hi)) {
            bool plain = is_plain(params.scale);
            float stored[N];

            if (one) {
                Code::template values<N>(codes[k], params, stored);
            } else {
                struct codec_walk along = walk;
#pragma unroll
                for (unsigned i = 0; i < N; i++) {
                    unit_params own = units.at<Code::has_zero>(along.unit);

                    plain = plain && is_plain(own.scale);
                    stored[i] = Code::value(codes[k].get(i), own);
                    codec_walk_step(&view, &along);
                }
            }
            if (plain && quality.template add_chunk<false, N>(raw[k], stored))
                return;
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if (i >= s.past)
                break;
            if (!one)
                params = units.at<Code::has_zero>(walk.unit);
            float x = Raw::up(raw[k].w[i]);
            bool may_clip = params.scale < __uint_as_float(ELEMENT_LEAST) || x > hi || x < lo;
            bool clipped = may_clip && is_clipped<Code>(x, params);

            quality.add(x, Code::value(codes[k].get(i), params), clipped);
            if (!one)
                codec_walk_step(&view, &walk);
        }
    };
    for_chunks<N, MEASURE_LANES>(view.count, aligned, load, compare, [&] { quality.share(); });
    quality.publish_block(total);
}

template <class Code, class Raw> static cudaError_t unit_measure(const struct codec_call &call)
{
    constexpr unsigned N = Code::template elements<Raw>;
    const struct codec_view &view = call.view;
    auto *kernel = measure_units<Code, Raw, ANY_UNITS>;
    const float most = element_float(ELEMENT_MAX);

    if (!view.count)
        return cudaSuccess;
    switch (unit_layout_of(view, N)) {
    case ONE_UNIT:
        kernel = measure_units<Code, Raw, ONE_UNIT>;
        break;
    case EVEN_UNITS:
        kernel = measure_units<Code, Raw, EVEN_UNITS>;
        break;
    case ANY_UNITS:
        break;
    }
    return launch_few(kernel, chunk_blocks(view.count, MEASURE_THREADS, MEASURE_LANES * N), MEASURE_THREADS,
                      call.stream, call.in, (const void *)call.out, unit_arrays{call.scale, call.zero}, view,
                      call.aligned, call.ranged ? call.lo : -most, call.ranged ? call.hi : most, call.tally);
}
