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

static std::string try_one(unsigned kernel, unsigned dtype, const hbm_encoding &encoding, shape s, size_t misalign)
{
    size_t width = hbm_dtype_bits(dtype) / 8, w_width = encoding.codec == HBM_CODEC_RAW ? width : 1;
    std::vector<float> x((size_t)s.m * s.k), w((size_t)s.n * s.k), scale((size_t)s.n * s.k + 1);
    std::vector<unsigned char> codes;
    uint64_t units = 0;

    for (size_t i = 0; i < x.size(); i++)
        x[i] = rounded(dtype, noise(i));
    for (size_t i = 0; i < w.size(); i++)
        w[i] = rounded(dtype, noise(~i) * (1 + (float)(i / s.k % 5)));
    std::vector<unsigned char> raw = stored(dtype, w), data = raw;
    if (encoding.codec != HBM_CODEC_RAW) {
        hbm_receipt receipt;
        codec_job job = {};

        job.raw_in = raw.data(), job.scale = scale.data();
        job.dims[0] = s.n, job.dims[1] = s.k, job.rank = 2;
        job.dtype = dtype, job.encoding = encoding;

        hbm_encoding_units(&encoding, job.dims, 2, &units);
        codes.resize((w.size() * hbm_dtype_bits(hbm_codec_stored_dtype(encoding.codec)) + 7) / 8);
        job.data = codes.data();
        codec_encode_host(&job, &receipt);
        std::vector<unsigned char> back(w.size() * 4);
        job.raw_out = back.data();
        job.dtype = HBM_F32;
        codec_decode_host(&job);
        memcpy(w.data(), back.data(), back.size());
        data = codes;
    }
    std::vector<unsigned char> x_bytes = stored(dtype, x), y((size_t)s.m * s.n * width);
    memory d_x(x_bytes.size(), misalign * width), d_w(data.size(), misalign * w_width), d_y(y.size()),
        d_scale(units * 4 + 4);
    struct hbm_matmul job = {};
    char why[200] = "";
    job.kernel = kernel, job.dtype = dtype, job.m = s.m, job.n = s.n, job.k = s.k;
    job.x = d_x.at(), job.w = d_w.at(), job.y = d_y.at(), job.encoding = encoding;
    job.scale = units ? (const float *)d_scale.at() : nullptr;
    int error = cudaMemcpy(d_x.at(), x_bytes.data(), x_bytes.size(), cudaMemcpyHostToDevice);
    if (!error)
        error = cudaMemcpy(d_w.at(), data.data(), data.size(), cudaMemcpyHostToDevice);
    if (!error)
        error = cudaMemcpy(d_scale.at(), scale.data(), units * 4, cudaMemcpyHostToDevice);
    if (!error)
        error = hbm_matmul(&job, nullptr, why, sizeof(why));
    if (!error)
        error = cudaMemcpy(y.data(), d_y.at(), y.size(), cudaMemcpyDeviceToHost);
    if (error)
        return std::string(cudaGetErrorString((cudaError_t)error)) + " " + why;
    double loose = dtype == HBM_F32 ? 0x1p-18 : dtype == HBM_F16 ? 0x1p-9 : 0x1p-6;
    for (uint32_t i = 0; i < s.m; i++)
        for (uint32_t j = 0; j < s.n; j++) {
            double sum = 0, size = 0;

            for (uint32_t k = 0; k < s.k; k++) {
                double product = (double)x[(size_t)i * s.k + k] * w[(size_t)j * s.k + k];
                sum += product, size += std::fabs(product);
            }
            float got = element(dtype, y.data(), (size_t)i * s.n + j);
            if (!(std::fabs(got - sum) <= size * loose + 1e-30)) {
                char text[160];
                snprintf(text, sizeof(text), "%u x %u x %u: element (%u, %u) is %.9g, not %.9g", s.m, s.n, s.k, i,
                         j, got, sum);
                return text;
            }
        }
    return "";
}

static const struct {
    unsigned kernel;
    const char *name;
} kernels[] = {{HBM_MATMUL_NAIVE, "naive"}, {HBM_MATMUL_TILED, "tiled"}, {HBM_MATMUL_PADDED, "padded"},
               {HBM_MATMUL_FAST, "fast"},   {HBM_MATMUL_ROWS, "rows"},   {HBM_MATMUL_AUTO, "chosen"}};

static void every_shape()
{
    static const shape shapes[] = {{1, 1, 1},      {3, 5, 7},      {8, 33, 65},    {17, 129, 40}, {128, 128, 64},
                                   {129, 257, 63}, {5, 300, 1024}, {1, 1000, 777}, {130, 70, 200}};
    static const hbm_encoding encodings[] = {{HBM_CODEC_RAW, 0, 0, 0, 0},
                                             {HBM_CODEC_INT8, HBM_PER_TENSOR, 0, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_CHANNEL, 0, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_CHANNEL, 1, HBM_I8, 0},
                                             {HBM_CODEC_INT8, HBM_PER_GROUP, 0, HBM_I8, 32},
                                             {HBM_CODEC_INT8, HBM_PER_GROUP, 0, HBM_I8, 7},
                                             {HBM_CODEC_FP8_E4M3, HBM_PER_TENSOR, 0, HBM_F8_E4M3, 0},
                                             {HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL, 0, HBM_F8_E4M3, 0},
                                             {HBM_CODEC_FP8_E5M2, HBM_PER_GROUP, 0, HBM_F8_E5M2, 32},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 32},
                                             {HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 7}};

    for (const auto &kernel : kernels)
        for (unsigned dtype : {HBM_F32, HBM_F16, HBM_BF16})
            for (const hbm_encoding &encoding : encodings) {
                std::string wrong;
                char text[64];

                if (kernel.kernel >= HBM_MATMUL_NAIVE && kernel.kernel <= HBM_MATMUL_PADDED &&
                    (dtype != HBM_F32 || encoding.codec != HBM_CODEC_RAW))
                    continue;

                for (const shape &s : shapes)
                    for (size_t misalign : {0, 1})
                        if (wrong.empty() && (kernel.kernel != HBM_MATMUL_ROWS || s.m <= 8))
                            wrong = try_one(kernel.kernel, dtype, encoding, s, misalign);
                hbm_encoding_text(&encoding, text, sizeof(text));
                report(std::string(kernel.name) + " of " + hbm_dtype_name(dtype) + " by weights that are " + text +
                           " agrees with sums in binary64",
                       wrong);
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
