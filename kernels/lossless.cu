/* bf16-lossless: a warp has a block, each thread of it a lane. What reads elements reads them twice where it must know how
 * many bits came before: the second time they are near. */
#include "kernels/launch.cuh"
#include "kernels/lossless.h"
#include "kernels/tally.cuh"

#define THREADS 256u
#define WARPS (THREADS / WARP)
#define SCANNERS 1024u

static_assert(LOSSLESS_LANES == WARP && LOSSLESS_RUN == 8, "a thread a lane, and a run in two words of bytes");

struct tensor {
    const uint16_t *elements;
    uint64_t n;
    bool aligned; /* runs of 8 are vectors */
};

/* Of a block: where it begins, and how many elements it has. */
struct span {
    uint64_t at;
    uint32_t n;
};

static __device__ __forceinline__ span span_of(uint64_t block, uint64_t n)
{
    uint64_t at = block * LOSSLESS_BLOCK, left = n - at;

    return {at, left < LOSSLESS_BLOCK ? (uint32_t)left : LOSSLESS_BLOCK};
}

/* Eight elements, or as many as there are; the others are 0. */
struct run {
    uint32_t pair[4];
    uint32_t n;

    __device__ __forceinline__ run(const tensor &t, uint64_t at, uint32_t left) : n(min(left, LOSSLESS_RUN))
    {
        if (t.aligned && n == LOSSLESS_RUN) {
            const uint4 all = *reinterpret_cast<const uint4 *>(t.elements + at);
            pair[0] = all.x, pair[1] = all.y, pair[2] = all.z, pair[3] = all.w;
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < LOSSLESS_RUN; i += 2)
            pair[i / 2] = (i < n ? t.elements[at + i] : 0u) | (i + 1 < n ? (uint32_t)t.elements[at + i + 1] << 16 : 0u);
    }
    __device__ __forceinline__ uint32_t element(uint32_t i) const
    {
        return pair[i / 2] >> i % 2 * 16 & 0xffffu;
    }
};

/* Runs of a lane. */
#define EACH_RUN(at, lane, elements)                                                                               \
    for (uint32_t at = (lane) * LOSSLESS_RUN; at < (elements); at += LOSSLESS_STEP)

static __device__ __forceinline__ uint32_t word_of(const uint32_t byte[4])
{
    return byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
}

/* ---- Measuring ---- */

static __global__ void __launch_bounds__(THREADS) count(tensor t, unsigned long long *counts)
{
    __shared__ uint32_t bins[WARPS][256];
    uint32_t *mine = bins[threadIdx.x / WARP];
    uint64_t stride = (uint64_t)gridDim.x * THREADS * LOSSLESS_RUN;

    for (uint32_t w = 0; w < WARPS; w++)
        bins[w][threadIdx.x] = 0;
    __syncthreads();
    for (uint64_t at = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * LOSSLESS_RUN; at < t.n; at += stride) {
        const run some(t, at, (uint32_t)min(t.n - at, (uint64_t)LOSSLESS_RUN));
        for (uint32_t i = 0; i < some.n; i++)
            atomicAdd(&mine[lossless_symbol(some.element(i))], 1u);
    }
    __syncthreads();
    uint32_t all = 0;
    for (uint32_t w = 0; w < WARPS; w++)
        all += bins[w][threadIdx.x];
    if (all)
        atomicAdd(&counts[threadIdx.x], (unsigned long long)all);
}

/* Bits of this thread's lane; `words` of the whole block, in every thread. */
static __device__ __forceinline__ uint32_t lane_bits(const tensor &t, const span &block, const uint8_t length[256],
                                                     uint32_t *words)
{
    uint32_t bits = 0, plain = lossless_plain_words(block.n);
    bool coded = true;

    EACH_RUN(at, threadIdx.x % WARP, block.n)
    {
        const run some(t, block.at + at, block.n - at);
        for (uint32_t i = 0; i < some.n; i++) {
            uint32_t one = length[lossless_symbol(some.element(i))];
            bits += one;
            coded &= one != 0;
        }
    }
    uint32_t all = lossless_coded_words(__reduce_add_sync(FULL_WARP, bits));
    *words = __all_sync(FULL_WARP, coded) && all < plain ? all : plain;
    return bits;
}

static __global__ void __launch_bounds__(THREADS) measure(tensor t, lossless_code code, uint32_t *words)
{
    __shared__ uint8_t length[256];
    uint64_t blocks = lossless_blocks(t.n);
    uint32_t more;

    length[threadIdx.x] = code.length[threadIdx.x];
    __syncthreads();
    for (uint64_t b = (uint64_t)blockIdx.x * WARPS + threadIdx.x / WARP; b < blocks; b += (uint64_t)gridDim.x * WARPS) {
        lane_bits(t, span_of(b, t.n), length, &more);
        if (threadIdx.x % WARP == 0)
            words[b] = more;
    }
}

static tensor tensor_of(const void *elements, uint64_t n)
{
    return {static_cast<const uint16_t *>(elements), n, reinterpret_cast<uintptr_t>(elements) % 16 == 0};
}

static uint64_t grid_of(uint64_t n)
{
    return (lossless_blocks(n) + WARPS - 1) / WARPS;
}

int lossless_count_cuda(const void *elements, uint64_t n, uint64_t *counts, void *stream)
{
    if (!n)
        return 0;
    return launch_few(count, grid_of(n), THREADS, static_cast<cudaStream_t>(stream), tensor_of(elements, n),
                      reinterpret_cast<unsigned long long *>(counts));
}

int lossless_words_cuda(const void *elements, uint64_t n, const struct lossless_code *code, uint32_t *words,
                        void *stream)
{
    return n ? launch_all(measure, grid_of(n), THREADS, static_cast<cudaStream_t>(stream), tensor_of(elements, n),
                          *code, words)
             : cudaSuccess;
}

/* ---- Encoding: how many words each block has, where each ends, and then all of them ---- */

/* By one block: each becomes the sum of all up to it. */
static __global__ void __launch_bounds__(SCANNERS) add_up(uint32_t *words, uint64_t n)
{
    __shared__ uint32_t warps[WARP];
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, before = 0;

    for (uint64_t from = 0; from < n; from += SCANNERS) {
        uint64_t i = from + threadIdx.x;
        uint32_t sum = i < n ? words[i] : 0;
        for (uint32_t o = 1; o < WARP; o <<= 1) {
            uint32_t other = __shfl_up_sync(FULL_WARP, sum, o);
            sum += lane >= o ? other : 0;
        }
        if (lane == WARP - 1)
            warps[warp] = sum;
        __syncthreads();
        uint32_t all = 0;
        for (uint32_t w = 0; w < WARP; w++) {
            sum += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < n)
            words[i] = before + sum;
        before += all;
        __syncthreads();
    }
}

struct stream {
    unsigned char *bytes;
    uint64_t low_at, blocks_at, room; /* words */
};

/* What lies between the parts, and in front of them. */
static __device__ void put_header(const stream &s, uint64_t n, const lossless_encoder &encoder)
{
    uint32_t i = threadIdx.x;

    if (i < LOSSLESS_LENGTHS)
        reinterpret_cast<uint16_t *>(s.bytes)[i] = encoder.codewords[i];
    s.bytes[2 * LOSSLESS_LENGTHS + i] = encoder.symbol[i];
    if (LOSSLESS_HEADER + 4 * lossless_blocks(n) + i < s.low_at)
        s.bytes[LOSSLESS_HEADER + 4 * lossless_blocks(n) + i] = 0;
    if (s.low_at + n + i < s.blocks_at)
        s.bytes[s.low_at + n + i] = 0;
}

static __device__ __forceinline__ void put_plain(const run &some, uint32_t *words, uint32_t at)
{
    uint32_t byte[LOSSLESS_RUN];

#pragma unroll
    for (uint32_t i = 0; i < LOSSLESS_RUN; i++)
        byte[i] = lossless_symbol(some.element(i));
    words[at / 4] = word_of(byte); /* behind the last element zeros */
    if (some.n > 4)
        words[at / 4 + 1] = word_of(byte + 4);
}

static __device__ __forceinline__ void put_low(const run &some, unsigned char *low)
{
    uint32_t byte[LOSSLESS_RUN];

#pragma unroll
    for (uint32_t i = 0; i < LOSSLESS_RUN; i++)
        byte[i] = lossless_low(some.element(i));
    if (some.n == LOSSLESS_RUN)
        *reinterpret_cast<uint2 *>(low) = make_uint2(word_of(byte), word_of(byte + 4));
    else
        for (uint32_t i = 0; i < some.n; i++)
            low[i] = (unsigned char)byte[i];
}

struct encoding {
    const uint8_t *length;
    const uint16_t *codeword;
};

/* The lane's bits into the block's, all 0 before: neighbours share words. */
static __device__ __forceinline__ void put_bits(const tensor &t, const span &block, const encoding &by, uint32_t start,
                                                uint32_t *bits)
{
    uint32_t word = start / 32, have = start % 32;
    uint64_t held = 0;

    EACH_RUN(at, threadIdx.x % WARP, block.n)
    {
        const run some(t, block.at + at, block.n - at);
        for (uint32_t i = 0; i < some.n; i++) {
            uint32_t symbol = lossless_symbol(some.element(i));
            held |= (uint64_t)by.codeword[symbol] << have;
            have += by.length[symbol];
            if (have >= 32) {
                atomicOr(&bits[word++], (uint32_t)held);
                held >>= 32;
                have -= 32;
            }
        }
    }
    if (held)
        atomicOr(&bits[word], (uint32_t)held);
}

static __device__ __forceinline__ uint32_t before_lane(uint32_t bits)
{
    uint32_t lane = threadIdx.x % WARP, sum = bits;

    for (uint32_t o = 1; o < WARP; o <<= 1) {
        uint32_t other = __shfl_up_sync(FULL_WARP, sum, o);
        sum += lane >= o ? other : 0;
    }
    return sum - bits;
}

/* staged: of the warp, for as many words as a coded block may have. */
static __device__ void put_coded(const tensor &t, const span &block, const encoding &by, uint32_t words, uint32_t bits,
                                 uint32_t *staged, uint32_t *to)
{
    uint32_t lane = threadIdx.x % WARP, start = before_lane(bits);

    for (uint32_t i = lane; i < words - LOSSLESS_STARTS; i += WARP)
        staged[i] = 0;
    __syncwarp();
    put_bits(t, block, by, start, staged);
    __syncwarp();
    reinterpret_cast<uint16_t *>(to)[lane] = (uint16_t)start;
    for (uint32_t i = lane; i < words - LOSSLESS_STARTS; i += WARP)
        to[LOSSLESS_STARTS + i] = staged[i];
    __syncwarp();
}

static __global__ void __launch_bounds__(THREADS)
    encode(tensor t, lossless_encoder encoder, stream s, uint32_t exponent, codec_tally *tally)
{
    __shared__ uint8_t length[256];
    __shared__ uint16_t codeword[256];
    __shared__ uint32_t staged[WARPS][LOSSLESS_BLOCK / 4];
    const uint32_t *end = reinterpret_cast<const uint32_t *>(s.bytes + LOSSLESS_HEADER);
    uint32_t *blocks = reinterpret_cast<uint32_t *>(s.bytes + s.blocks_at);
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, words;
    thread_tally mine;
    unsigned nans = 0;

    length[threadIdx.x] = encoder.length[threadIdx.x];
    codeword[threadIdx.x] = encoder.codeword[threadIdx.x];
    __syncthreads();
    if (blockIdx.x == 0)
        put_header(s, t.n, encoder);
    for (uint64_t b = (uint64_t)blockIdx.x * WARPS + warp; b < lossless_blocks(t.n); b += (uint64_t)gridDim.x * WARPS) {
        const span block = span_of(b, t.n);
        uint32_t start = b ? end[b - 1] : 0, bits = lane_bits(t, block, length, &words);
        bool fits = (uint64_t)start + words <= s.room, plain = words == lossless_plain_words(block.n);

        EACH_RUN(at, lane, block.n)
        {
            const run some(t, block.at + at, block.n - at);
            put_low(some, s.bytes + s.low_at + block.at + at);
            for (uint32_t i = 0; i < some.n; i++) {
                mine.nonfinite += (some.element(i) & exponent) == exponent;
                nans += (some.element(i) & 0x7fffu) > exponent;
            }
            if (fits && plain)
                put_plain(some, blocks + start, at);
        }
        if (fits && !plain)
            put_coded(t, block, {length, codeword}, words, bits, staged[warp], blocks + start);
        if (!fits && lane == 0)
            atomicOr(&tally->overflow, 1u);
    }
    block_publish(mine, tally);
    nans = __reduce_add_sync(FULL_WARP, nans);
    if (lane == 0 && nans)
        atomicAdd(reinterpret_cast<unsigned long long *>(&tally->nans), (unsigned long long)nans);
}

int lossless_encode_cuda(const struct codec_job *job, struct codec_tally *tally, cudaStream_t on)
{
    uint64_t n = codec_view_of(job).count, blocks_at = lossless_blocks_at(n);
    const tensor t = tensor_of(job->raw_in, n);
    const uint32_t overflow = 1, exponent = job->dtype == HBM_BF16 ? 0x7f80 : 0x7c00;
    lossless_encoder encoder;
    cudaError_t error;

    if (job->data_bytes < blocks_at)
        return cudaMemcpyAsync(&tally->overflow, &overflow, sizeof(overflow), cudaMemcpyHostToDevice, on);
    const stream s = {static_cast<unsigned char *>(job->data), lossless_low_at(n), blocks_at,
                      (job->data_bytes - blocks_at) / 4};
    uint32_t *end = reinterpret_cast<uint32_t *>(s.bytes + LOSSLESS_HEADER);
    lossless_encoder_of(job->code, &encoder);
    if (n && ((error = launch_all(measure, grid_of(n), THREADS, on, t, *job->code, end)) ||
              (error = launch_all(add_up, 1, SCANNERS, on, end, lossless_blocks(n)))))
        return error;
    return launch_few(encode, n ? grid_of(n) : 1, THREADS, on, t, encoder, s, exponent, tally);
}

/* ---- Decoding: of a stream that may be anything ---- */

/* A lane's place in its block's bits, behind which there are zeros. */
struct reader {
    const uint32_t *bits;
    uint32_t words, next;
    uint32_t now, then, later; /* words; the last is on its way while the others are decoded */
    uint32_t at;               /* bit of `now` */

    __device__ __forceinline__ uint32_t fetch(uint32_t i) const
    {
        return i < words ? __ldg(bits + i) : 0;
    }
    __device__ __forceinline__ reader(const uint32_t *from, uint32_t n, uint32_t start)
        : bits(from), words(n), next(start / 32 + 3), now(fetch(start / 32)), then(fetch(start / 32 + 1)),
          later(fetch(start / 32 + 2)), at(start % 32)
    {
    }
    __device__ __forceinline__ uint32_t peek() const
    {
        return __funnelshift_r(now, then, at);
    }
    /* By no more than 32. */
    __device__ __forceinline__ void skip(uint32_t n)
    {
        at += n;
        if (at >= 32) {
            now = then;
            then = later;
            later = fetch(next++);
            at -= 32;
        }
    }
};

static __device__ __forceinline__ void decode_run(reader &r, const uint16_t *entry, uint32_t n, uint32_t symbol[8])
{
    if (n < LOSSLESS_RUN) {
        for (uint32_t i = 0; i < LOSSLESS_RUN; i++) {
            uint32_t one = entry[r.peek() & (LOSSLESS_TABLE - 1)];
            symbol[i] = one & 255u;
            r.skip(i < n ? one >> 8 : 0);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < LOSSLESS_RUN; i += 2) {
        uint32_t bits = r.peek(), one = entry[bits & (LOSSLESS_TABLE - 1)];
        uint32_t two = entry[bits >> (one >> 8) & (LOSSLESS_TABLE - 1)];
        symbol[i] = one & 255u;
        symbol[i + 1] = two & 255u;
        r.skip((one >> 8) + (two >> 8));
    }
}

static __device__ __forceinline__ void put_elements(const unsigned char *low, const uint32_t symbol[8], uint32_t n,
                                                    bool aligned, uint16_t *to)
{
    if (n < LOSSLESS_RUN || !aligned) {
        for (uint32_t i = 0; i < n; i++)
            to[i] = (uint16_t)lossless_element(symbol[i], low[i]);
        return;
    }
    const uint2 all = __ldg(reinterpret_cast<const uint2 *>(low));
    uint32_t pair[4];
#pragma unroll
    for (uint32_t i = 0; i < LOSSLESS_RUN; i += 2) {
        uint32_t two = (i < 4 ? all.x : all.y) >> i % 4 * 8;
        pair[i / 2] = lossless_element(symbol[i], two & 255u) | lossless_element(symbol[i + 1], two >> 8 & 255u) << 16;
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

static __device__ __forceinline__ void plain_run(const uint32_t *words, uint32_t at, uint32_t n, uint32_t symbol[8])
{
    uint32_t low = words[at / 4], high = n > 4 ? words[at / 4 + 1] : 0;

#pragma unroll
    for (uint32_t i = 0; i < LOSSLESS_RUN; i++)
        symbol[i] = (i < 4 ? low : high) >> i % 4 * 8 & 255u;
}

static __device__ __forceinline__ void decode_block(const span &block, const uint32_t *words, uint32_t n_words,
                                                    const uint16_t *entry, const unsigned char *low, bool aligned,
                                                    uint16_t *to)
{
    uint32_t lane = threadIdx.x % WARP, plain = lossless_plain_words(block.n), symbol[LOSSLESS_RUN] = {0};

    if (n_words < LOSSLESS_STARTS || n_words >= plain) {
        EACH_RUN(at, lane, block.n)
        {
            uint32_t n = min(block.n - at, LOSSLESS_RUN);
            if (n_words == plain)
                plain_run(words, at, n, symbol);
            put_elements(low + at, symbol, n, aligned, to + at);
        }
        return;
    }
    reader r(words + LOSSLESS_STARTS, n_words - LOSSLESS_STARTS, reinterpret_cast<const uint16_t *>(words)[lane]);
    EACH_RUN(at, lane, block.n)
    {
        uint32_t n = min(block.n - at, LOSSLESS_RUN);
        decode_run(r, entry, n, symbol);
        put_elements(low + at, symbol, n, aligned, to + at);
    }
}

static __global__ void __launch_bounds__(THREADS) decode(stream s, uint16_t *elements, uint64_t n, bool aligned)
{
    __shared__ uint16_t entry[LOSSLESS_TABLE];
    __shared__ uint8_t symbol[256];
    __shared__ lossless_lengths lengths;
    const uint32_t *end = reinterpret_cast<const uint32_t *>(s.bytes + LOSSLESS_HEADER);
    const uint32_t *blocks = reinterpret_cast<const uint32_t *>(s.bytes + s.blocks_at);

    symbol[threadIdx.x] = s.bytes[2 * LOSSLESS_LENGTHS + threadIdx.x];
    if (threadIdx.x == 0)
        lossless_lengths_of(reinterpret_cast<const uint16_t *>(s.bytes), &lengths);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < LOSSLESS_TABLE; i += THREADS)
        entry[i] = lossless_entry(&lengths, symbol, i);
    __syncthreads();
    for (uint64_t b = (uint64_t)blockIdx.x * WARPS + threadIdx.x / WARP; b < lossless_blocks(n);
         b += (uint64_t)gridDim.x * WARPS) {
        uint32_t from = b ? end[b - 1] : 0, to = end[b];
        bool lies_in = from <= to && to <= s.room;
        const span block = span_of(b, n);

        decode_block(block, blocks + (lies_in ? from : 0), lies_in ? to - from : 0, entry, s.bytes + s.low_at + block.at,
                     aligned, elements + block.at);
    }
}

int lossless_decode_cuda(const struct codec_job *job, cudaStream_t on)
{
    uint64_t n = codec_view_of(job).count, blocks_at = lossless_blocks_at(n);
    bool aligned = reinterpret_cast<uintptr_t>(job->raw_out) % 16 == 0;

    if (!n)
        return cudaSuccess;
    if (job->data_bytes < blocks_at)
        return cudaMemsetAsync(job->raw_out, 0, n * sizeof(uint16_t), on);
    const stream s = {static_cast<unsigned char *>(job->data), lossless_low_at(n), blocks_at,
                      (job->data_bytes - blocks_at) / 4};
    return launch_few(decode, grid_of(n), THREADS, on, s, static_cast<uint16_t *>(job->raw_out), n, aligned);
}
