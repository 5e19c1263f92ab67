/* The matmul family against sums in binary64, over odd shapes, types and quantised weights. Prints one line a test;
 * 77 where there is no GPU. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/matmul/hbm_matmul.h"

static int passed, failed;

static void report(const std::string &sentence, const std::string &why)
{
    printf(why.empty() ? "ok - %s\n" : "FAIL - %s: %s\n", sentence.c_str(), why.c_str());
    fflush(stdout);
    (why.empty() ? passed : failed)++;
}

static float noise(uint64_t i)
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    return (float)((i >> 40) & 0xffff) / 32768.0f - 1.0f;
}

static float rounded(unsigned dtype, float x)
{
    return dtype == HBM_F32   ? x
           : dtype == HBM_F16 ? __half2float(__float2half(x))
                              : __bfloat162float(__float2bfloat16(x));
}

/* Elements of the dtype as it stores them. */
static std::vector<unsigned char> stored(unsigned dtype, const std::vector<float> &values)
{
    size_t width = hbm_dtype_bits(dtype) / 8;
    std::vector<unsigned char> bytes(values.size() * width);

    for (size_t i = 0; i < values.size(); i++) {
        __half half = __float2half(values[i]);
        __nv_bfloat16 bfloat = __float2bfloat16(values[i]);
        memcpy(&bytes[i * width],
               dtype == HBM_F32   ? (const void *)&values[i]
               : dtype == HBM_F16 ? (const void *)&half
                                  : (const void *)&bfloat,
               width);
    }
    return bytes;
}

static float element(unsigned dtype, const unsigned char *bytes, size_t i)
{
    float x;

    if (dtype == HBM_F32)
        return memcpy(&x, bytes + 4 * i, 4), x;
    if (dtype == HBM_F16)
        return __half2float(((const __half *)bytes)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)bytes)[i]);
}

/* Device memory for the length of a case. `misalign` bytes in front. */
struct memory {
    char *bytes = nullptr;
    size_t misalign;

    explicit memory(size_t size, size_t at = 0) : misalign(at)
    {
        if (cudaMalloc((void **)&bytes, size + at))
            bytes = nullptr;
    }
    ~memory()
    {
        cudaFree(bytes);
    }
    void *at()
    {
        return bytes + misalign;
    }
};

struct shape {
    uint32_t m, n, k;
};

/* A product to be computed, as bytes, and what comes out: sums in binary64, and the sums of magnitudes. */
struct problem {
    unsigned dtype;
    hbm_encoding encoding;
    shape s;
    std::vector<unsigned char> x, w;
    std::vector<float> scale;
    uint64_t units;
    std::vector<double> sum, size;
};

static void multiply(problem &p, const std::vector<float> &x, const std::vector<float> &w)
{
    for (uint32_t i = 0; i < p.s.m; i++)
        for (uint32_t j = 0; j < p.s.n; j++) {
            double sum = 0, size = 0;

            for (uint32_t k = 0; k < p.s.k; k++) {
                double product = (double)x[(size_t)i * p.s.k + k] * w[(size_t)j * p.s.k + k];
                sum += product, size += std::fabs(product);
            }
            p.sum.push_back(sum), p.size.push_back(size);
        }
}

static problem make(unsigned dtype, const hbm_encoding &encoding, shape s)
{
    std::vector<float> x((size_t)s.m * s.k), w((size_t)s.n * s.k);
    problem p = {dtype, encoding, s, {}, {}, std::vector<float>(w.size() + 1), 0, {}, {}};

    for (size_t i = 0; i < x.size(); i++)
        x[i] = rounded(dtype, noise(i));
    for (size_t i = 0; i < w.size(); i++)
        w[i] = rounded(dtype, noise(~i) * (1 + (float)(i / s.k % 5)));
    p.x = stored(dtype, x), p.w = stored(dtype, w);
    if (encoding.codec != HBM_CODEC_RAW) {
        std::vector<unsigned char> raw = p.w, back(w.size() * 4);
        hbm_receipt receipt;
        codec_job job = {};

        job.raw_in = raw.data(), job.scale = p.scale.data();
        job.dims[0] = s.n, job.dims[1] = s.k, job.rank = 2;
        job.dtype = dtype, job.encoding = encoding;
        hbm_encoding_units(&encoding, job.dims, 2, &p.units);
        p.w.resize((w.size() * hbm_dtype_bits(hbm_codec_stored_dtype(encoding.codec)) + 7) / 8);
        job.data = p.w.data();
        codec_encode_host(&job, &receipt);
        job.raw_out = back.data();
        job.dtype = HBM_F32;
        codec_decode_host(&job);
        memcpy(w.data(), back.data(), back.size());
    }
    multiply(p, x, w);
    return p;
}

static std::string attempt(unsigned kernel, unsigned tile, const problem &p, size_t misalign)
{
    size_t width = hbm_dtype_bits(p.dtype) / 8, w_width = p.encoding.codec == HBM_CODEC_RAW ? width : 1;
    std::vector<unsigned char> y((size_t)p.s.m * p.s.n * width);
    memory d_x(p.x.size(), misalign * width), d_w(p.w.size(), misalign * w_width), d_y(y.size()),
        d_scale(p.units * 4 + 4);
    struct hbm_matmul job = {};
    char why[200] = "";

    job.kernel = kernel, job.tile = tile, job.dtype = p.dtype, job.m = p.s.m, job.n = p.s.n, job.k = p.s.k;
    job.x = d_x.at(), job.w = d_w.at(), job.y = d_y.at(), job.encoding = p.encoding;
    job.scale = p.units ? (const float *)d_scale.at() : nullptr;
    int error = cudaMemcpy(d_x.at(), p.x.data(), p.x.size(), cudaMemcpyHostToDevice);
    if (!error)
        error = cudaMemcpy(d_w.at(), p.w.data(), p.w.size(), cudaMemcpyHostToDevice);
    if (!error)
        error = cudaMemcpy(d_scale.at(), p.scale.data(), p.units * 4, cudaMemcpyHostToDevice);
    if (!error)
        error = cudaMemset(d_y.at(), 0xff, y.size());
    if (!error)
        error = hbm_matmul(&job, nullptr, why, sizeof(why));
    if (!error)
        error = cudaMemcpy(y.data(), d_y.at(), y.size(), cudaMemcpyDeviceToHost);
    if (error)
        return std::string(cudaGetErrorString((cudaError_t)error)) + " " + why;
    double loose = p.dtype == HBM_F32 ? 0x1p-18 : p.dtype == HBM_F16 ? 0x1p-9 : 0x1p-6;
    for (size_t i = 0; i < p.sum.size(); i++) {
        float got = element(p.dtype, y.data(), i);

        if (!(std::fabs(got - p.sum[i]) <= p.size[i] * loose + 1e-30)) {
            char text[160];
            snprintf(text, sizeof(text), "%u x %u x %u: element (%zu, %zu) is %.9g, not %.9g", p.s.m, p.s.n, p.s.k,
                     i / p.s.n, i % p.s.n, got, p.sum[i]);
            return text;
        }
    }
    return "";
}

static const struct step {
    unsigned kernel, tile;
    const char *name;
} kernels[] = {{HBM_MATMUL_NAIVE, 0, "naive"},
               {HBM_MATMUL_TILED, 0, "tiled"},
               {HBM_MATMUL_PADDED, 0, "padded"},
               {HBM_MATMUL_FAST, 0, "fast"},
               {HBM_MATMUL_ROWS, 0, "rows"},
               {HBM_MATMUL_AUTO, 0, "chosen"},
               {HBM_MATMUL_FAST, 128, "fast, 128 columns a block,"}};

#define COUNT (sizeof(kernels) / sizeof(struct step))

static bool takes(unsigned i, unsigned dtype, const hbm_encoding &encoding)
{
    if (kernels[i].kernel >= HBM_MATMUL_NAIVE && kernels[i].kernel <= HBM_MATMUL_PADDED)
        return dtype == HBM_F32 && encoding.codec == HBM_CODEC_RAW;
    return !kernels[i].tile || dtype != HBM_F32;
}

static void every_shape()
{
    static const shape shapes[] = {{1, 1, 1},      {3, 5, 7},       {8, 33, 65},    {17, 129, 40},  {128, 128, 64},
                                   {129, 257, 63}, {5, 300, 1024},  {1, 1000, 777}, {130, 70, 200}, {7, 31, 4224},
                                   {2, 50, 4384},  {131, 259, 416}, {255, 513, 72}, {33, 150, 1001}};
    static const hbm_encoding encodings[] = {{HBM_CODEC_RAW, 0, 0, 0, 0},
                                             {HBM_CODEC_INT8, HBM_PER_TENSOR, 0, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_CHANNEL, 0, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_CHANNEL, 1, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_GROUP, 0, HBM_I8, 32},
                                             {HBM_CODEC_INT8, HBM_PER_GROUP, 0, HBM_I8, 7},
                                             {HBM_CODEC_FP8_E4M3, HBM_PER_TENSOR, 0, HBM_F8_E4M3, 0},
                                             {HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL, 0, HBM_F8_E4M3, 0},
                                             {HBM_CODEC_FP8_E5M2, HBM_PER_GROUP, 0, HBM_F8_E5M2, 32},
                                             {HBM_CODEC_INT8, HBM_PER_GROUP, 0, HBM_I8, 64},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 8192},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 128},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 96},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 32},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 7}};

    for (unsigned dtype : {HBM_F32, HBM_F16, HBM_BF16})
        for (const hbm_encoding &encoding : encodings) {
            std::string wrong[COUNT];
            char text[64];

            for (const shape &s : shapes) {
                problem p = make(dtype, encoding, s);

                for (unsigned i = 0; i < COUNT; i++)
                    for (size_t misalign : {0, 1})
                        if (takes(i, dtype, encoding) && wrong[i].empty() &&
                            (kernels[i].kernel != HBM_MATMUL_ROWS || s.m <= 8))
                            wrong[i] = attempt(kernels[i].kernel, kernels[i].tile, p, misalign);
            }
            hbm_encoding_text(&encoding, text, sizeof(text));
            for (unsigned i = 0; i < COUNT; i++)
                if (takes(i, dtype, encoding))
                    report(std::string(kernels[i].name) + " of " + hbm_dtype_name(dtype) + " by weights that are " +
                               text + " agrees with sums in binary64",
                           wrong[i]);
        }
}

static std::string refusal(const struct hbm_matmul &job, const char *word)
{
    char why[200] = "nothing";
    int error = hbm_matmul(&job, nullptr, why, sizeof(why));

    return error == cudaErrorInvalidValue && strstr(why, word) ? "" : std::string("said: ") + why;
}

static void refusals()
{
    memory some(1 << 16);
    struct hbm_matmul good = {HBM_MATMUL_TILED, HBM_F32,   16, 16,      16, some.at(),
                              some.at(),        some.at(), {}, nullptr, 0},
                      job = good;
    int most = 0;

    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    for (unsigned tile : {16, 32, 64, 128}) {
        job.tile = tile;
        bool fits = hbm_matmul_tile_bytes(tile, 0) <= (size_t)most;
        char why[200] = "";
        report("a tile of " + std::to_string(tile) + (fits ? " fits, and runs" : " is refused with its size"),
               fits ? (hbm_matmul(&job, nullptr, why, sizeof(why)) || cudaDeviceSynchronize()
                           ? std::string("failed: ") + why
                           : "")
                    : refusal(job, std::to_string(hbm_matmul_tile_bytes(tile, 0)).c_str()));
    }
    job.tile = 48;
    report("a tile of 48 is refused", refusal(job, "48"));
    job = good, job.m = 0;
    report("an empty matrix is refused", refusal(job, "m, n and k"));
    job = good, job.dtype = HBM_F16;
    report("a step of the ladder in F16 is refused", refusal(job, "F32"));
    job = good, job.dtype = HBM_F16, job.kernel = HBM_MATMUL_FAST, job.tile = 48;
    report("blocks of 48 columns are refused", refusal(job, "not 48"));
    job.tile = 256;
    char why[200] = "";
    bool fits = !hbm_matmul(&job, nullptr, why, sizeof(why));
    report(std::string("blocks of 256 columns ") + (fits ? "run" : "are refused with their size"),
           fits ? (cudaDeviceSynchronize() ? "failed" : "") : refusal(job, "256 take"));
    job = good, job.kernel = HBM_MATMUL_ROWS;
    report("more rows than the kernel for few takes are refused", refusal(job, "up to 8"));
    job = good, job.encoding.codec = HBM_CODEC_INT8;
    report("encoded weights without scales are refused", refusal(job, "scales"));
    job = good, job.encoding.codec = HBM_CODEC_FP16;
    report("weights of another codec are refused", refusal(job, "decompress"));
    job = good, job.dtype = HBM_I8;
    report("x of another type is refused", refusal(job, "F32"));
    job = good, job.w = nullptr;
    report("no weights are refused", refusal(job, "NULL"));
}

int main(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) || !count) {
        puts("no GPU here");
        return 77;
    }
    refusals();
    every_shape();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
