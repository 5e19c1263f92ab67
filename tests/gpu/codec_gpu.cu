/* The CUDA codecs against the reference, bit for bit. Prints one line a test; 77 where there is no GPU.
 * HBM_TEST_SMALL leaves out what a slow machine could not finish. */
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/codec.h"
#include "kernels/element.h"
#include "kernels/histogram.h"
#include "kernels/lossless.h"
#include "kernels/tally.h"

#define GUARD 256u /* bytes that must stay as they were, before and after every output */
#define POISON 0xa5

static int passed, failed;

static void report(const std::string &sentence, const std::string &why)
{
    if (why.empty())
        printf("ok - %s\n", sentence.c_str());
    else
        printf("FAIL - %s: %s\n", sentence.c_str(), why.c_str());
    fflush(stdout);
    (why.empty() ? passed : failed)++;
}

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* What a case has on the device, one part after the other, guards between them. */
struct layout {
    struct part {
        size_t at, size;
    };
    std::vector<part> parts;
    size_t end = GUARD;

    unsigned add(size_t size, size_t misalign)
    {
        parts.push_back({end + misalign, size});
        end = (end + misalign + size + 2 * GUARD - 1) / GUARD * GUARD;
        return (unsigned)parts.size() - 1;
    }
};

/* One thread's stream and memory: cases run beside each other, since the reference takes its time. */
struct lane {
    cudaStream_t stream = nullptr;
    unsigned char *base = nullptr;
    size_t room = 0;
    layout l;
    std::vector<unsigned char> fetched;

    ~lane()
    {
        cudaFree(base);
        if (stream)
            cudaStreamDestroy(stream);
    }
    cudaError_t start(const layout &of)
    {
        cudaError_t error = cudaSuccess;

        l = of;
        if (!stream && (error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
            return error;
        if (room < l.end) {
            cudaFree(base);
            base = nullptr;
            if ((error = cudaMalloc(&base, l.end)))
                return error;
            room = l.end;
        }
        return cudaMemsetAsync(base, POISON, l.end, stream);
    }
    void *at(unsigned part) const
    {
        return base + l.parts[part].at;
    }
    /* All of it, once the stream is done; names a byte between the parts that was written. */
    std::string fetch()
    {
        size_t from = 0;

        fetched.resize(l.end);
        if (cudaMemcpyAsync(fetched.data(), base, l.end, cudaMemcpyDeviceToHost, stream) ||
            cudaStreamSynchronize(stream))
            return "cannot fetch: " + std::string(cudaGetErrorString(cudaGetLastError()));
        for (unsigned i = 0; i <= l.parts.size(); i++) {
            size_t to = i < l.parts.size() ? l.parts[i].at : l.end;
            for (size_t at = from; at < to; at++)
                if (fetched[at] != POISON)
                    return "wrote outside its output, between parts " + std::to_string((int)i - 1) + " and " +
                           std::to_string(i) + " at " + std::to_string(at - from);
            if (i < l.parts.size())
                from = to + l.parts[i].size;
        }
        return "";
    }
    /* What differs from `expected`, elements of so many bytes. */
    std::string same(const char *what, unsigned part, const void *expected, unsigned element) const
    {
        const unsigned char *ours = fetched.data() + l.parts[part].at;
        const unsigned char *theirs = static_cast<const unsigned char *>(expected);
        size_t size = l.parts[part].size, i = 0;
        unsigned a = 0, b = 0;
        char text[96];

        if (!size || !memcmp(ours, theirs, size))
            return "";
        while (ours[i] == theirs[i])
            i++;
        i -= i % element;
        memcpy(&a, ours + i, element);
        memcpy(&b, theirs + i, element);
        snprintf(text, sizeof(text), "%s %zu is %x, not %x", what, i / element, a, b);
        return text;
    }
};

static bool close(double a, double b, double most)
{
    return a == b || std::fabs(a - b) <= most;
}

static std::string qualities_differ(const hbm_quality &got, const hbm_quality &expected)
{
    char text[300];

    if (close(got.sqnr_inlier_db, expected.sqnr_inlier_db, 4.3e-6) && got.max_rel_error == expected.max_rel_error &&
        got.clipped == expected.clipped && got.zeroed == expected.zeroed && got.nans == expected.nans &&
        got.infinities == expected.infinities && got.lo == expected.lo && got.hi == expected.hi)
        return "";
    snprintf(text, sizeof(text),
             "inliers %.9g dB relative %g zeroed %llu nans %llu range %g %g, not %.9g dB %g %llu %llu %g %g",
             got.sqnr_inlier_db, got.max_rel_error, (unsigned long long)got.zeroed, (unsigned long long)got.nans, got.lo,
             got.hi, expected.sqnr_inlier_db, expected.max_rel_error, (unsigned long long)expected.zeroed,
             (unsigned long long)expected.nans, expected.lo, expected.hi);
    return text;
}

static std::string receipts_differ(const hbm_receipt &got, const hbm_receipt &expected)
{
    char text[200];

    if (got.elements == expected.elements && got.nonfinite == expected.nonfinite &&
        got.clipped_fraction == expected.clipped_fraction && got.max_abs_error == expected.max_abs_error &&
        close(got.sqnr_db, expected.sqnr_db, 4.3e-6))
        return "";
    snprintf(text, sizeof(text), "receipt %.9g dB max %g clipped %g nonfinite %llu, not %.9g %g %g %llu",
             got.sqnr_db, got.max_abs_error, got.clipped_fraction, (unsigned long long)got.nonfinite,
             expected.sqnr_db, expected.max_abs_error, expected.clipped_fraction,
             (unsigned long long)expected.nonfinite);
    return text;
}

/* What has to be known before a codec whose size varies can encode; on the host. */
struct measures {
    std::vector<uint64_t> counts = std::vector<uint64_t>(256);
    std::vector<uint32_t> words;
    lossless_code code;
    uint64_t bytes;

    measures(const uint16_t *elements, uint64_t n) : words(lossless_blocks(n) + 1), bytes(lossless_blocks_at(n))
    {
        lossless_count_host(elements, n, counts.data());
        lossless_code_of(counts.data(), &code);
        lossless_words_host(elements, n, &code, words.data());
        for (uint32_t more : words)
            bytes += 4ull * more;
    }
};

/* The same on the device; returns what differs. */
static std::string compare_measures(lane &on, const measures &expected, const std::vector<unsigned char> &raw, uint64_t n,
                                    unsigned misalign)
{
    layout l;
    unsigned d_raw = l.add(2 * n, 2 * misalign), d_counts = l.add(256 * sizeof(uint64_t), 0);
    unsigned d_words = l.add(lossless_blocks(n) * sizeof(uint32_t), 0);
    int error = on.start(l);

    if (!error)
        error = cudaMemcpyAsync(on.at(d_raw), raw.data(), 2 * n, cudaMemcpyHostToDevice, on.stream);
    if (!error)
        error = cudaMemsetAsync(on.at(d_counts), 0, 256 * sizeof(uint64_t), on.stream);
    if (!error)
        error = lossless_count_cuda(on.at(d_raw), n, static_cast<uint64_t *>(on.at(d_counts)), on.stream);
    if (!error)
        error = lossless_words_cuda(on.at(d_raw), n, &expected.code, static_cast<uint32_t *>(on.at(d_words)), on.stream);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    for (const std::string &why : {on.fetch(), on.same("count (halves)", d_counts, expected.counts.data(), 4),
                                   on.same("words of block", d_words, expected.words.data(), 4)})
        if (!why.empty())
            return why;
    return "";
}

/* A stream in which something is not as it was: both sides make the same of it. */
static std::string compare_damaged(lane &on, codec_job job, std::vector<unsigned char> data, uint64_t n)
{
    std::vector<unsigned char> out(2 * n + 1);
    codec_job host = job;
    layout l;
    unsigned d_data = l.add(job.data_bytes, 0), d_out = l.add(2 * n, 0);
    uint64_t front = LOSSLESS_HEADER + 4 * lossless_blocks(n), r = mix(n + job.data_bytes);

    for (unsigned i = 0; i < 24; i++, r = mix(r))
        data[r % (i % 2 ? front : job.data_bytes)] = (unsigned char)(r >> 40);
    host.data = data.data();
    host.raw_out = out.data();
    codec_decode_host(&host);
    int error = on.start(l);
    if (!error)
        error = cudaMemcpyAsync(on.at(d_data), data.data(), job.data_bytes, cudaMemcpyHostToDevice, on.stream);
    job.data = on.at(d_data);
    job.raw_out = on.at(d_out);
    if (!error)
        error = codec_decode_cuda(&job, on.stream);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    std::string why = on.fetch();
    return why.empty() ? on.same("element of a damaged stream", d_out, out.data(), 2) : why;
}

/* Encodes and decodes `raw` on both sides; returns what differs. */
static std::string compare(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign)
{
    uint64_t count, units, coded;
    unsigned width = hbm_dtype_bits(job.dtype) / 8, stored = (hbm_dtype_bits(job.encoding.stored) + 7) / 8;

    if (!codec_supported(job.dtype, &job.encoding, job.dims, job.rank))
        return "not supported";
    hbm_shape_elements(job.dims, job.rank, &count);
    hbm_shape_bytes(job.dims, job.rank, job.encoding.stored, &coded);
    hbm_encoding_units(&job.encoding, job.dims, job.rank, &units);
    uint64_t scales = hbm_codec_scale_bytes(job.encoding.codec) ? units : 0;
    uint64_t zeros = hbm_codec_zero_bytes(job.encoding.codec) ? units : 0;
    bool varies = hbm_codec_varies(job.encoding.codec);
    measures measured(reinterpret_cast<const uint16_t *>(raw.data()), varies ? count : 0);
    if (varies) {
        std::string why = compare_measures(on, measured, raw, count, misalign);
        if (!why.empty())
            return why;
        job.data_bytes = coded = measured.bytes;
        job.code = &measured.code;
    }

    std::vector<unsigned char> data(coded + 1), out(count * width + 1);
    std::vector<float> scale(scales + 1);
    std::vector<int32_t> zero(zeros + 1);
    codec_job host = job;
    hbm_receipt expected = {}, got = {};
    hbm_quality expected_quality = {}, quality = {};
    codec_tally tally;
    host.raw_in = raw.data();
    host.data = data.data();
    host.scale = scale.data();
    host.zero = zero.data();
    host.raw_out = out.data();
    codec_tally_host(&host, &tally);
    codec_receipt_of(&tally, count, &expected);
    codec_quality_of(&tally, &host.encoding, &expected_quality);
    codec_decode_host(&host);

    layout l;
    unsigned d_raw = l.add(count * width, misalign * width), d_data = l.add(coded, varies ? 0 : misalign * stored);
    unsigned d_out = l.add(count * width, misalign * width), d_scale = l.add(scales * sizeof(float), 0);
    unsigned d_zero = l.add(zeros * sizeof(int32_t), 0);
    unsigned d_work = l.add(codec_workspace_bytes(&job), 0);
    int error = on.start(l);
    if (!error)
        error = cudaMemcpyAsync(on.at(d_raw), raw.data(), count * width, cudaMemcpyHostToDevice, on.stream);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    job.raw_in = on.at(d_raw);
    job.data = on.at(d_data);
    job.scale = scales ? static_cast<float *>(on.at(d_scale)) : nullptr;
    job.zero = zeros ? static_cast<int32_t *>(on.at(d_zero)) : nullptr;
    job.raw_out = on.at(d_out);
    error = codec_encode_cuda(&job, on.at(d_work), on.stream);
    if (!error)
        error = codec_measure_cuda(&job, on.at(d_work), on.stream);
    if (!error)
        error = codec_decode_cuda(&job, on.stream);
    if (!error)
        error = cudaStreamSynchronize(on.stream);
    if (!error)
        error = codec_receipt_cuda(&job, on.at(d_work), &got, &quality);
    if (error)
        return cudaGetErrorString((cudaError_t)error);

    for (const std::string &why :
         {on.fetch(), on.same("original", d_raw, raw.data(), width), on.same("scale", d_scale, scale.data(), 4),
          on.same("zero point", d_zero, zero.data(), 4), on.same("code", d_data, data.data(), stored),
          on.same("decoded element", d_out, out.data(), width), receipts_differ(got, expected),
          qualities_differ(quality, expected_quality)})
        if (!why.empty())
            return why;
    return varies && count && count < 100000 ? compare_damaged(on, job, data, count) : "";
}

enum pattern { NORMAL, ZEROS, SUBNORMAL, BITS, SPECIAL, TIES, PATTERNS };
static const char *const pattern_names[] = {"normal", "zeros", "subnormal", "any bits", "special", "ties"};

static float sample(pattern p, uint64_t i)
{
    static const float specials[] = {0,   -0.0f,    1e-45f,    -1e-39f, 1e-37f,   6e-8f,        3e-5f,
                                     1,   479,      480,       65504,   65520,    -1e30f,       1e30f,
                                     NAN, INFINITY, -INFINITY, 127,     3.39e38f, 3.4028235e38f};
    uint64_t r = mix(i * 31 + p);

    switch (p) {
    case NORMAL: {
        double u = ((double)(r >> 40) + 1) * 0x1p-24, v = (double)(r & 0xffffff) * 0x1p-24;
        return (float)(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    }
    case SUBNORMAL:
        return element_float((uint32_t)(r & 0x800fffff));
    case BITS:
        return element_float((uint32_t)r);
    case SPECIAL: /* mostly ordinary, or the largest would leave every other code at 0 */
        return r % 7 ? (float)(r >> 32) * 0x1p-30f : specials[(r >> 8) % (sizeof(specials) / sizeof(float))];
    case TIES:
        return r % 64 ? ((float)(r >> 8 & 0xff) - 127.5f) * 0.5f : 127;
    default:
        return 0;
    }
}

/* After so many, no multiple of any vector or group, they come again. */
#define PERIOD 1000003u

static std::vector<unsigned char> samples(unsigned dtype, pattern p, uint64_t count)
{
    unsigned width = hbm_dtype_bits(dtype) / 8;
    std::vector<unsigned char> raw(count * width + 1);

    for (uint64_t i = 0; i < count && i < PERIOD; i++) {
        uint32_t bits = element_bits(sample(p, i));
        uint16_t half = p == BITS          ? (uint16_t)mix(i)
                        : dtype == HBM_F16 ? element_f16_down(bits)
                                           : element_bf16_down(bits);
        memcpy(&raw[i * width], dtype == HBM_F32 ? (void *)&bits : (void *)&half, width);
    }
    for (uint64_t i = PERIOD; i < count; i += PERIOD)
        memcpy(&raw[i * width], &raw[0], (count - i < PERIOD ? count - i : PERIOD) * width);
    return raw;
}

struct shape {
    unsigned rank;
    uint64_t dims[4];
    bool large;
};

static const shape shapes[] = {
    {0, {}, false},           {1, {0}, false},          {1, {1}, false},           {1, {31}, false},
    {1, {255}, false},        {1, {4097}, false},       {1, {1000003}, true},      {3, {3, 5, 7}, false},
    {2, {3, 0}, false},       {2, {0, 3}, false},       {2, {1, 1000003}, true},   {2, {1000003, 1}, true},
    {2, {4096, 4097}, true},  {2, {64, 512}, false},    {2, {5, 20000}, false},    {2, {2, 40001}, false},
    {2, {1030, 33000}, true}, {3, {6, 40, 24}, false},  {4, {2, 3, 5, 64}, false}, {3, {700, 3, 9}, false},
    {2, {19, 1001}, false},   {3, {2, 3, 4096}, false}, {2, {1024, 1920}, true},
};

/* Of large shapes every fourth. */
static const unsigned groups[] = {1, 3, 8, 32, 128, 100, 2048, 5000, 1u << 20};

/* One sentence of the report: a codec, a dtype and a granularity, over all shapes and patterns. */
struct sentence {
    std::string text, why;
};

struct test_case {
    sentence *of;
    codec_job job;
    pattern p;
    unsigned misalign;
    bool large;
};

struct suite {
    std::deque<sentence> sentences;
    std::vector<test_case> cases;
    std::atomic<size_t> next{0};
    std::mutex lock; /* of what sentences say went wrong */
};

static std::string place(const test_case &c)
{
    std::string where;

    for (unsigned k = 0; k < c.job.rank; k++)
        where += (k ? "x" : "") + std::to_string(c.job.dims[k]);
    return " (shape " + where + ", " + pattern_names[c.p] + ", axis " + std::to_string(c.job.encoding.axis) +
           ", group " + std::to_string(c.job.encoding.group) + (c.misalign ? ", misaligned)" : ")");
}

/* most: of a range that is given; 0: none is. */
static void add_combination(suite &all, unsigned codec, unsigned dtype, unsigned granularity, float most, bool small)
{
    static const char *const granularities[] = {"per tensor", "per channel", "per group"};

    all.sentences.push_back({std::string(hbm_codec_name(codec)) + " " + granularities[granularity] + " of " +
                                 hbm_dtype_name(dtype) + (most ? ", clipped," : "") + " agrees with the reference",
                             ""});
    for (const shape &s : shapes) {
        uint64_t count;
        unsigned cuts = granularity == HBM_PER_TENSOR    ? 1
                        : granularity == HBM_PER_CHANNEL ? s.rank
                        : s.rank                         ? sizeof(groups) / sizeof(*groups)
                                                         : 0;
        unsigned step = s.large && granularity == HBM_PER_GROUP ? 4 : 1;

        hbm_shape_elements(s.dims, s.rank, &count);
        if (small && s.large)
            continue;
        for (int p = 0; p < PATTERNS; p++) {
            if (s.large && p != NORMAL && (p != BITS || count > 2000000))
                continue; /* the reference takes its time */
            for (unsigned cut = 0; cut < cuts; cut += step)
                for (unsigned misalign = 0; misalign < (s.large || p ? 1u : 2u); misalign++) {
                    test_case c = {&all.sentences.back(), {}, (pattern)p, misalign, s.large};
                    memcpy(c.job.dims, s.dims, sizeof(s.dims));
                    c.job.rank = s.rank;
                    c.job.ranged = most > 0;
                    c.job.lo = -most;
                    c.job.hi = most;
                    c.job.dtype = dtype;
                    c.job.encoding.codec = (uint8_t)codec;
                    c.job.encoding.stored = (uint8_t)hbm_codec_stored_dtype(codec);
                    c.job.encoding.granularity = (uint8_t)granularity;
                    c.job.encoding.axis = (uint8_t)(granularity == HBM_PER_CHANNEL ? cut : 0);
                    c.job.encoding.group = granularity == HBM_PER_GROUP ? groups[cut] : 0;
                    all.cases.push_back(c);
                }
        }
    }
}

static void work_on(suite &all)
{
    lane on;

    for (size_t i; (i = all.next++) < all.cases.size();) {
        const test_case &c = all.cases[i];
        uint64_t count;

        hbm_shape_elements(c.job.dims, c.job.rank, &count);
        std::string why = compare(on, c.job, samples(c.job.dtype, c.p, count), c.misalign);
        std::lock_guard<std::mutex> held(all.lock);
        if (!why.empty() && c.of->why.empty())
            c.of->why = why + place(c);
    }
}

/* The large ones first, so that none is left to one thread at the end. */
static void run_suite(suite &all)
{
    unsigned cores = std::thread::hardware_concurrency();
    std::vector<std::thread> threads;

    std::stable_partition(all.cases.begin(), all.cases.end(), [](const test_case &c) { return c.large; });
    for (unsigned i = 0; i < (cores ? cores : 1); i++)
        threads.emplace_back(work_on, std::ref(all));
    for (std::thread &t : threads)
        t.join();
    for (const sentence &s : all.sentences)
        report(s.text, s.why);
}

/* --- more than 2^31 elements: made on the device, checked in windows -------------------------------------------
 */

static __host__ __device__ uint16_t large_element(uint64_t i, uint64_t count)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    if (i == count - 2) /* the amax lies where a 32-bit index never gets */
        return 0x4396;  /* 300 */
    z ^= z >> 29;
    return (uint16_t)((z & 0x8000) | (0x3c00 + (z >> 20 & 0x3ff))); /* 2^-7 .. 2 */
}

static __global__ void fill(uint16_t *out, uint64_t count)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        out[i] = large_element(i, count);
}

static std::string large(unsigned granularity, unsigned group)
{
    const uint64_t window = 1 << 16, count = (1ull << 31) + window + 4099;
    const uint64_t starts[] = {0, (1ull << 31) - window / 2, (1ull << 30) - 5, count - window};
    const uint64_t per = group ? group : count, units = count / per + (count % per != 0);
    codec_job job = {};
    uint16_t *raw = nullptr;
    void *work = nullptr;
    std::string why;

    job.dims[0] = count;
    job.rank = 1;
    job.dtype = HBM_BF16;
    job.encoding.codec = HBM_CODEC_INT8;
    job.encoding.stored = HBM_I8;
    job.encoding.granularity = (uint8_t)granularity;
    job.encoding.group = group;
    if (cudaMalloc(&raw, count * 2) || cudaMalloc(&job.data, count) || cudaMalloc(&job.scale, units * 4) ||
        cudaMalloc(&work, codec_workspace_bytes(&job)))
        why = "no memory";
    if (why.empty()) {
        hbm_receipt receipt = {};
        std::vector<int8_t> codes(window);
        std::vector<uint16_t> back(window);
        std::vector<float> scale(units);

        fill<<<1024, 256>>>(raw, count);
        job.raw_in = raw;
        job.raw_out = raw;
        const char *at = "encode";
        int error = codec_encode_cuda(&job, work, nullptr);
        if (!error && (at = "decode"))
            error = codec_decode_cuda(&job, nullptr);
        if (!error && (at = "synchronize"))
            error = cudaDeviceSynchronize();
        if (!error && (at = "receipt"))
            error = codec_receipt_cuda(&job, work, &receipt, nullptr);
        if (!error && (at = "scale"))
            error = cudaMemcpy(scale.data(), job.scale, units * 4, cudaMemcpyDeviceToHost);
        for (uint64_t start : starts) {
            if (!error && (at = "codes"))
                error = cudaMemcpy(codes.data(), (int8_t *)job.data + start, window, cudaMemcpyDeviceToHost);
            if (!error && (at = "elements"))
                error = cudaMemcpy(back.data(), raw + start, window * 2, cudaMemcpyDeviceToHost);
            for (uint64_t i = start; !error && i < start + window && why.empty(); i++) {
                bool clipped;
                float x = element_float(element_bf16_up(large_element(i, count)));
                int code = int8_code(x, scale[i / per], &clipped);
                uint16_t out = element_bf16_down(element_bits(int8_value(code, scale[i / per])));
                if (codes[i - start] != code || back[i - start] != out)
                    why = "element " + std::to_string(i) + " differs";
            }
        }
        if (error)
            why = std::string(at) + ": " + cudaGetErrorString((cudaError_t)error);
        else if (why.empty() && scale[(count - 2) / per] != int8_scale(300))
            why = "the amax at the end was not seen";
        else if (why.empty() && receipt.elements != count)
            why = "the receipt counts other elements";
    }
    cudaFree(raw);
    cudaFree(job.data);
    cudaFree(job.scale);
    cudaFree(work);
    return why;
}

/* --- histograms ------------------------------------------------------------------------------------------------
 */

static std::string counts_differ(lane &on, const std::vector<unsigned char> &raw, histogram_job job, unsigned misalign)
{
    size_t n = job.within == HISTOGRAM_ALL ? HISTOGRAM_BINS : HISTOGRAM_FINE;
    std::vector<uint64_t> counts(n, 3);
    unsigned width = hbm_dtype_bits(job.dtype) / 8;
    layout l;
    unsigned d_raw = l.add(job.count * width, misalign * width), d_counts = l.add(n * sizeof(uint64_t), 0);
    unsigned d_ends = l.add(sizeof(histogram_ends), 0);
    histogram_ends ends = {}, none = {};

    job.raw = raw.data();
    job.ends = &ends;
    histogram_host(&job, counts.data());
    int error = on.start(l);
    std::vector<uint64_t> three(n, 3); /* it adds to what is there */
    if (!error)
        error = cudaMemcpyAsync(on.at(d_raw), raw.data(), job.count * width, cudaMemcpyHostToDevice, on.stream);
    if (!error)
        error = cudaMemcpyAsync(on.at(d_counts), three.data(), n * sizeof(uint64_t), cudaMemcpyHostToDevice, on.stream);
    if (!error)
        error = cudaMemcpyAsync(on.at(d_ends), &none, sizeof(none), cudaMemcpyHostToDevice, on.stream);
    job.raw = on.at(d_raw);
    job.ends = reinterpret_cast<histogram_ends *>(on.at(d_ends));
    if (!error)
        error = histogram_cuda(&job, static_cast<uint64_t *>(on.at(d_counts)), on.stream);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    std::string why = on.fetch();
    if (why.empty())
        why = on.same("half of a count", d_counts, counts.data(), 4);
    return why.empty() ? on.same("end", d_ends, &ends, 4) : why;
}

static std::string histogram(unsigned dtype)
{
    lane on;

    for (uint64_t count : {0u, 1u, 31u, 4099u, 3000017u})
        for (int p = 0; p < PATTERNS; p++)
            for (uint32_t within : {HISTOGRAM_ALL, 0x3f80u, 0u})
                for (unsigned misalign = 0; misalign < 2; misalign++) {
                    if (within != HISTOGRAM_ALL && dtype != HBM_F32)
                        continue;
                    histogram_job job = {nullptr, count, dtype, within, nullptr};
                    std::string why = counts_differ(on, samples(dtype, (pattern)p, count), job, misalign);
                    if (!why.empty())
                        return why + " (" + std::to_string(count) + " elements, " + pattern_names[p] + ")";
                }
    return "";
}

static __global__ void count_wrong(const uint16_t *got, uint64_t count, unsigned long long *wrong)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        if (got[i] != large_element(i, count))
            atomicAdd(wrong, 1ull);
}

/* Raw in, stream, and out of it into where the raw ones were. */
static std::string large_lossless(void)
{
    const uint64_t n = (1ull << 31) + 70001;
    uint16_t *raw = nullptr;
    uint64_t *counts = nullptr; /* and how many come back wrong */
    uint32_t *words = nullptr;
    void *work = nullptr;
    codec_job job = {};
    lossless_code code;
    std::vector<uint64_t> told(257);
    std::vector<uint32_t> each(lossless_blocks(n));
    hbm_receipt receipt = {};

    job.dims[0] = n;
    job.rank = 1;
    job.dtype = HBM_BF16;
    job.encoding.codec = HBM_CODEC_BF16_LOSSLESS;
    job.encoding.stored = HBM_U8;
    job.code = &code;
    int error = cudaMalloc(&raw, 2 * n);
    if (!error)
        error = cudaMalloc(&counts, told.size() * sizeof(uint64_t));
    if (!error)
        error = cudaMalloc(&words, each.size() * sizeof(uint32_t));
    if (!error)
        error = cudaMalloc(&work, codec_workspace_bytes(&job));
    if (!error)
        error = cudaMemset(counts, 0, told.size() * sizeof(uint64_t));
    if (!error) {
        fill<<<1024, 256>>>(raw, n);
        error = lossless_count_cuda(raw, n, counts, nullptr);
    }
    if (!error)
        error = cudaMemcpy(told.data(), counts, 256 * sizeof(uint64_t), cudaMemcpyDeviceToHost);
    lossless_code_of(told.data(), &code);
    if (!error)
        error = lossless_words_cuda(raw, n, &code, words, nullptr);
    if (!error)
        error = cudaMemcpy(each.data(), words, each.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost);
    job.data_bytes = lossless_blocks_at(n);
    for (uint32_t more : each)
        job.data_bytes += 4ull * more;
    if (!error)
        error = cudaMalloc(&job.data, job.data_bytes);
    job.raw_in = job.raw_out = raw;
    if (!error)
        error = codec_encode_cuda(&job, work, nullptr);
    if (!error)
        error = codec_receipt_cuda(&job, work, &receipt, nullptr);
    if (!error)
        error = cudaMemset(raw, POISON, 2 * n);
    if (!error)
        error = codec_decode_cuda(&job, nullptr);
    if (!error) {
        count_wrong<<<1024, 256>>>(raw, n, (unsigned long long *)counts + 256);
        error = cudaMemcpy(&told[256], counts + 256, sizeof(uint64_t), cudaMemcpyDeviceToHost);
    }
    cudaFree(raw);
    cudaFree(counts);
    cudaFree(words);
    cudaFree(work);
    cudaFree(job.data);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    if (receipt.elements != n)
        return "the receipt counts other elements";
    return told[256] ? std::to_string(told[256]) + " elements are wrong" : "";
}

int main(void)
{
    bool small = getenv("HBM_TEST_SMALL") != nullptr;
    int devices = 0;

    if (cudaGetDeviceCount(&devices) || !devices) {
        printf("waived - there is no GPU here\n");
        return 77;
    }
    const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    suite all;
    for (unsigned codec = HBM_CODEC_RAW + 1; hbm_codec_name(codec); codec++)
        for (unsigned dtype : dtypes)
            for (unsigned granularity = HBM_PER_TENSOR; granularity <= HBM_PER_GROUP; granularity++)
                if (hbm_codec_takes(codec, granularity) && !hbm_codec_varies(codec))
                    add_combination(all, codec, dtype, granularity, 0, small);
    for (unsigned codec : {HBM_CODEC_INT8, HBM_CODEC_FP8_E4M3, HBM_CODEC_FP8_E5M2})
        for (unsigned dtype : dtypes)
            add_combination(all, codec, dtype, HBM_PER_TENSOR, 1.5f, small);
    for (unsigned dtype : {HBM_F16, HBM_BF16})
        add_combination(all, HBM_CODEC_BF16_LOSSLESS, dtype, HBM_PER_TENSOR, 0, small);
    run_suite(all);
    for (unsigned dtype : dtypes)
        report(std::string("the histogram of ") + hbm_dtype_name(dtype) + " agrees with the reference", histogram(dtype));
    if (!small) {
        report("int8 per tensor takes more than 2^31 elements", large(HBM_PER_TENSOR, 0));
        report("int8 per group takes more than 2^31 elements", large(HBM_PER_GROUP, 128));
        report("bf16-lossless gives more than 2^31 elements back", large_lossless());
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
