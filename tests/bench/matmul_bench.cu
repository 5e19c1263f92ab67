/* The ladder of matmul kernels beside cuBLAS, where that is: binary32 at 4096 and at an odd size, and one row of x
 * by int8 weights beside F16. The median of 10 after a warm-up, timed by events. argv[1], if given, names a file
 * for the rows as JSON. 77 where there is no GPU. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/matmul/hbm_matmul.h"
#include "kernels/matmul/hbm_tile.cuh"
#if HBM_BENCH_CUBLAS
#include <cublas_v2.h>
#endif

#define RUNS 10

static void must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

static double seconds_of(const std::function<void()> &work)
{
    std::vector<float> all;
    cudaEvent_t from, to;

    must(cudaEventCreate(&from), "event"), must(cudaEventCreate(&to), "event");
    for (int i = 0; i < RUNS + 3; i++) {
        float ms;

        must(cudaEventRecord(from), "event");
        work();
        must(cudaEventRecord(to), "event"), must(cudaEventSynchronize(to), "kernel"),
            must(cudaEventElapsedTime(&ms, from, to), "event");
        if (i >= 3)
            all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    return all[RUNS / 2] / 1e3;
}

/* Small numbers of every sign, as bytes, halves or floats. */
template <class T> static __global__ void fill(T *to, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = T((float)((int)(i * 2654435761u >> 24) - 128) / (sizeof(T) == 1 ? 1.0f : 128.0f));
}

template <class T> static T *some(size_t n)
{
    T *memory;

    must(cudaMalloc((void **)&memory, n * sizeof(T)), "cudaMalloc");
    fill<<<1024, 256>>>(memory, n);
    must(cudaGetLastError(), "fill");
    return memory;
}

static std::string rows;

static void row(const std::string &what, const char *unit, double ours, double beside, const char *beside_what,
                double bound)
{
    char text[400];

    snprintf(text, sizeof(text),
             "{\"what\": \"matmul %s\", \"unit\": \"%s\", \"ours\": %.4g, \"low\": %.4g, \"high\": %.4g",
             what.c_str(), unit, ours, ours, ours);
    rows += text;
    if (beside > 0) {
        snprintf(text, sizeof(text), ", \"beside\": %.4g, \"beside_what\": \"%s\", \"ratio\": %.4g", beside,
                 beside_what, ours / beside);
        rows += text;
    }
    if (beside > 0 && bound > 0) {
        snprintf(text, sizeof(text), ", \"aim\": \"ratio >= %.2g\", \"ok\": %s", bound,
                 ours / beside >= bound ? "true" : "false");
        rows += text;
    }
    snprintf(text, sizeof(text), ", \"samples\": %d}\n", RUNS);
    rows += text;
}

#if HBM_BENCH_CUBLAS
static cublasHandle_t blas;
#endif

/* y = x w^T is, by columns, w^T' x. */
static double cublas_f32(const struct hbm_matmul &job)
{
#if HBM_BENCH_CUBLAS
    float one = 1, none = 0;

    return seconds_of([&] {
        must(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)job.n, (int)job.m, (int)job.k, &one,
                         (const float *)job.w, (int)job.k, (const float *)job.x, (int)job.k, &none, (float *)job.y,
                         (int)job.n) != CUBLAS_STATUS_SUCCESS,
             "cublasSgemm");
    });
#else
    return (void)job, 0;
#endif
}

static double cublas_f16(const struct hbm_matmul &job)
{
#if HBM_BENCH_CUBLAS
    float one = 1, none = 0;

    return seconds_of([&] {
        must(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)job.n, (int)job.m, (int)job.k, &one, job.w,
                          CUDA_R_16F, (int)job.k, job.x, CUDA_R_16F, (int)job.k, &none, job.y, CUDA_R_16F,
                          (int)job.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS,
             "cublasGemmEx");
    });
#else
    return (void)job, 0;
#endif
}

static double time_of(struct hbm_matmul job, unsigned kernel)
{
    char why[200] = "";

    job.kernel = kernel;
    return seconds_of([&] { must(hbm_matmul(&job, nullptr, why, sizeof(why)), why); });
}

static double per_second(double seconds, double n)
{
    return seconds > 0 ? n / seconds / 1e12 : 0;
}

static void ladder(uint32_t m, uint32_t n, uint32_t k)
{
    static const char *const names[] = {"", "naive", "tiled", "tiled, padded", "fast"};
    struct hbm_matmul job = {
        0,  HBM_F32, m, n, k, some<float>((size_t)m * k), some<float>((size_t)n * k), some<float>((size_t)m * n),
        {}, nullptr, 32};
    double operations = 2.0 * m * n * k, beside = per_second(cublas_f32(job), operations);
    std::string size = std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);

    for (unsigned kernel = HBM_MATMUL_NAIVE; kernel <= HBM_MATMUL_FAST; kernel++)
        row("F32 " + size + ", " + names[kernel], "TFLOP/s", per_second(time_of(job, kernel), operations), beside,
            "cublasSgemm", kernel == HBM_MATMUL_FAST ? 0.9 : 0);
    cudaFree((void *)job.x), cudaFree((void *)job.w), cudaFree(job.y);
}

static void halves(uint32_t m, uint32_t n, uint32_t k, const struct hbm_encoding &encoding)
{
    struct hbm_matmul job = {HBM_MATMUL_AUTO,
                             HBM_F16,
                             m,
                             n,
                             k,
                             some<__half>((size_t)m * k),
                             some<__half>((size_t)n * k),
                             some<__half>((size_t)m * n),
                             {},
                             nullptr,
                             0};
    double operations = 2.0 * m * n * k, beside = per_second(cublas_f16(job), operations);
    std::string what = "F16 " + std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);

    bool int8 = encoding.codec == HBM_CODEC_INT8;
    if (encoding.codec != HBM_CODEC_RAW) {
        job.encoding = encoding;
        job.scale = some<float>(encoding.group ? (size_t)n * (k / encoding.group) : n);
        what += std::string(", ") + hbm_codec_name(encoding.codec) + " weights";
    }
    row(what, "TFLOP/s", per_second(time_of(job, HBM_MATMUL_AUTO), operations), beside, "cuBLAS, F16 weights",
        m == 1 && int8 ? 1.0 : 0);
    cudaFree((void *)job.x), cudaFree((void *)job.w), cudaFree(job.y), cudaFree((void *)job.scale);
}

int main(int argc, char **argv)
{
    int count = 0;
    FILE *file;

    if (cudaGetDeviceCount(&count) || !count) {
        puts("no GPU here");
        return 77;
    }
#if HBM_BENCH_CUBLAS
    must(cublasCreate(&blas) != CUBLAS_STATUS_SUCCESS, "cublasCreate");
#endif
    ladder(4096, 4096, 4096);
    ladder(4095, 4097, 4093);
    for (const hbm_encoding &encoding : {hbm_encoding{}, hbm_encoding{HBM_CODEC_INT8, HBM_PER_CHANNEL, 0, HBM_I8, 0},
                                         hbm_encoding{HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL, 0, HBM_F8_E4M3, 0},
                                         hbm_encoding{HBM_CODEC_INT4, HBM_PER_GROUP, 0, HBM_I4, 128}}) {
        halves(1, 16384, 16384, encoding);
        halves(8, 16384, 16384, encoding);
        halves(4096, 4096, 4096, encoding);
    }
    fputs(rows.c_str(), stdout);
    if (argc > 1 && (file = fopen(argv[1], "w"))) {
        fputs(rows.c_str(), file);
        fclose(file);
    }
    return 0;
}
