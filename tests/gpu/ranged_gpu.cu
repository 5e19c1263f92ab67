/* What a range of two ends takes on a GPU, against the reference: int8-asym that clips to one, and the counts of one side of 0 that it
 * is found in. 77 where there is no GPU. */
#include "tests/gpu/codec_test.cuh"

#include "kernels/histogram.h"

static std::string check_ranged(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign)
{
    std::vector<unsigned char> data;
    uint64_t coded = 0;

    hbm_shape_bytes(job.dims, job.rank, job.encoding.stored, &coded);
    return compare(on, job, raw, misalign, coded, data);
}

static void add_range(suite &all, unsigned dtype, float lo, float hi, bool small)
{
    char ends[64];

    snprintf(ends, sizeof(ends), "int8-asym of %s, from %g to %g,", hbm_dtype_name(dtype), lo, hi);
    all.sentences.push_back({std::string(ends) + " agrees with the reference", ""});
    for (const shape &s : shapes)
        for (int p = 0; p < PATTERNS; p++) {
            if (s.large && (small || (p != NORMAL && p != SPECIAL)))
                continue; /* the reference takes its time */
            test_case c = {&all.sentences.back(), {}, (pattern)p, s.large ? 0u : p % 2u, s.large};
            memcpy(c.job.dims, s.dims, sizeof(s.dims));
            c.job.rank = s.rank;
            c.job.ranged = true;
            c.job.lo = lo;
            c.job.hi = hi;
            c.job.dtype = dtype;
            c.job.encoding.codec = HBM_CODEC_INT8_ASYM;
            c.job.encoding.stored = HBM_I8;
            all.cases.push_back(c);
        }
}

static std::string counts_differ(lane &on, const std::vector<unsigned char> &raw, histogram_job job, unsigned misalign)
{
    size_t n = job.within == HISTOGRAM_ALL ? HISTOGRAM_BINS : HISTOGRAM_FINE;
    std::vector<uint64_t> counts(n, 0);
    unsigned width = hbm_dtype_bits(job.dtype) / 8;
    layout l;
    unsigned d_raw = l.add(job.count * width, misalign * width), d_counts = l.add(n * sizeof(uint64_t), 0);

    job.raw = raw.data();
    histogram_host(&job, counts.data());
    int error = on.start(l);
    if (!error)
        error = cudaMemcpyAsync(on.at(d_raw), raw.data(), job.count * width, cudaMemcpyHostToDevice, on.stream);
    if (!error)
        error = cudaMemsetAsync(on.at(d_counts), 0, n * sizeof(uint64_t), on.stream);
    job.raw = on.at(d_raw);
    if (!error)
        error = histogram_cuda(&job, static_cast<uint64_t *>(on.at(d_counts)), on.stream);
    if (error)
        return cudaGetErrorString((cudaError_t)error);
    std::string why = on.fetch();
    return why.empty() ? on.same("half of a count", d_counts, counts.data(), 4) : why;
}

static std::string sides(unsigned dtype)
{
    lane on;

    for (enum histogram_side side : {HISTOGRAM_ABOVE, HISTOGRAM_BELOW})
        for (unsigned count : {0u, 1u, 31u, 4099u, 3000017u})
            for (int p = 0; p < PATTERNS; p++)
                for (uint32_t within : {HISTOGRAM_ALL, 0x3f80u, 0u}) {
                    if (within != HISTOGRAM_ALL && dtype != HBM_F32)
                        continue;
                    histogram_job job = {nullptr, count, dtype, within, nullptr, side};
                    std::string why = counts_differ(on, samples(dtype, (pattern)p, count), job, p % 2u);
                    if (!why.empty())
                        return why + " (" + std::to_string(count) + " elements, " + pattern_names[p] + ")";
                }
    return "";
}

int main(void)
{
    static const float ranges[][2] = {{-0.5f, 1.5f}, {0, 1.5f}, {-1.5f, 0}, {-1.5f, 0.01f}, {-1, 1}, {0, 0}, {-1e30f, 3.4028235e38f}};
    bool small = getenv("HBM_TEST_SMALL") != nullptr;
    suite all;

    if (missing_gpu())
        return 77;
    all.of = check_ranged;
    for (unsigned dtype : {HBM_F32, HBM_F16, HBM_BF16})
        for (const float *range : ranges)
            add_range(all, dtype, range[0], range[1], small);
    run_suite(all);
    for (unsigned dtype : {HBM_F32, HBM_F16, HBM_BF16})
        report(std::string("the counts of either side of ") + hbm_dtype_name(dtype) + " agree with the reference", sides(dtype));
    return tell();
}
