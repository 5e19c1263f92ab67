/* For channels that are columns: the tensor's last axis. A thread stays with the columns of one chunk and goes down a slab
 * of rows, so that what belongs to a column stays in registers, and a warp reads whole lines. */
#pragma once

#include "kernels/launch.cuh"
#include "kernels/quality.cuh"
#include "kernels/unit.cuh"

#define COLUMNS_THREADS 128u
#define COLUMNS_LANES 4u    /* rows on their way at a time */
#define COLUMNS_BUSY 2048u /* threads a multiprocessor: the rows are cut into slabs for as many */

struct columns {
    uint64_t columns, rows; /* of the tensor as a matrix */
    uint64_t slab;          /* rows of one */
};

/* Rows start with a whole chunk. Codes that are not bytes have no channels. */
template <class Code, class Raw> static inline bool columns_fit(const struct codec_call &call)
{
    constexpr unsigned elements = Code::template elements<Raw>;
    const struct codec_view &view = call.view;

    return Code::bits == 8 && view.count && call.aligned && view.row == 1 && view.period > 1 &&
           view.period < view.rows && view.period % elements == 0;
}

/* Goes over the chunks of the columns from `column` on, rows [from, to): first(k, at) and second(k, at), as for_chunks. */
template <class First, class Second>
static __device__ __forceinline__ void go_down(const columns &c, uint64_t column, uint64_t from, uint64_t to, First first,
                                               Second second)
{
    uint64_t at = from * c.columns + column;

    for (; to - from >= COLUMNS_LANES; from += COLUMNS_LANES, at += COLUMNS_LANES * c.columns) {
#pragma unroll
        for (unsigned k = 0; k < COLUMNS_LANES; k++)
            first(k, at + k * c.columns);
#pragma unroll
        for (unsigned k = 0; k < COLUMNS_LANES; k++)
            second(k, at + k * c.columns);
    }
    for (; from < to; from++, at += c.columns) {
        first(0, at);
        second(0, at);
    }
}

/* For every slab and chunk of columns that is this thread's: each(column, from, to). */
template <unsigned N, class Each> static __device__ __forceinline__ void for_slabs(const columns &c, Each each)
{
    const uint64_t across = c.columns / N, all = across * ((c.rows - 1) / c.slab + 1);

    for (uint64_t i = global_thread(); i < all; i += global_threads()) {
        uint64_t from = i / across * c.slab, left = c.rows - from;

        each(i % across * N, from, from + (left < c.slab ? left : c.slab));
    }
}

template <class Code, class Raw>
static __global__ void __launch_bounds__(COLUMNS_THREADS) measure_columns(const void *in, unit_arrays units, columns c)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;

    for_slabs<N>(c, [&](uint64_t column, uint64_t from, uint64_t to) {
        typename Code::range range[N];
        chunk<word, N> raw[COLUMNS_LANES];

        go_down(c, column, from, to, [&](unsigned k, uint64_t at) { raw[k] = span_load<word>(span<N>(at), in); },
                [&](unsigned k, uint64_t) {
                    float x[N];

                    chunk_up<Raw, N>(raw[k], x);
#pragma unroll
                    for (unsigned i = 0; i < N; i++)
                        range[i].look(x[i]);
                });
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            range[i].gather(units, column + i);
    });
}

template <class Code, class Raw, unsigned N>
static __device__ __noinline__ exact_chunk<Code, N> columns_exactly(const chunk<typename Raw::word, N> raw,
                                                                    const unit_arrays units, uint64_t column)
{
    exact_chunk<Code, N> exact;

    for (unsigned i = 0; i < N; i++)
        exact.codes.put(i, Code::encode_exact(Raw::up(raw.w[i]), units.at<Code::has_zero>(column + i), exact.tally));
    return exact;
}

template <class Code, class Raw>
static __global__ void __launch_bounds__(COLUMNS_THREADS, 5)
    encode_columns(const void *in, void *out, unit_arrays units, columns c, struct codec_tally *total)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;
    thread_tally tally;

    for_slabs<N>(c, [&](uint64_t column, uint64_t from, uint64_t to) {
        own_units<typename Code::unit, N> own;
        chunk<word, N> raw[COLUMNS_LANES];

#pragma unroll
        for (unsigned i = 0; i < N; i++)
            own.unit[i] = Code::of(units.at<Code::has_zero>(column + i));
        go_down(c, column, from, to, [&](unsigned k, uint64_t at) { raw[k] = span_load<word>(span<N>(at), in); },
                [&](unsigned k, uint64_t at) {
                    few_tally few;
                    packed<Code::bits, N> codes = Code::template encode<Raw, N>(raw[k], own, few);

                    if (few.holds()) {
                        tally.few(few);
                    } else {
                        exact_chunk<Code, N> exact = columns_exactly<Code, Raw, N>(raw[k], units, column);

                        tally.join(exact.tally);
                        codes = exact.codes;
                    }
                    packed_store(span<N>(at), out, codes);
                });
    });
    block_publish(tally, total);
}

template <class Code, class Raw>
static __global__ void __launch_bounds__(COLUMNS_THREADS)
    decode_columns(const void *in, void *out, unit_arrays units, columns c)
{
    typedef typename Raw::word word;
    constexpr unsigned N = Code::template elements<Raw>;

    for_slabs<N>(c, [&](uint64_t column, uint64_t from, uint64_t to) {
        unit_params own[N];
        packed<Code::bits, N> codes[COLUMNS_LANES];

#pragma unroll
        for (unsigned i = 0; i < N; i++)
            own[i] = units.at<Code::has_zero>(column + i);
        go_down(c, column, from, to, [&](unsigned k, uint64_t at) { codes[k] = packed_load<Code::bits>(span<N>(at), in); },
                [&](unsigned k, uint64_t at) {
                    chunk<word, N> raw;

#pragma unroll
                    for (unsigned i = 0; i < N; i++)
                        raw.w[i] = Raw::down(Code::value(codes[k].get(i), own[i]));
                    span_store(span<N>(at), out, raw);
                });
    });
}

/* The tensor as a matrix, and the blocks that go over it. */
static cudaError_t columns_cut(const struct codec_call &call, unsigned elements, columns &c, uint64_t &blocks)
{
    int device, processors;
    cudaError_t error;

    if ((error = cudaGetDevice(&device)) ||
        (error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)))
        return error;
    c.columns = call.view.period;
    c.rows = call.view.rows / call.view.period;
    uint64_t across = c.columns / elements, slabs = (uint64_t)processors * COLUMNS_BUSY / across + 1;
    c.slab = c.rows / slabs + 1;
    blocks = chunk_blocks(across * ((c.rows - 1) / c.slab + 1), COLUMNS_THREADS, 1);
    return cudaSuccess;
}

template <class Code, class Raw> static cudaError_t columns_measure(const struct codec_call &call)
{
    columns c;
    uint64_t blocks;
    cudaError_t error = columns_cut(call, Code::template elements<Raw>, c, blocks);

    return error ? error
                 : launch_few(measure_columns<Code, Raw>, blocks, COLUMNS_THREADS, call.stream, call.in,
                              unit_arrays{call.scale, call.zero}, c);
}

template <class Code, class Raw> static cudaError_t columns_encode(const struct codec_call &call)
{
    columns c;
    uint64_t blocks;
    cudaError_t error = columns_cut(call, Code::template elements<Raw>, c, blocks);

    return error ? error
                 : launch_few(encode_columns<Code, Raw>, blocks, COLUMNS_THREADS, call.stream, call.in, call.out,
                              unit_arrays{call.scale, call.zero}, c, call.tally);
}

template <class Code, class Raw> static cudaError_t columns_decode(const struct codec_call &call)
{
    columns c;
    uint64_t blocks;
    cudaError_t error = columns_cut(call, Code::template elements<Raw>, c, blocks);

    return error ? error
                 : launch_few(decode_columns<Code, Raw>, blocks, COLUMNS_THREADS, call.stream, call.in, call.out,
                              unit_arrays{call.scale, call.zero}, c);
}
