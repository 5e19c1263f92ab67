/* Codes that have units, back to floats. */
#pragma once

#include "kernels/columns.cuh"
#include "kernels/launch.cuh"
#include "kernels/unit.cuh"

#define DECODE_THREADS 256u
#define DECODE_LANES 2u

template <class Code, class Raw, enum unit_layout UNITS>
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_units(const void *in, void *out, unit_arrays units, struct codec_view view, bool aligned)
{
    constexpr unsigned N = Code::template elements<Raw>;
    packed<Code::bits, N> coded[DECODE_LANES];

    auto load = [&](unsigned k, span<N> s) { coded[k] = packed_load<Code::bits>(s, in); };
    auto convert = [&](unsigned k, span<N> s) {
        chunk<typename Raw::word, N> raw;
        struct codec_walk walk;
        uint64_t unit;

        if (unit_at<UNITS>(view, s.at, s.past, unit, walk)) {
            raw = Code::template decode<Raw, N>(coded[k], units.at<Code::has_zero>(unit));
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                if (i >= s.past)
                    break;
                raw.w[i] = Raw::down(Code::value(coded[k].get(i), units.at<Code::has_zero>(walk.unit)));
                codec_walk_step(&view, &walk);
            }
        }
        span_store(s, out, raw);
    };
    for_chunks<N, DECODE_LANES>(view.count, aligned, load, convert);
}

template <class Code, class Raw> static cudaError_t unit_decode(const struct codec_call &call)
{
    constexpr unsigned N = Code::template elements<Raw>;
    const struct codec_view &view = call.view;
    auto *kernel = decode_units<Code, Raw, ANY_UNITS>;

    if (!view.count)
        return cudaSuccess;
    if (columns_fit<Code, Raw>(call))
        return columns_decode<Code, Raw>(call);
    switch (unit_layout_of(view, N)) {
    case ONE_UNIT:
        kernel = decode_units<Code, Raw, ONE_UNIT>;
        break;
    case EVEN_UNITS:
        kernel = decode_units<Code, Raw, EVEN_UNITS>;
        break;
    case ANY_UNITS:
        break;
    }
    return launch_all(kernel, chunk_blocks(view.count, DECODE_THREADS, DECODE_LANES * N), DECODE_THREADS,
                      call.stream, call.in, call.out, unit_arrays{call.scale, call.zero}, view, call.aligned);
}
