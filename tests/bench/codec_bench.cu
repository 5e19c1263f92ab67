/* Codecs beside a device-to-device copy of the same bytes, read and written: 1 GiB of random bf16, or as many
 * elements of fp32. The median of 20 after a warm-up, every run timed by events; 1 GiB does not fit any L2.
 * argv[1], if given, names a file for the rows as JSON. 77 where there is no GPU. */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/histogram.h"
#include "kernels/lossless.h"

#define RUNS 20
#define COLUMNS 8192ull
#define ELEMENTS (1ull << 29)

static void must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

static __device__ uint32_t noise(uint64_t i)
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(i >> 32);
}

/* Random signs and fractions, exponents from 2^-15 to 2: like weights, and never all alike. */
static __global__ void fill(uint32_t *f32, uint16_t *bf16, uint64_t count)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t r = noise(i), bits = (r & 0x807fffffu) | (112 + (noise(~i) & 15)) << 23;
        if (f32)
            f32[i] = bits;
        if (bf16)
            bf16[i] = (uint16_t)(bits >> 16);
    }
}

/* Gaussian, as weights are: how often each exponent comes is what a lossless codec lives on. */
static __global__ void fill_weights(uint16_t *bf16, uint64_t count)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        float u = ((float)(noise(i) >> 8) + 1) * 0x1p-24f, v = (float)(noise(~i) >> 8) * 0x1p-24f;
        float x = 0.02f * sqrtf(-2 * logf(u)) * cospif(2 * v);
        bf16[i] = (uint16_t)(__float_as_uint(x) >> 16);
    }
}

struct timing {
    double median, least, most; /* seconds */
};

static timing measure(const std::function<void()> &work)
{
    std::vector<double> seconds;
    cudaEvent_t from, to;

    must(cudaEventCreate(&from), "event");
    must(cudaEventCreate(&to), "event");
    for (int i = 0; i < RUNS + 3; i++) {
        float ms;
        must(cudaEventRecord(from, nullptr), "record");
        work();
        must(cudaEventRecord(to, nullptr), "record");
        must(cudaEventSynchronize(to), "run");
        must(cudaEventElapsedTime(&ms, from, to), "elapsed");
        if (i >= 3)
            seconds.push_back(ms / 1000);
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    std::sort(seconds.begin(), seconds.end());
    return {(seconds[RUNS / 2 - 1] + seconds[RUNS / 2]) / 2, seconds.front(), seconds.back()};
}

struct buffers {
    unsigned char *a, *b; /* copied one to the other, too */
    float *scale;
    int32_t *zero;
    void *work;
};

static codec_job job_of(const buffers &m, unsigned dtype, unsigned codec, unsigned granularity, unsigned axis = 0)
{
    codec_job job = {};

    job.raw_in = job.raw_out = m.a;
    job.data = m.b;
    job.scale = m.scale;
    job.zero = m.zero;
    job.dims[0] = ELEMENTS / COLUMNS;
    job.dims[1] = COLUMNS;
    job.rank = 2;
    job.dtype = dtype;
    job.encoding.codec = (uint8_t)codec;
    job.encoding.granularity = (uint8_t)granularity;
    job.encoding.axis = (uint8_t)axis;
    job.encoding.stored = (uint8_t)hbm_codec_stored_dtype(codec);
    job.encoding.group = granularity == HBM_PER_GROUP ? 128 : 0;
    return job;
}

static std::string rows;

/* bytes: read and written, a second read included where the codec needs one. */
static void row(const buffers &m, const char *name, uint64_t bytes, const std::function<void()> &work)
{
    timing ours = measure(work);
    timing copy =
        measure([&] { must(cudaMemcpyAsync(m.b, m.a, bytes / 2, cudaMemcpyDeviceToDevice, nullptr), "copy"); });
    double speed = (double)bytes / ours.median / 1e9, beside = (double)bytes / copy.median / 1e9;
    char text[400];

    printf("%-34s %8.1f GB/s (%.1f..%.1f)   copy %8.1f GB/s   %5.1f %%\n", name, speed,
           (double)bytes / ours.most / 1e9, (double)bytes / ours.least / 1e9, beside, 100 * speed / beside);
    snprintf(text, sizeof(text),
             "%s  {\"name\": \"%s\", \"bytes\": %llu, \"gb_per_s\": %.2f, \"gb_per_s_min\": %.2f, "
             "\"gb_per_s_max\": %.2f, \"copy_gb_per_s\": %.2f, \"ratio\": %.4f}",
             rows.empty() ? "" : ",\n", name, (unsigned long long)bytes, speed, (double)bytes / ours.most / 1e9,
             (double)bytes / ours.least / 1e9, beside, speed / beside);
    rows += text;
}

static void fill_with(const buffers &m, unsigned dtype)
{
    fill<<<2048, 256>>>(dtype == HBM_F32 ? (uint32_t *)m.a : nullptr, dtype == HBM_BF16 ? (uint16_t *)m.a : nullptr,
                        ELEMENTS);
    must(cudaGetLastError(), "fill");
}

static void encode_row(const buffers &m, const char *name, unsigned dtype, unsigned codec, unsigned granularity,
                       uint64_t bytes, unsigned axis = 0)
{
    codec_job job = job_of(m, dtype, codec, granularity, axis);

    fill_with(m, dtype);
    row(m, name, bytes, [&] { must(codec_encode_cuda(&job, m.work, nullptr), name); });
    /* The copy wrote over what was encoded; decode needs codes and scales that belong together. */
    must(codec_encode_cuda(&job, m.work, nullptr), name);
    must(cudaDeviceSynchronize(), name);
}

static void decode_row(const buffers &m, const char *name, unsigned dtype, unsigned codec, unsigned granularity,
                       uint64_t bytes, unsigned axis = 0)
{
    codec_job job = job_of(m, dtype, codec, granularity, axis);

    row(m, name, bytes, [&] { must(codec_decode_cuda(&job, nullptr), name); });
}

/* What the receipt costs beyond the sums that the encoder has beside its work. */
static void receipt_row(const buffers &m, const char *name, unsigned dtype, unsigned codec, unsigned granularity,
                        uint64_t bytes)
{
    codec_job job = job_of(m, dtype, codec, granularity);

    must(codec_encode_cuda(&job, m.work, nullptr), name);
    row(m, name, bytes, [&] { must(codec_measure_cuda(&job, m.work, nullptr), name); });
}

/* With a range beyond which a thousandth of the elements lies. */
static void clip_row(const buffers &m, const char *name, unsigned dtype, unsigned codec, uint64_t bytes)
{
    codec_job job = job_of(m, dtype, codec, HBM_PER_TENSOR);

    job.ranged = true;
    job.hi = 1.968f;
    job.lo = -job.hi;
    row(m, name, bytes, [&] { must(codec_encode_cuda(&job, m.work, nullptr), name); });
}

/* One read; beside it a copy of half as much, which reads and writes as many bytes. */
static void histogram_row(const buffers &m, const char *name, unsigned dtype, uint32_t within)
{
    histogram_job job = {m.a, ELEMENTS, dtype, within, nullptr, HISTOGRAM_BOTH};

    row(m, name, ELEMENTS * (hbm_dtype_bits(dtype) / 8),
        [&] { must(histogram_cuda(&job, reinterpret_cast<uint64_t *>(m.b), nullptr), name); });
}

/* A pass that counts and one that adds up, which is what it takes to know how long it comes out; then both ways. */
static void lossless_rows(const buffers &m)
{
    const uint64_t n = ELEMENTS;
    codec_job job = job_of(m, HBM_BF16, HBM_CODEC_BF16_LOSSLESS, HBM_PER_TENSOR);
    std::vector<uint64_t> counts(256);
    std::vector<uint32_t> each(lossless_blocks(n));
    lossless_code code = {};
    uint64_t *there;
    uint32_t *words;

    must(cudaMalloc(&there, 256 * sizeof(*there)), "memory");
    must(cudaMalloc(&words, each.size() * sizeof(*words)), "memory");
    must(cudaMemset(there, 0, 256 * sizeof(*there)), "clear");
    fill_weights<<<2048, 256>>>((uint16_t *)m.a, n);
    must(cudaGetLastError(), "fill");
    must(lossless_count_cuda(m.a, n, there, nullptr), "count");
    must(cudaMemcpy(counts.data(), there, 256 * sizeof(*there), cudaMemcpyDeviceToHost), "counts");
    lossless_code_of(counts.data(), &code);
    must(lossless_words_cuda(m.a, n, &code, words, nullptr), "words");
    must(cudaMemcpy(each.data(), words, each.size() * sizeof(*words), cudaMemcpyDeviceToHost), "words");
    job.code = &code;
    job.data_bytes = lossless_blocks_at(n);
    for (uint32_t more : each)
        job.data_bytes += 4ull * more;
    printf("bf16-lossless: %.2f %% of %llu bytes\n", 50.0 * (double)job.data_bytes / (double)n, (unsigned long long)(2 * n));
    row(m, "bf16-lossless measured", 4 * n, [&] {
        must(lossless_count_cuda(m.a, n, there, nullptr), "count");
        must(lossless_words_cuda(m.a, n, &code, words, nullptr), "words");
    });
    row(m, "bf16 -> bf16-lossless", 2 * n + job.data_bytes, [&] { must(codec_encode_cuda(&job, m.work, nullptr), "encode"); });
    must(codec_encode_cuda(&job, m.work, nullptr), "encode");
    must(cudaDeviceSynchronize(), "encode");
    /* Out into the second half of the other side: what is copied beside it would write over the stream. */
    job.raw_out = m.a + 2 * n;
    timing out = measure([&] { must(codec_decode_cuda(&job, nullptr), "decode"); });
    printf("bf16-lossless -> bf16: %.1f GB/s of output\n", (double)(2 * n) / out.median / 1e9);
    row(m, "bf16-lossless -> bf16", 2 * n + job.data_bytes, [&] { must(codec_decode_cuda(&job, nullptr), "decode"); });
    cudaFree(there);
    cudaFree(words);
}

int main(int argc, char **argv)
{
    const uint64_t n = ELEMENTS, units = n / 128;
    buffers m = {};
    cudaDeviceProp device;
    int devices = 0, driver = 0;

    if (cudaGetDeviceCount(&devices) || !devices) {
        printf("waived - there is no GPU here\n");
        return 77;
    }
    must(cudaGetDeviceProperties(&device, 0), "device");
    must(cudaDriverGetVersion(&driver), "driver");
    must(cudaMalloc(&m.a, n * 4), "memory");
    must(cudaMalloc(&m.b, n * 4), "memory");
    must(cudaMalloc(&m.scale, units * 4), "memory");
    must(cudaMalloc(&m.zero, units * 4), "memory");
    must(cudaMalloc(&m.work, 4096), "memory");
    printf("%s, CUDA driver %d.%d, %llu elements, median of %d\n", device.name, driver / 1000, driver % 1000 / 10,
           (unsigned long long)n, RUNS);

    encode_row(m, "bf16 -> int8 per tensor", HBM_BF16, HBM_CODEC_INT8, HBM_PER_TENSOR, 5 * n);
    decode_row(m, "int8 per tensor -> bf16", HBM_BF16, HBM_CODEC_INT8, HBM_PER_TENSOR, 3 * n);
    encode_row(m, "bf16 -> int8 per channel", HBM_BF16, HBM_CODEC_INT8, HBM_PER_CHANNEL, 3 * n + n / COLUMNS * 4);
    decode_row(m, "int8 per channel -> bf16", HBM_BF16, HBM_CODEC_INT8, HBM_PER_CHANNEL, 3 * n + n / COLUMNS * 4);
    encode_row(m, "bf16 -> int8 per column", HBM_BF16, HBM_CODEC_INT8, HBM_PER_CHANNEL, 5 * n + COLUMNS * 4, 1);
    decode_row(m, "int8 per column -> bf16", HBM_BF16, HBM_CODEC_INT8, HBM_PER_CHANNEL, 3 * n + COLUMNS * 4, 1);
    encode_row(m, "bf16 -> int8 per group of 128", HBM_BF16, HBM_CODEC_INT8, HBM_PER_GROUP, 3 * n + units * 4);
    decode_row(m, "int8 per group of 128 -> bf16", HBM_BF16, HBM_CODEC_INT8, HBM_PER_GROUP, 3 * n + units * 4);
    encode_row(m, "bf16 -> int8-asym per channel", HBM_BF16, HBM_CODEC_INT8_ASYM, HBM_PER_CHANNEL,
               3 * n + n / COLUMNS * 8);
    decode_row(m, "int8-asym per channel -> bf16", HBM_BF16, HBM_CODEC_INT8_ASYM, HBM_PER_CHANNEL,
               3 * n + n / COLUMNS * 8);
    encode_row(m, "bf16 -> int8-asym per group of 128", HBM_BF16, HBM_CODEC_INT8_ASYM, HBM_PER_GROUP, 3 * n + units * 8);
    encode_row(m, "bf16 -> fp8-e4m3 per channel", HBM_BF16, HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL,
               3 * n + n / COLUMNS * 4);
    decode_row(m, "fp8-e4m3 per channel -> bf16", HBM_BF16, HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL,
               3 * n + n / COLUMNS * 4);
    encode_row(m, "bf16 -> fp8-e4m3 per group of 128", HBM_BF16, HBM_CODEC_FP8_E4M3, HBM_PER_GROUP, 3 * n + units * 4);
    encode_row(m, "bf16 -> int4 per group of 128", HBM_BF16, HBM_CODEC_INT4, HBM_PER_GROUP, 5 * n / 2 + units * 4);
    decode_row(m, "int4 per group of 128 -> bf16", HBM_BF16, HBM_CODEC_INT4, HBM_PER_GROUP, 5 * n / 2 + units * 4);
    encode_row(m, "fp32 -> fp16", HBM_F32, HBM_CODEC_FP16, HBM_PER_TENSOR, 6 * n);
    decode_row(m, "fp16 -> fp32", HBM_F32, HBM_CODEC_FP16, HBM_PER_TENSOR, 6 * n);
    encode_row(m, "fp32 -> bf16", HBM_F32, HBM_CODEC_BF16, HBM_PER_TENSOR, 6 * n);
    decode_row(m, "bf16 -> fp32", HBM_F32, HBM_CODEC_BF16, HBM_PER_TENSOR, 6 * n);
    lossless_rows(m);

    fill_with(m, HBM_BF16);
    clip_row(m, "bf16 -> int8 per tensor, 0.1 % clipped", HBM_BF16, HBM_CODEC_INT8, 3 * n);
    receipt_row(m, "receipt of int8 per tensor", HBM_BF16, HBM_CODEC_INT8, HBM_PER_TENSOR, 3 * n);
    receipt_row(m, "receipt of int8 per channel", HBM_BF16, HBM_CODEC_INT8, HBM_PER_CHANNEL, 3 * n + n / COLUMNS * 4);
    receipt_row(m, "receipt of int8 per group of 128", HBM_BF16, HBM_CODEC_INT8, HBM_PER_GROUP, 3 * n + units * 4);
    histogram_row(m, "histogram of bf16", HBM_BF16, HISTOGRAM_ALL);
    fill_with(m, HBM_F32);
    receipt_row(m, "receipt of fp16", HBM_F32, HBM_CODEC_FP16, HBM_PER_TENSOR, 6 * n);
    histogram_row(m, "histogram of fp32", HBM_F32, HISTOGRAM_ALL);
    histogram_row(m, "histogram of fp32, in one bin", HBM_F32, 0x3f80);

    if (argc > 1) {
        FILE *file = fopen(argv[1], "w");
        if (!file)
            return perror(argv[1]), 1;
        fprintf(file,
                "{\"device\": \"%s\", \"driver\": %d, \"elements\": %llu, \"runs\": %d, \"rows\": [\n%s\n]}\n",
                device.name, driver, (unsigned long long)n, RUNS, rows.c_str());
        if (fclose(file))
            return perror(argv[1]), 1;
    }
    return 0;
}
