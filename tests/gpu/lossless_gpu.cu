/* bf16-lossless on the GPU against the reference, bit for bit: what it counts, its stream, streams that are damaged, and what
 * comes back. 77 where there is no GPU. */
#include "tests/gpu/codec_test.cuh"

#include "kernels/lossless.h"

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

static std::string check_lossless(lane &on, codec_job job, const std::vector<unsigned char> &raw, unsigned misalign)
{
    std::vector<unsigned char> data;
    uint64_t count = 0;

    hbm_shape_elements(job.dims, job.rank, &count);
    measures measured(reinterpret_cast<const uint16_t *>(raw.data()), count);
    std::string why = compare_measures(on, measured, raw, count, misalign);
    job.data_bytes = measured.bytes;
    job.code = &measured.code;
    if (why.empty())
        why = compare(on, job, raw, misalign, measured.bytes, data);
    return why.empty() && count && count < 100000 ? compare_damaged(on, job, data, count) : why;
}

static void add_dtype(suite &all, unsigned dtype, bool small)
{
    all.sentences.push_back({std::string("bf16-lossless of ") + hbm_dtype_name(dtype) + " agrees with the reference", ""});
    for (const shape &s : shapes)
        for (int p = 0; p < PATTERNS; p++) {
            uint64_t count;

            hbm_shape_elements(s.dims, s.rank, &count);
            if (s.large && (small || (p != NORMAL && (p != BITS || count > 2000000))))
                continue; /* the reference takes its time */
            for (unsigned misalign = 0; misalign < (s.large || p ? 1u : 2u); misalign++) {
                test_case c = {&all.sentences.back(), {}, (pattern)p, misalign, s.large};

                memcpy(c.job.dims, s.dims, sizeof(s.dims));
                c.job.rank = s.rank;
                c.job.dtype = dtype;
                c.job.encoding.codec = HBM_CODEC_BF16_LOSSLESS;
                c.job.encoding.stored = HBM_U8;
                all.cases.push_back(c);
            }
        }
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
    suite all;

    if (missing_gpu())
        return 77;
    all.of = check_lossless;
    for (unsigned dtype : {HBM_F16, HBM_BF16})
        add_dtype(all, dtype, small);
    run_suite(all);
    if (!small)
        report("bf16-lossless gives more than 2^31 elements back", large_lossless());
    return tell();
}
