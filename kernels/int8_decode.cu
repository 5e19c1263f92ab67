/* int8 back to floats: code times the scale of its unit. */
#include "kernels/int8.cuh"
#include "kernels/launch.cuh"

#define THREADS 256u
#define LANES 2u

/* Codes as floats: the bytes, their sign turned, as the low bits of 2^23, from which 2^23 + 128 is taken. */
template <unsigned N> static __device__ __forceinline__ void codes_up(const chunk<int8_t, N> &coded, float value[N])
{
    const uint32_t *words = reinterpret_cast<const uint32_t *>(&coded);

#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        uint32_t turned = words[i / 4] ^ 0x80808080u;
        value[i] = element_sub(__uint_as_float(__byte_perm(turned, 0x4b000000u, 0x7440u + i % 4)), 8388736.0f);
    }
}

/* A chunk that shares one scale. Where no code of it can leave the raw type's range, nothing has to be held within.
 */
template <class Raw, unsigned N>
static __device__ __forceinline__ chunk<typename Raw::word, N> decode_chunk(const chunk<int8_t, N> &coded,
                                                                            float scale)
{
    chunk<typename Raw::word, N> raw;
    float code[N];

    codes_up(coded, code);
    if (fabsf(scale) <= __uint_as_float(Raw::most) / 128) {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            raw.w[i] = Raw::down_finite(element_mul(code[i], scale));
    } else {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            raw.w[i] = Raw::down(int8_value((int)code[i], scale));
    }
    return raw;
}

template <class Raw, enum int8_units UNITS>
static __global__ void __launch_bounds__(THREADS)
    decode(const void *in, void *out, const float *scale, struct codec_view view, bool aligned)
{
    constexpr unsigned N = chunk_elements<typename Raw::word, int8_t>;
    chunk<int8_t, N> coded[LANES];

    auto load = [&](unsigned k, span<N> s) { coded[k] = span_load<int8_t>(s, in); };
    auto convert = [&](unsigned k, span<N> s) {
        chunk<typename Raw::word, N> raw;
        struct codec_walk walk;
        uint64_t unit;

        if (int8_unit_at<UNITS>(view, s.at, s.past, unit, walk)) {
            raw = decode_chunk<Raw, N>(coded[k], scale[unit]);
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                if (i >= s.past)
                    break;
                raw.w[i] = Raw::down(int8_value(coded[k].w[i], scale[walk.unit]));
                codec_walk_step(&view, &walk);
            }
        }
        span_store(s, out, raw);
    };
    for_chunks<N, LANES>(view.count, aligned, load, convert);
}

template <class Raw> cudaError_t int8_decode(const struct codec_call &call)
{
    constexpr unsigned N = chunk_elements<typename Raw::word, int8_t>;
    const struct codec_view &view = call.view;
    auto *kernel = decode<Raw, ANY_UNITS>;

    if (!view.count)
        return cudaSuccess;
    switch (int8_units_of(view, N)) {
    case ONE_UNIT:
        kernel = decode<Raw, ONE_UNIT>;
        break;
    case EVEN_UNITS:
        kernel = decode<Raw, EVEN_UNITS>;
        break;
    case ANY_UNITS:
        break;
    }
    return launch_all(kernel, chunk_blocks(view.count, THREADS, LANES * N), THREADS, call.stream, call.in, call.out,
                      (const float *)call.scale, view, call.aligned);
}

template codec_launch int8_decode<f32>;
template codec_launch int8_decode<f16>;
template codec_launch int8_decode<bf16>;
