/* Buffers that are encoded on the GPU, in place or on their way to another tier, against a running daemon:
 * `compress_gpu RUNTIME_DIR`. CASES 21 and 25. A line a result; 77: no GPU. */
#include <cmath>

#include "kernels/codec.h"
#include "tests/gpu/gpu_test.h"

/* ---- In place ---- */

static bool compress(hbm_session *session, const char *name, unsigned codec, unsigned granularity,
                     struct hbm_receipt *receipt)
{
    struct hbm_compress spec = {};

    spec.sel = name;
    spec.codec = codec;
    spec.granularity = granularity;
    return hbm_compress(session, &spec, receipt, nullptr) == 0;
}

#define HARD_ROWS 9
#define HARD_COLUMNS 1023

/* Row by row: zeros, tiny, around fp8's largest, huge, the smallest there is, one alone, mixed. */
static float hard_value(unsigned row, unsigned column)
{
    static const float values[] = {0, 1e-37f, 479, 480, 1e30f, 1e-45f};

    if (row < 6)
        return column % 2 ? -values[row] : values[row];
    if (row == 6)
        return column == 7 ? 3.5f : 0;
    return row == 7 ? sinf((float)column) * 1e-37f : sinf((float)column) * 480;
}

static void hard_values(hbm_session *session, unsigned codec, unsigned granularity)
{
    struct hbm_spec spec = spec_of("compress.hard", 0);
    std::vector<float> in(HARD_ROWS * HARD_COLUMNS), out(in.size());
    struct hbm_receipt receipt = {};
    const char *kind = hbm_codec_name(codec);
    bool finite = true, zeros = true, close = true;
    hbm_lease *lease;

    spec.dtype = HBM_F32;
    spec.rank = 2;
    spec.dims[0] = HARD_ROWS;
    spec.dims[1] = HARD_COLUMNS;
    for (unsigned i = 0; i < in.size(); i++)
        in[i] = hard_value(i / HARD_COLUMNS, i % HARD_COLUMNS);
    if (!check(hbm_alloc(session, &spec, &lease) == 0 &&
                   !cudaMemcpy(hbm_pointer(lease), in.data(), in.size() * 4, cudaMemcpyHostToDevice) &&
                   !cudaDeviceSynchronize(),
               "21: %s: a tensor of hard rows", kind))
        return;
    hbm_detach(lease);
    check(compress(session, spec.name, codec, granularity, &receipt) && receipt.nonfinite == 0,
          "21: %s: it is compressed", kind);
    check(hbm_decompress(session, spec.name, nullptr) == 0 &&
              hbm_attach(session, spec.name, HBM_RW, 0, 5000, &lease) == 0,
          "21: %s: and decompressed", kind);
    cudaMemcpy(out.data(), hbm_pointer(lease), out.size() * 4, cudaMemcpyDeviceToHost);
    for (unsigned i = 0; i < in.size(); i++) {
        unsigned row = i / HARD_COLUMNS;
        float amax = 0;
        for (unsigned k = 0; k < HARD_COLUMNS; k++)
            amax = fmaxf(amax, fabsf(in[row * HARD_COLUMNS + k]));
        finite &= std::isfinite(out[i]);
        zeros &= in[i] != 0 || out[i] == 0;
        if (codec == HBM_CODEC_INT8) /* half of a step */
            close &= fabsf(out[i] - in[i]) <= amax / 254 * 1.001f;
        else if (codec == HBM_CODEC_INT8_ASYM) /* likewise, of scales that are normal */
            close &= fabsf(out[i] - in[i]) <= fmaxf(amax / 254 * 1.001f, 0x1p-127f);
        else if (codec == HBM_CODEC_FP8_E4M3) /* likewise, of four significant bits, or of its subnormals; scales
                                                 are normal */
            close &=
                fabsf(out[i] - in[i]) <= fmaxf(fabsf(in[i]) / 16, fmaxf(amax / 448, 0x1p-126f) * 0x1p-10f) * 1.001f;
        else /* fp16: to nearest, its range kept to */
            close &= fabsf(out[i] - fminf(fmaxf(in[i], -65504), 65504)) <= fabsf(in[i]) / 2048 + 6e-8f ||
                     fabsf(in[i]) > 65504;
    }
    check(finite, "21: %s: every value is finite", kind);
    check(zeros, "21: %s: zero stays zero", kind);
    check(close, "21: %s: every value is as close as its row allows", kind);
    check(put_away(session, lease), "21: %s: it is freed", kind);
}

/* ---- Parked ---- */

#define PARKED_ROWS 3001
#define PARKED_GROUP 128
#define PARKED_COLUMNS 8191 /* 94 MiB: several batches, and rows that are no multiple of any vector */

/* What the reference makes of it, there and back. */
static void through_codec(const std::vector<float> &in, unsigned codec, unsigned granularity,
                          std::vector<float> &out)
{
    std::vector<unsigned short> data(in.size());
    struct hbm_receipt receipt = {};
    struct codec_job job = {};
    uint64_t units = 0;

    job.raw_in = in.data();
    job.raw_out = out.data();
    job.data = data.data();
    job.dims[0] = PARKED_ROWS;
    job.dims[1] = PARKED_COLUMNS;
    job.rank = 2;
    job.dtype = HBM_F32;
    job.encoding.codec = (uint8_t)codec;
    job.encoding.granularity = (uint8_t)granularity;
    job.encoding.stored = (uint8_t)hbm_codec_stored_dtype(codec);
    job.encoding.group = granularity == HBM_PER_GROUP ? PARKED_GROUP : 0;
    hbm_encoding_units(&job.encoding, job.dims, job.rank, &units);
    std::vector<float> scale(units);
    std::vector<int32_t> zero(units);
    job.scale = scale.data();
    job.zero = zero.data();
    codec_encode_host(&job, &receipt);
    codec_decode_host(&job);
}

static void parked(hbm_session *session, unsigned codec, unsigned granularity, unsigned tier)
{
    struct hbm_spec spec = spec_of("compress.parked", 0);
    std::vector<float> in((size_t)PARKED_ROWS * PARKED_COLUMNS), wanted(in.size()), out(in.size());
    struct hbm_compress how = {};
    char kind[64];
    hbm_lease *lease;

    snprintf(kind, sizeof(kind), "parked as %s, granularity %u, %s", hbm_codec_name(codec), granularity,
             hbm_tier_name(tier));
    spec.dtype = HBM_F32;
    spec.rank = 2;
    spec.dims[0] = PARKED_ROWS;
    spec.dims[1] = PARKED_COLUMNS;
    for (size_t i = 0; i < in.size(); i++)
        in[i] = (float)((double)(i * 0x9e3779b97f4a7c15ull >> 40) / 1e5 - 80);
    if (!check(hbm_alloc(session, &spec, &lease) == 0 &&
                   !cudaMemcpy(hbm_pointer(lease), in.data(), in.size() * 4, cudaMemcpyHostToDevice) &&
                   !cudaDeviceSynchronize() && hbm_detach(lease) == 0,
               "%s: a matrix", kind))
        return;
    through_codec(in, codec, granularity, wanted);
    how.sel = spec.name;
    how.codec = codec;
    how.granularity = granularity;
    how.group = granularity == HBM_PER_GROUP ? PARKED_GROUP : 0;
    how.park = 1;
    check(hbm_compress(session, &how, nullptr, nullptr) == 0 && tier_of(spec.name) == "device", "%s: it is parked",
          kind);
    check(hbm_offload(session, spec.name, tier, 0, nullptr) == 0 && tier_of(spec.name) == hbm_tier_name(tier),
          "%s: it goes", kind);
    std::string away = hashes(spec.name);
    if (!check(hbm_attach(session, spec.name, HBM_RW, 0, 10000, &lease) == 0, "%s: and comes back", kind))
        return;
    cudaMemcpy(out.data(), hbm_pointer(lease), out.size() * 4, cudaMemcpyDeviceToHost);
    check(!memcmp(out.data(), wanted.data(), out.size() * 4), "%s: as the reference decodes what it encodes", kind);
    check(!away.empty() && hashes(spec.name) == away, "%s: with the hash that it had there", kind);
    check(put_away(session, lease), "%s: it is freed", kind);
}

/* ---- More than 2^31 elements ---- */

#define ROW 65536
#define ROWS 32769 /* 2^31 + 65536 elements in all */

/* Whole numbers up to 127 of either sign, which bf16 and int8 (with a scale of 1) both hold exactly. */
__device__ int small_number(uint64_t i)
{
    return (int)((i * 0x9e3779b97f4a7c15ull >> 40) % 255) - 127;
}

__global__ void fill_bf16(unsigned short *p, uint64_t n)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = (unsigned short)(__float_as_uint((float)small_number(i)) >> 16);
}

__global__ void count_wrong_bf16(const unsigned short *p, uint64_t n, unsigned long long *wrong)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        if (__uint_as_float((unsigned)p[i] << 16) != (float)small_number(i))
            atomicAdd(wrong, 1ull);
}

__global__ void count_wrong_int8(const signed char *p, uint64_t n, unsigned long long *wrong)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        if (p[i] != small_number(i))
            atomicAdd(wrong, 1ull);
}

static unsigned long long count_wrong(void (*launch)(const void *, unsigned long long *), const void *p)
{
    unsigned long long *wrong, host = ~0ull;

    if (cudaMalloc(&wrong, sizeof(host)) || cudaMemset(wrong, 0, sizeof(host)))
        return host;
    launch(p, wrong);
    if (cudaMemcpy(&host, wrong, sizeof(host), cudaMemcpyDeviceToHost))
        host = ~0ull;
    cudaFree(wrong);
    return host;
}

static void launch_bf16(const void *p, unsigned long long *wrong)
{
    count_wrong_bf16<<<1024, 256>>>((const unsigned short *)p, (uint64_t)ROWS * ROW, wrong);
}

static void launch_int8(const void *p, unsigned long long *wrong)
{
    count_wrong_int8<<<1024, 256>>>((const signed char *)p, (uint64_t)ROWS * ROW, wrong);
}

static void over_2_31(hbm_session *session)
{
    struct hbm_spec spec = spec_of("compress.huge", 0);
    struct hbm_receipt receipt = {};
    struct hbm_info info;
    hbm_lease *lease;

    spec.dtype = HBM_BF16;
    spec.rank = 2;
    spec.dims[0] = ROWS;
    spec.dims[1] = ROW;
    if (!check(hbm_alloc(session, &spec, &lease) == 0, "25: a tensor of 2^31 + 65536 bf16"))
        return;
    fill_bf16<<<1024, 256>>>((unsigned short *)hbm_pointer(lease), (uint64_t)ROWS * ROW);
    check(cudaDeviceSynchronize() == cudaSuccess && count_wrong(launch_bf16, hbm_pointer(lease)) == 0,
          "25: filled");
    uint64_t id = id_of(lease);
    hbm_detach(lease);
    if (check(compress(session, spec.name, HBM_CODEC_INT8, HBM_PER_CHANNEL, &receipt),
              "25: it is compressed to int8"))
        check(receipt.elements == (uint64_t)ROWS * ROW && receipt.max_abs_error == 0 &&
                  receipt.clipped_fraction == 0,
              "25: the receipt counts %llu elements, error %g", (unsigned long long)receipt.elements,
              receipt.max_abs_error);
    if (check(hbm_attach(session, spec.name, HBM_RO, 0, 5000, &lease) == 0, "25: it is attached")) {
        hbm_lease_info(lease, &info);
        unsigned long long wrong = count_wrong(launch_int8, info.pointer);
        check(info.encoding.stored == HBM_I8 && wrong == 0, "25: every code is right (%llu are not)", wrong);
        hbm_detach(lease);
    }
    if (check(hbm_decompress(session, spec.name, nullptr) == 0 &&
                  hbm_attach(session, spec.name, HBM_RO, 0, 5000, &lease) == 0,
              "25: it is decompressed")) {
        unsigned long long wrong = count_wrong(launch_bf16, hbm_pointer(lease));
        check(wrong == 0, "25: every element is right (%llu are not)", wrong);
        hbm_detach(lease);
    }
    check(hbm_free(session, id) == 0, "25: it is freed");
}

static void tests(hbm_session *session)
{
    uint64_t used_at_first = used();

    hard_values(session, HBM_CODEC_INT8, HBM_PER_CHANNEL);
    hard_values(session, HBM_CODEC_INT8_ASYM, HBM_PER_CHANNEL);
    hard_values(session, HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL);
    hard_values(session, HBM_CODEC_FP16, HBM_PER_TENSOR);
    parked(session, HBM_CODEC_FP16, HBM_PER_TENSOR, HBM_TIER_HOST);
    parked(session, HBM_CODEC_BF16, HBM_PER_TENSOR, HBM_TIER_DISK);
    parked(session, HBM_CODEC_INT8, HBM_PER_CHANNEL, HBM_TIER_HOST);
    parked(session, HBM_CODEC_INT8, HBM_PER_CHANNEL, HBM_TIER_DISK);
    parked(session, HBM_CODEC_INT8, HBM_PER_TENSOR, HBM_TIER_HOST);
    parked(session, HBM_CODEC_FP8_E4M3, HBM_PER_CHANNEL, HBM_TIER_HOST);
    parked(session, HBM_CODEC_FP8_E5M2, HBM_PER_TENSOR, HBM_TIER_HOST);
    parked(session, HBM_CODEC_FP16_SCALED, HBM_PER_TENSOR, HBM_TIER_HOST);
    parked(session, HBM_CODEC_INT4, HBM_PER_GROUP, HBM_TIER_HOST);
    parked(session, HBM_CODEC_INT8_ASYM, HBM_PER_TENSOR, HBM_TIER_HOST);
    parked(session, HBM_CODEC_INT8_ASYM, HBM_PER_CHANNEL, HBM_TIER_DISK);
    parked(session, HBM_CODEC_INT8_ASYM, HBM_PER_GROUP, HBM_TIER_HOST);
    over_2_31(session);
    check(used() == used_at_first, "no byte more is used than at first");
}

static int be_child(hbm_session *, char **)
{
    return 2;
}

int main(int argc, char **argv)
{
    return run_program(argc, argv, be_child, tests);
}
