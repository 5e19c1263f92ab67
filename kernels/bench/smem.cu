/* What `hbmctl bench smem` runs: the steps from a naive matmul to a fast one, and what each gains. Times are the median of 20
 * by events, after a warm-up; every result is held against the naive one's. Bank conflicts are what the hardware counts, where
 * Nsight Compute is installed and may read it: it runs this program again with --once.
 * usage: hbm-bench-smem [--json] [--once] [N] */
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/matmul/hbm_matmul.h"

#define RUNS 20
#define COPIED ((size_t)1 << 30)
#define COUNTER "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
#define KERNELS "regex:^(naive|tiled|fast)$"

#define STEPS 4u

static const struct step {
    unsigned kernel;
    const char *name, *how;
} steps[STEPS] = {{HBM_MATMUL_NAIVE, "naive", "a thread an element, all from device memory"},
             {HBM_MATMUL_TILED, "tiled", "tiles in shared memory"},
             {HBM_MATMUL_PADDED, "padded", "rows one word longer: columns in all banks"},
             {HBM_MATMUL_FAST, "fast", "vectors, register tiles, two buffers"}};

static void must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "hbm-bench-smem: %s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

/* Small numbers of both signs. */
static __global__ void fill(float *to, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = (float)((int)((uint32_t)i * 2654435761u >> 24) - 128) / 128.0f;
}

static float *some(size_t n)
{
    float *memory;

    must(cudaMalloc((void **)&memory, n * sizeof(float)), "device memory");
    fill<<<1024, 256>>>(memory, n);
    must(cudaGetLastError(), "fill");
    return memory;
}

static void run(struct hbm_matmul job, unsigned kernel)
{
    char why[200] = "";

    job.kernel = kernel;
    must(hbm_matmul(&job, nullptr, why, sizeof(why)), why);
}

template <class Work> static double milliseconds(Work work)
{
    std::vector<float> all;
    cudaEvent_t from, to;

    must(cudaEventCreate(&from), "event"), must(cudaEventCreate(&to), "event");
    for (int i = 0; i < RUNS + 3; i++) {
        float ms;
        must(cudaEventRecord(from), "event");
        work();
        must(cudaEventRecord(to), "event"), must(cudaEventSynchronize(to), "kernel");
        must(cudaEventElapsedTime(&ms, from, to), "event");
        if (i >= 3)
            all.push_back(ms);
    }
    must(cudaEventDestroy(from), "event"), must(cudaEventDestroy(to), "event");
    std::sort(all.begin(), all.end());
    return all[RUNS / 2];
}

/* Device memory to device memory, each byte read and written, far more than a cache holds. 0: there is no room for it. */
static double copy_gb_per_s(void)
{
    void *from = nullptr, *to = nullptr;
    double rate = 0;

    if (!cudaMalloc(&from, COPIED) && !cudaMalloc(&to, COPIED)) {
        must(cudaMemset(from, 0x5a, COPIED), "memset");
        rate = 2.0 * COPIED / 1e6 / milliseconds([&] { must(cudaMemcpyAsync(to, from, COPIED, cudaMemcpyDeviceToDevice), "copy"); });
    }
    cudaGetLastError(); /* what there was no room for is no error of a kernel's */
    cudaFree(from), cudaFree(to);
    return rate;
}

static std::vector<float> result(const struct hbm_matmul &job, unsigned kernel)
{
    size_t bytes = (size_t)job.m * job.n * sizeof(float);
    std::vector<float> y((size_t)job.m * job.n);

    must(cudaMemset(job.y, 0xff, bytes), "poison");
    run(job, kernel);
    must(cudaMemcpy(y.data(), job.y, bytes, cudaMemcpyDeviceToHost), "result");
    return y;
}

static bool agree(const std::vector<float> &a, const std::vector<float> &b)
{
    for (size_t i = 0; i < a.size(); i++)
        if (!(std::fabs(a[i] - b[i]) <= 1e-2f))
            return false;
    return true;
}

/* ---- Counters ---- */

/* A number of a kernel each, in order; else `why` says why not. */
static std::vector<double> count_conflicts(const char *self, unsigned n, std::string &why)
{
    std::string command = std::string("PATH=\"$PATH:/usr/local/cuda/bin\"; command -v ncu >/dev/null || exit 127; ncu --csv --metrics " COUNTER
                                      " --kernel-name '" KERNELS "' ") + self + " --once " + std::to_string(n) + " 2>&1";
    std::vector<double> found;
    char line[4096];
    FILE *output = popen(command.c_str(), "r");

    why = "ncu could not be run";
    while (output && fgets(line, sizeof(line), output)) {
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, "==ERROR=="))
            why = line;
        char *end = strrchr(line, '"'), *value;
        if (!strstr(line, COUNTER) || !end || end == line || strstr(line, "==ERROR=="))
            continue;
        *end = 0;
        value = strrchr(line, '"');
        std::string digits;
        for (; value && *value; value++)
            if (strchr("0123456789.", *value))
                digits += *value;
        found.push_back(strtod(digits.c_str(), NULL));
    }
    int ended = output ? pclose(output) : -1;
    if (ended != -1 && (ended >> 8 & 0xff) == 127)
        why = "Nsight Compute (ncu) is not installed here";
    if (found.size() != STEPS)
        found.clear();
    return found;
}

/* ---- The table ---- */

static void print_text(const cudaDeviceProp &device, unsigned n, const double *ms, double copied,
                       const std::vector<double> &conflicts, const std::string &why, const char *self)
{
    printf("%s: a block has %zu KiB of shared memory, up to %zu KiB if it asks; %d SMs with %zu KiB each\n", device.name,
           device.sharedMemPerBlock >> 10, device.sharedMemPerBlockOptin >> 10, device.multiProcessorCount,
           device.sharedMemPerMultiprocessor >> 10);
    if (copied > 0)
        printf("device memory: a copy of 1 GiB, read and written, at %.0f GB/s\n", copied);
    printf("binary32, %u x %u x %u, tiles of 32 x 32\n\n", n, n, n);
    printf("STEP          ms  TFLOP/s    GAIN  CONFLICTS  HOW\n");
    for (size_t i = 0; i < STEPS; i++) {
        printf("%-6s  %8.3f  %7.2f  ", steps[i].name, ms[i], 2.0 * n * n * n / ms[i] / 1e9);
        if (i)
            printf("%5.2f x  ", ms[i - 1] / ms[i]);
        else
            printf("%7s  ", "-");
        if (conflicts.empty())
            printf("%9s  ", "-");
        else
            printf("%9.3g  ", conflicts[i]);
        printf("%s\n", steps[i].how);
    }
    if (conflicts.empty())
        printf("\nbank conflicts were not counted: %s; where it is installed, and may read counters:\n"
               "  ncu --metrics " COUNTER " --kernel-name '" KERNELS "' %s --once %u\n",
               why.c_str(), self, n);
}

static void print_json(const cudaDeviceProp &device, unsigned n, const double *ms, double copied, const std::vector<double> &conflicts)
{
    printf("{\"device\": \"%s\", \"shared_bytes_a_block\": %zu, \"shared_bytes_a_block_optin\": %zu, \"copy_gb_per_s\": %.5g, \"size\": %u, \"steps\": [",
           device.name, device.sharedMemPerBlock, device.sharedMemPerBlockOptin, copied, n);
    for (size_t i = 0; i < STEPS; i++) {
        printf("%s{\"step\": \"%s\", \"seconds\": %.6g, \"tflops\": %.4g, \"gain\": ", i ? ", " : "", steps[i].name, ms[i] / 1e3,
               2.0 * n * n * n / ms[i] / 1e9);
        if (i)
            printf("%.4g", ms[i - 1] / ms[i]);
        else
            printf("null");
        if (conflicts.empty())
            printf(", \"bank_conflicts\": null}");
        else
            printf(", \"bank_conflicts\": %.0f}", conflicts[i]);
    }
    printf("]}\n");
}

int main(int argc, char **argv)
{
    bool json = false, once = false;
    unsigned n = 4096;
    int count = 0;

    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        once |= !strcmp(argv[i], "--once");
        if (argv[i][0] != '-')
            n = (unsigned)strtoul(argv[i], NULL, 10);
    }
    if (cudaGetDeviceCount(&count) || !count) {
        fputs("hbm-bench-smem: there is no GPU here: shared memory is measured where one is\n", stderr);
        return 1;
    }
    if (n < 1 || n > 32768) {
        fputs("hbm-bench-smem: the size is to be 1 to 32768\n", stderr);
        return 2;
    }
    struct hbm_matmul job = {0, HBM_F32, n, n, n, some((size_t)n * n), some((size_t)n * n), some((size_t)n * n), {}, nullptr, 32};
    if (once) {
        for (const auto &step : steps)
            run(job, step.kernel);
        must(cudaDeviceSynchronize(), "kernels");
        return 0;
    }
    cudaDeviceProp device;
    double ms[STEPS];
    std::vector<float> naive = result(job, HBM_MATMUL_NAIVE);
    must(cudaGetDeviceProperties(&device, 0), "device");
    for (size_t i = 0; i < STEPS; i++) {
        if (!agree(result(job, steps[i].kernel), naive)) {
            fprintf(stderr, "hbm-bench-smem: %s computes something else than naive\n", steps[i].name);
            return 1;
        }
        ms[i] = milliseconds([&] { run(job, steps[i].kernel); });
    }
    std::string why;
    std::vector<double> conflicts = count_conflicts(argv[0], n, why);
    double copied = copy_gb_per_s();
    if (json)
        print_json(device, n, ms, copied, conflicts);
    else
        print_text(device, n, ms, copied, conflicts, why, argv[0]);
    return 0;
}
