/* What the tests of the CUDA codecs have in common: memory with guards on the device, samples, cases that run beside each other,
 * and one job done on both sides. One line a test is printed. HBM_TEST_SMALL leaves out what a slow machine could not finish. */
#pragma once

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

/* Encodes and decodes `raw` on both sides, to so many bytes; returns what differs, and what the host made of it in data. */
static std::string compare(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign, uint64_t coded,
                           std::vector<unsigned char> &data)
{
    uint64_t count, units, channels = 0, kept = 0, outliers = 0;
    unsigned width = hbm_dtype_bits(job.dtype) / 8, stored = (hbm_dtype_bits(job.encoding.stored) + 7) / 8;

    if (!codec_supported(job.dtype, &job.encoding, job.dims, job.rank))
        return "not supported";
    hbm_shape_elements(job.dims, job.rank, &count);
    hbm_encoding_units(&job.encoding, job.dims, job.rank, &units);
    uint64_t scales = hbm_codec_scale_bytes(job.encoding.codec) ? units : 0;
    uint64_t zeros = hbm_codec_zero_bytes(job.encoding.codec) ? units : 0;
    bool varies = hbm_codec_varies(job.encoding.codec);
    if (hbm_codec_splits(job.encoding.codec)) {
        hbm_split_elements(&job.encoding, job.dims, job.rank, &outliers);
        channels = job.dims[job.encoding.axis];
        kept = job.encoding.group;
    }

    std::vector<unsigned char> out(count * width + 1);
    std::vector<float> scale(scales + 1);
    std::vector<int32_t> zero(zeros + 1), numbers(kept + 1);
    std::vector<uint16_t> halves(outliers + 1);
    std::vector<uint32_t> marks(channels + 1);
    codec_job host = job;
    hbm_receipt expected = {}, got = {};
    hbm_quality expected_quality = {}, quality = {};
    codec_tally tally;
    data.assign(coded + 1, 0);
    host.raw_in = raw.data();
    host.data = data.data();
    host.scale = scale.data();
    host.zero = zero.data();
    host.channels = numbers.data();
    host.outliers = halves.data();
    host.marks = marks.data();
    host.raw_out = out.data();
    codec_tally_host(&host, &tally);
    codec_receipt_of(&tally, count, &expected);
    codec_quality_of(&tally, &host.encoding, &expected_quality);
    codec_decode_host(&host);

    layout l;
    unsigned d_raw = l.add(count * width, misalign * width), d_data = l.add(coded, varies ? 0 : misalign * stored);
    unsigned d_out = l.add(count * width, misalign * width), d_scale = l.add(scales * sizeof(float), 0);
    unsigned d_zero = l.add(zeros * sizeof(int32_t), 0);
    unsigned d_numbers = l.add(kept * sizeof(int32_t), 0), d_halves = l.add(outliers * sizeof(uint16_t), 0);
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
    job.channels = static_cast<int32_t *>(on.at(d_numbers));
    job.outliers = static_cast<uint16_t *>(on.at(d_halves));
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
          on.same("zero point", d_zero, zero.data(), 4), on.same("channel", d_numbers, numbers.data(), 4),
          on.same("outlier", d_halves, halves.data(), 2), on.same("code", d_data, data.data(), stored),
          on.same("decoded element", d_out, out.data(), width), receipts_differ(got, expected),
          qualities_differ(quality, expected_quality)})
        if (!why.empty())
            return why;
    return "";
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

/* Returns what differs. */
typedef std::string check(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign);

struct suite {
    check *of = nullptr;
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

static void work_on(suite &all)
{
    lane on;

    for (size_t i; (i = all.next++) < all.cases.size();) {
        const test_case &c = all.cases[i];
        uint64_t count;

        hbm_shape_elements(c.job.dims, c.job.rank, &count);
        std::string why = all.of(on, c.job, samples(c.job.dtype, c.p, count), c.misalign);
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

/* --- more than 2^31 elements: made on the device ---------------------------------------------------------------
 */

static inline __host__ __device__ uint16_t large_element(uint64_t i, uint64_t count)
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

static int missing_gpu(void)
{
    int devices = 0;

    if (!cudaGetDeviceCount(&devices) && devices)
        return 0;
    printf("waived - there is no GPU here\n");
    return 77;
}

static int tell(void)
{
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
