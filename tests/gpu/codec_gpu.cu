/* The CUDA codecs of a fixed size, and the histogram, against the reference, bit for bit. 77 where there is no GPU. */
#include "tests/gpu/codec_test.cuh"

#include "kernels/histogram.h"

static std::string check_codec(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign)
{
    std::vector<unsigned char> data;
    uint64_t coded = 0;

    hbm_shape_bytes(job.dims, job.rank, job.encoding.stored, &coded);
    return compare(on, job, raw, misalign, coded, data);
}

/* Of large shapes every fourth. */
static const unsigned groups[] = {1, 3, 8, 32, 128, 100, 2048, 5000, 1u << 20};

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

/* int8-split: along every axis one, three, a hundredth, and all but one of the channels. */
static void add_splits(suite &all, unsigned dtype, bool small)
{
    all.sentences.push_back({std::string("int8-split of ") + hbm_dtype_name(dtype) + " agrees with the reference", ""});
    for (const shape &s : shapes)
        for (unsigned axis = 0; axis < s.rank && !(small && s.large); axis++)
            for (uint64_t kept : {(uint64_t)1, (uint64_t)3, s.dims[axis] / 100, s.dims[axis] - 1})
                for (int p = 0; p < PATTERNS; p++) {
                    test_case c = {&all.sentences.back(), {}, (pattern)p, (unsigned)(kept == 3 && !s.large), s.large};

                    memcpy(c.job.dims, s.dims, sizeof(s.dims));
                    c.job.rank = s.rank;
                    c.job.dtype = dtype;
                    c.job.encoding.codec = HBM_CODEC_INT8_SPLIT;
                    c.job.encoding.stored = HBM_I8;
                    c.job.encoding.axis = (uint8_t)axis;
                    c.job.encoding.group = (uint32_t)kept;
                    if (codec_supported(dtype, &c.job.encoding, c.job.dims, c.job.rank) &&
                        (!s.large || (p == NORMAL && kept == s.dims[axis] / 100))) /* the reference takes its time */
                        all.cases.push_back(c);
                }
}

/* --- more than 2^31 elements, checked in windows ---------------------------------------------------------------
 */

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
                    histogram_job job = {nullptr, count, dtype, within, nullptr, HISTOGRAM_BOTH};
                    std::string why = counts_differ(on, samples(dtype, (pattern)p, count), job, misalign);
                    if (!why.empty())
                        return why + " (" + std::to_string(count) + " elements, " + pattern_names[p] + ")";
                }
    return "";
}

int main(void)
{
    bool small = getenv("HBM_TEST_SMALL") != nullptr;
    const unsigned dtypes[] = {HBM_F32, HBM_F16, HBM_BF16};
    suite all;

    if (missing_gpu())
        return 77;
    all.of = check_codec;
    for (unsigned codec = HBM_CODEC_RAW + 1; hbm_codec_name(codec); codec++)
        for (unsigned dtype : dtypes)
            for (unsigned granularity = HBM_PER_TENSOR; granularity <= HBM_PER_GROUP; granularity++)
                if (hbm_codec_takes(codec, granularity) && !hbm_codec_varies(codec) && !hbm_codec_splits(codec))
                    add_combination(all, codec, dtype, granularity, 0, small);
    for (unsigned codec : {HBM_CODEC_INT8, HBM_CODEC_FP8_E4M3, HBM_CODEC_FP8_E5M2})
        for (unsigned dtype : dtypes)
            add_combination(all, codec, dtype, HBM_PER_TENSOR, 1.5f, small);
    for (unsigned dtype : dtypes)
        add_splits(all, dtype, small);
    run_suite(all);
    for (unsigned dtype : dtypes)
        report(std::string("the histogram of ") + hbm_dtype_name(dtype) + " agrees with the reference", histogram(dtype));
    if (!small) {
        report("int8 per tensor takes more than 2^31 elements", large(HBM_PER_TENSOR, 0));
        report("int8 per group takes more than 2^31 elements", large(HBM_PER_GROUP, 128));
    }
    return tell();
}
