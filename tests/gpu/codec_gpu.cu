/* The CUDA codecs against the reference, bit for bit. Prints one line a test; 77 where there is no GPU.
 * HBM_TEST_SMALL leaves out what a slow machine could not finish. */
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/element.h"

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

/* Memory on the device with an optional misalignment and guards on both sides. */
struct device_bytes {
    size_t size, offset;
    unsigned char *base = nullptr;
    device_bytes(size_t size_, size_t misalign) : size(size_), offset(GUARD + misalign)
    {
        if (cudaMalloc(&base, offset + size + GUARD) || cudaMemset(base, POISON, offset + size + GUARD))
            base = nullptr;
    }
    ~device_bytes()
    {
        cudaFree(base);
    }
    void *at() const
    {
        return base + offset;
    }
    /* The contents; empties `why` only if both guards are whole. */
    std::vector<unsigned char> fetch(std::string &why) const
    {
        std::vector<unsigned char> all(offset + size + GUARD);
        if (!base || cudaMemcpy(all.data(), base, all.size(), cudaMemcpyDeviceToHost))
            why = "cannot fetch: " + std::string(cudaGetErrorString(cudaGetLastError()));
        for (size_t i = 0; i < all.size(); i++)
            if ((i < offset || i >= offset + size) && all[i] != POISON && why.empty())
                why = "wrote outside its output at " + std::to_string((long long)i - (long long)offset);
        return std::vector<unsigned char>(all.begin() + (long)offset, all.begin() + (long)(offset + size));
    }
};

static void same(const char *what, const std::vector<unsigned char> &ours, const void *theirs, unsigned element,
                 std::string &why)
{
    for (size_t i = 0; i < ours.size() && why.empty(); i++)
        if (ours[i] != static_cast<const unsigned char *>(theirs)[i]) {
            char text[96];
            unsigned a = 0, b = 0;
            size_t e = i / element;
            memcpy(&a, &ours[e * element], element);
            memcpy(&b, static_cast<const unsigned char *>(theirs) + e * element, element);
            snprintf(text, sizeof(text), "%s %zu is %x, not %x", what, e, a, b);
            why = text;
        }
}

static bool close(double a, double b, double most)
{
    return a == b || std::fabs(a - b) <= most;
}

/* Encodes and decodes `raw` on both sides; returns what differs. */
static std::string compare(codec_job job, const std::vector<unsigned char> &raw, unsigned misalign)
{
    uint64_t count, units;
    unsigned width = hbm_dtype_bits(job.dtype) / 8, stored = hbm_dtype_bits(job.encoding.stored) / 8;
    std::string why;

    if (!codec_supported(job.dtype, &job.encoding, job.dims, job.rank))
        return "not supported";
    hbm_shape_elements(job.dims, job.rank, &count);
    hbm_encoding_units(&job.encoding, job.dims, job.rank, &units);
    if (!hbm_codec_scale_bytes(job.encoding.codec))
        units = 0;

    std::vector<unsigned char> data(count * stored + 1), out(count * width + 1);
    std::vector<float> scale(units + 1);
    codec_job host = job;
    hbm_receipt expected = {}, got = {};
    host.raw_in = raw.data();
    host.data = data.data();
    host.scale = scale.data();
    host.raw_out = out.data();
    codec_encode_host(&host, &expected);
    codec_decode_host(&host);

    device_bytes d_raw(count * width, misalign * width), d_data(count * stored, misalign * stored);
    device_bytes d_out(count * width, misalign * width), d_scale(units * 4, 0);
    device_bytes d_work(codec_workspace_bytes(&job), 0);
    cudaMemcpy(d_raw.at(), raw.data(), count * width, cudaMemcpyHostToDevice);
    job.raw_in = d_raw.at();
    job.data = d_data.at();
    job.scale = units ? static_cast<float *>(d_scale.at()) : nullptr;
    job.raw_out = d_out.at();
    int error = codec_encode_cuda(&job, d_work.at(), nullptr);
    if (!error)
        error = codec_decode_cuda(&job, nullptr);
    if (!error)
        error = cudaDeviceSynchronize();
    if (!error)
        error = codec_receipt_cuda(&job, d_work.at(), &got);
    if (error)
        return cudaGetErrorString((cudaError_t)error);

    same("scale", d_scale.fetch(why), scale.data(), 4, why);
    same("code", d_data.fetch(why), data.data(), stored, why);
    same("decoded element", d_out.fetch(why), out.data(), width, why);
    d_work.fetch(why);
    if (why.empty() &&
        (got.elements != expected.elements || got.nonfinite != expected.nonfinite ||
         got.clipped_fraction != expected.clipped_fraction || got.max_abs_error != expected.max_abs_error ||
         !close(got.sqnr_db, expected.sqnr_db, 4.3e-6))) {
        char text[200];
        snprintf(text, sizeof(text), "receipt %.9g dB max %g clipped %g nonfinite %llu, not %.9g %g %g %llu",
                 got.sqnr_db, got.max_abs_error, got.clipped_fraction, (unsigned long long)got.nonfinite,
                 expected.sqnr_db, expected.max_abs_error, expected.clipped_fraction,
                 (unsigned long long)expected.nonfinite);
        why = text;
    }
    return why;
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

static std::vector<unsigned char> samples(unsigned dtype, pattern p, uint64_t count)
{
    unsigned width = hbm_dtype_bits(dtype) / 8;
    std::vector<unsigned char> raw(count * width + 1);

    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = element_bits(sample(p, i));
        uint16_t half = p == BITS          ? (uint16_t)mix(i)
                        : dtype == HBM_F16 ? element_f16_down(bits)
                                           : element_bf16_down(bits);
        memcpy(&raw[i * width], dtype == HBM_F32 ? (void *)&bits : (void *)&half, width);
    }
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
    {2, {19, 1001}, false},   {3, {2, 3, 4096}, false},
};

static const unsigned groups[] = {1, 3, 8, 32, 100, 128, 2048, 5000, 1u << 20};

static void test_combination(unsigned codec, unsigned dtype, unsigned granularity, bool small)
{
    static const char *const granularities[] = {"per tensor", "per channel", "per group"};
    std::string sentence = std::string(hbm_codec_name(codec)) + " " + granularities[granularity] + " of " +
                           hbm_dtype_name(dtype) + " agrees with the reference";
    std::string why;

    for (const shape &s : shapes) {
        uint64_t count;
        hbm_shape_elements(s.dims, s.rank, &count);
        if (small && s.large)
            continue;
        for (int p = 0; p < PATTERNS && why.empty(); p++) {
            if (s.large && p != NORMAL && (p != BITS || count > 2000000))
                continue; /* the reference takes its time */
            std::vector<unsigned char> raw = samples(dtype, (pattern)p, count);
            unsigned cuts = granularity == HBM_PER_TENSOR    ? 1
                            : granularity == HBM_PER_CHANNEL ? s.rank
                            : s.rank                         ? sizeof(groups) / sizeof(*groups)
                                                             : 0;
            unsigned step = s.large && granularity == HBM_PER_GROUP ? 4 : 1;
            for (unsigned cut = 0; cut < cuts && why.empty(); cut += step)
                for (unsigned misalign = 0; misalign < (s.large || p ? 1u : 2u) && why.empty(); misalign++) {
                    codec_job job = {};
                    memcpy(job.dims, s.dims, sizeof(s.dims));
                    job.rank = s.rank;
                    job.dtype = dtype;
                    job.encoding.codec = (uint8_t)codec;
                    job.encoding.stored = (uint8_t)hbm_codec_stored_dtype(codec);
                    job.encoding.granularity = (uint8_t)granularity;
                    job.encoding.axis = (uint8_t)(granularity == HBM_PER_CHANNEL ? cut : 0);
                    job.encoding.group = granularity == HBM_PER_GROUP ? groups[cut] : 0;
                    why = compare(job, raw, misalign);
                    if (why.empty())
                        continue;
                    std::string where;
                    for (unsigned k = 0; k < s.rank; k++)
                        where += (k ? "x" : "") + std::to_string(s.dims[k]);
                    why += " (shape " + where + ", " + pattern_names[p] + ", axis " +
                           std::to_string(job.encoding.axis) + ", group " + std::to_string(job.encoding.group) +
                           (misalign ? ", misaligned)" : ")");
                }
        }
    }
    report(sentence, why);
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
            error = codec_receipt_cuda(&job, work, &receipt);
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

int main(void)
{
    bool small = getenv("HBM_TEST_SMALL") != nullptr;
    int devices = 0;

    if (cudaGetDeviceCount(&devices) || !devices) {
        printf("waived - there is no GPU here\n");
        return 77;
    }
    const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    for (unsigned dtype : dtypes) {
        test_combination(HBM_CODEC_FP16, dtype, HBM_PER_TENSOR, small);
        test_combination(HBM_CODEC_BF16, dtype, HBM_PER_TENSOR, small);
        for (unsigned granularity = HBM_PER_TENSOR; granularity <= HBM_PER_GROUP; granularity++)
            test_combination(HBM_CODEC_INT8, dtype, granularity, small);
    }
    if (!small) {
        report("int8 per tensor takes more than 2^31 elements", large(HBM_PER_TENSOR, 0));
        report("int8 per group takes more than 2^31 elements", large(HBM_PER_GROUP, 128));
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
