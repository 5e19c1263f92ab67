/* Buffers that leave the GPU and come back, and that are encoded there, against a running daemon: `moves_gpu
 * RUNTIME_DIR`. CASES 15-18, 21 and 25, FAULTS 22, and a captured CUDA graph over memory that
 * moved. A line a result; 77: no GPU. */
#include <cmath>

#include "kernels/codec.h"
#include "tests/gpu/gpu_test.h"

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

__global__ void sum_words(const unsigned *p, size_t n, unsigned long long *sum)
{
    unsigned long long mine = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        mine += p[i];
    atomicAdd(sum, mine);
}

/* ---- A model of two groups ---- */

static const struct tensor {
    const char *name, *group;
    uint64_t size;
} tensors[] = {
    {"a.0.w", "a.0", 48 * MIB},
    {"a.0.b", "a.0", 1000},
    {"a.1.w", "a.1", 16 * MIB + 2},
    {"a.1.b", "a.1", 3 * MIB + 5},
};
#define N_TENSORS (sizeof(tensors) / sizeof(tensor))

static bool publish(hbm_session *session, const char *name)
{
    struct hbm_publish_buffer buffers[N_TENSORS] = {};
    struct hbm_publish spec = {};
    hbm_model *model = nullptr;
    int must_build = 0;
    bool good = true;

    for (size_t i = 0; i < N_TENSORS; i++) {
        buffers[i].name = tensors[i].name;
        buffers[i].group = tensors[i].group;
        buffers[i].dtype = HBM_U8;
        buffers[i].rank = 1;
        buffers[i].dims[0] = tensors[i].size;
    }
    spec.name = name;
    spec.device = device;
    spec.buffers = buffers;
    spec.n_buffers = N_TENSORS;
    if (hbm_publish_begin(session, &spec, 5000, &model, &must_build) || !must_build)
        return false;
    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        good &= write_pattern(info.pointer, i, info.size);
    }
    return good && hbm_publish_commit(model) == 0;
}

static bool model_is_whole(const hbm_model *model)
{
    bool good = hbm_model_count(model) == N_TENSORS;

    for (unsigned i = 0; i < hbm_model_count(model); i++) {
        struct hbm_info info;
        hbm_model_buffer(model, i, &info);
        good &= info.pointer && has_pattern(info.pointer, i, info.size);
    }
    return good;
}

static void part_and_whole(hbm_session *session)
{
    hbm_op *one = nullptr, *other = nullptr;
    hbm_model *model = nullptr;

    if (!check(publish(session, "parts"), "16: a model of two groups is published"))
        return;
    std::string before = hashes("model:parts");
    check(hbm_offload(session, "model:parts", HBM_TIER_HOST, HBM_FORCE, nullptr) == 0, "16: it goes to the host");
    check(hbm_restore(session, "parts/a.0.b", nullptr) == 0, "16: a part of one group is restored");
    check(tier_of("parts/a.0.b") == "device" && tier_of("parts/a.0.w") == "device" &&
              tier_of("parts/a.1.w") == "host",
          "16: with its group, without the other");
    check(hashes("model:parts") == before, "16: both tiers have the same hashes as before");
    check(hbm_restore(session, "parts/a.0.b", nullptr) == 0, "16: restoring it again is fine");
    if (check(hbm_model_attach(session, "parts", HBM_RO, 0, 10000, &model) == 0,
              "16: then all of it is attached")) {
        check(model_is_whole(model), "16: and every byte of both groups is right");
        hbm_model_detach(model);
    }
    check(hbm_offload(session, "model:parts", HBM_TIER_DISK, HBM_FORCE, nullptr) == 0, "16: it goes to the disk");
    hbm_restore(session, "model:parts", &one);
    hbm_restore(session, "model:parts", &other);
    int first = one ? hbm_op_wait(one, 20000, nullptr) : HBM_E_INTERNAL;
    int second = other ? hbm_op_wait(other, 20000, nullptr) : 0; /* refused at once is an answer, too */
    check(first == 0 && (second == 0 || second == HBM_E_BUSY),
          "16: two restores in one instant: the first goes, the other %s",
          second ? hbm_error_name(second) : "too, or is refused");
    hbm_op_free(one);
    hbm_op_free(other);
    check(hashes("model:parts") == before, "16: with the same hashes");
    check(ask("hbm.rm", "{\"model\":\"parts\"}").find("\"error\"") == std::string::npos,
          "16: the model is removed");
}

static void twenty_cycles(hbm_session *session)
{
    uint64_t device_used = 0, host_used = 0, disk_used = 0, free_then = 0;
    bool moved = true, hashed = true, mapped = true;
    hbm_model *model = nullptr;
    void *streams[] = {nullptr}, *address = nullptr;
    struct hbm_info info;

    if (!check(publish(session, "cycles") && hbm_model_attach(session, "cycles", HBM_RO, 0, 5000, &model) == 0,
               "17: a model is published and attached"))
        return;
    std::string before = hashes("model:cycles");
    hbm_model_buffer(model, 1, &info);
    address = info.pointer;
    double start = now_ms();
    for (int i = 0; i < 20 && moved && hashed && mapped; i++) {
        moved &= hbm_model_unlock(model, nullptr, streams, 1) == 0;
        moved &= hbm_offload(session, "model:cycles", i % 5 == 4 ? HBM_TIER_DISK : HBM_TIER_HOST, HBM_FORCE,
                             nullptr) == 0;
        hashed &= hashes("model:cycles") == before;
        moved &= hbm_restore(session, "model:cycles", nullptr) == 0;
        hashed &= hashes("model:cycles") == before;
        mapped &= hbm_model_lock(model, nullptr, 10000) == 0;
        hbm_model_buffer(model, 1, &info);
        mapped &= info.pointer == address && (i % 5 || model_is_whole(model));
        if (i == 4) {
            device_used = used(), host_used = used("host"), disk_used = used("disk");
            free_then = driver_free();
        }
    }
    double grown = mib_between(driver_free(), free_then);
    note("17: a cycle takes %.1f ms, both hashes in it", (now_ms() - start) / 20);
    check(moved, "17: twenty cycles of offload and restore go well");
    check(hashed, "17: with the same hashes, there and back");
    check(mapped, "17: at the same address, with the same bytes");
    check(used() == device_used && used("host") == host_used && used("disk") == disk_used,
          "17: the bytes counted are flat");
    check(grown <= 4, "17: the device's memory is flat: %+.1f MiB since the fifth", grown);
    hbm_model_detach(model);
    check(ask("hbm.rm", "{\"model\":\"cycles\"}").find("\"error\"") == std::string::npos,
          "17: the model is removed");
}

static void offload_twice(hbm_session *session, enum hbm_tier tier)
{
    struct hbm_spec spec = spec_of("moves.twice", 5 * MIB + 1);
    const char *where = hbm_tier_name(tier);
    uint64_t used_device = used(), used_disk = used("disk");
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 2, spec.size),
               "15: a buffer"))
        return;
    uint64_t id = id_of(lease);
    check(hbm_detach(lease) == 0 && hbm_offload(session, spec.name, tier, 0, nullptr) == 0,
          "15: it is offloaded to %s", where);
    int again = hbm_offload(session, spec.name, tier, 0, nullptr);
    check(again == 0 && tier_of(spec.name) == where, "15: and again, which changes nothing (%s)",
          hbm_error_name(again));
    if (check(hbm_attach(session, spec.name, HBM_RO, 0, 10000, &lease) == 0, "15: it can be attached"))
        check(has_pattern(hbm_pointer(lease), 2, spec.size) && hbm_detach(lease) == 0, "15: with its bytes");
    check(hbm_offload(session, spec.name, tier, 0, nullptr) == 0 && hbm_free(session, id) == 0,
          "15: it is freed while on %s", where);
    check(hbm_attach_id(session, id, HBM_RO, 0, 1000, &lease) == HBM_E_STALE, "15: its id is STALE");
    check(hbm_restore(session, spec.name, nullptr) == HBM_E_NOT_FOUND, "15: its name is NOT_FOUND");
    check(used() == used_device && used("disk") == used_disk, "15: and no byte stays counted on device or disk");
}

static void freed_bytes(hbm_session *session)
{
    struct hbm_spec spec = spec_of("moves.freed", GIB);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && hbm_detach(lease) == 0, "18: a buffer of 1 GiB"))
        return;
    /* The worker's own context and buffers, made at the first move, are not what is measured. */
    hbm_offload(session, spec.name, HBM_TIER_HOST, 0, nullptr);
    hbm_restore(session, spec.name, nullptr);
    for (enum hbm_tier tier : {HBM_TIER_HOST, HBM_TIER_DISK}) {
        uint64_t free_before = driver_free(), used_before = used();
        int error = hbm_offload(session, spec.name, tier, 0, nullptr);
        double daemon_says = mib_between(used(), used_before), driver_says = 0;
        for (double start = now_ms(); driver_says < 1016 && now_ms() - start < 1000; sleep_ms(1))
            driver_says = mib_between(free_before, driver_free());
        check(error == 0 && std::fabs(driver_says - 1024) < 8 && daemon_says == 1024,
              "18: offloaded to %s: the daemon says %+.0f MiB free, and so, soon, does the driver: %+.0f",
              hbm_tier_name(tier), daemon_says, driver_says);
        error = hbm_restore(session, spec.name, nullptr);
        driver_says = mib_between(free_before, driver_free());
        check(error == 0 && std::fabs(driver_says) < 8 && used() == used_before,
              "18: and after its return %+.0f MiB", driver_says);
    }
    if (hbm_attach(session, spec.name, HBM_RW, 0, 5000, &lease) == 0)
        check(put_away(session, lease), "18: it is freed");
}

/* The host memory that the first one's return leaves is of just the size that the second one wants on the device.
 */
static void one_after_the_other(hbm_session *session)
{
    struct hbm_spec spec[] = {spec_of("moves.first", 256 * MIB), spec_of("moves.second", 256 * MIB)};
    hbm_lease *leases[2];
    uint64_t used_before = used();
    bool good = true;

    for (unsigned i = 0; i < 2; i++)
        good = good && hbm_alloc(session, &spec[i], &leases[i]) == 0 &&
               write_pattern(hbm_pointer(leases[i]), 40 + i, spec[i].size) && hbm_detach(leases[i]) == 0;
    uint64_t free_before = driver_free();
    for (unsigned i = 0; i < 2; i++)
        good = good && hbm_offload(session, spec[i].name, HBM_TIER_HOST, 0, nullptr) == 0;
    for (unsigned i = 0; i < 2; i++)
        good = good && hbm_restore(session, spec[i].name, nullptr) == 0;
    double driver_says = mib_between(free_before, driver_free());
    /* The first large restore leaves the worker memory to send ahead to: two chunks of 18 MiB, until it is idle. */
    check(good && driver_says < 8 && driver_says > -8 - 2 * 18 && used() == used_before + 512 * MIB,
          "16: two buffers of one size come back one after the other, both to the device: %+.0f MiB", driver_says);
    for (unsigned i = 0; i < 2; i++)
        if (check(hbm_attach(session, spec[i].name, HBM_RW, 0, 5000, &leases[i]) == 0 &&
                      has_pattern(hbm_pointer(leases[i]), 40 + i, spec[i].size),
                  "16: with their bytes"))
            put_away(session, leases[i]);
}

/* FAULTS 22 where the device is full: the first fits, the second does not. */
static void no_room_for_both(hbm_session *session)
{
    struct hbm_spec spec[] = {spec_of("moves.room.1", GIB), spec_of("moves.room.2", GIB)};
    hbm_lease *lease;
    void *rest = nullptr;
    bool good = true;

    for (auto &one : spec) {
        good = good && hbm_alloc(session, &one, &lease) == 0;
        if (good)
            fill_bf16<<<1024, 256>>>((unsigned short *)hbm_pointer(lease), GIB / 2);
        good = good && cudaDeviceSynchronize() == cudaSuccess && hbm_detach(lease) == 0;
    }
    std::string before = hashes("moves.room.*");
    uint64_t free_with_both = driver_free();
    if (!check(good && !before.empty() && hbm_offload(session, "moves.room.*", HBM_TIER_HOST, 0, nullptr) == 0,
               "22: two buffers of 1 GiB go to the host"))
        return;
    uint64_t used_before = used();
    /* The offload is answered before the driver has put all of it away. */
    for (int i = 0; i < 500 && driver_free() < free_with_both + 2 * GIB - 8 * MIB; i++)
        usleep(10000);
    check(cudaMalloc(&rest, driver_free() - 3 * GIB / 2) == cudaSuccess,
          "22: something else leaves 1.5 GiB on the device");
    uint64_t free_before = driver_free();
    int error = hbm_restore(session, "moves.room.*", nullptr);
    check(error == HBM_E_NO_MEMORY, "22: restoring both is NO_MEMORY (%s)", hbm_error_name(error));
    double driver_says = mib_between(free_before, driver_free());
    check(tier_of("moves.room.1") == "host" && tier_of("moves.room.2") == "host" && used() == used_before &&
              driver_says > -8,
          "22: neither came, nothing is taken on the device (%+.0f MiB)", driver_says);
    check(hashes("moves.room.*") == before, "22: and both are whole where they were");
    cudaFree(rest);
    check(hbm_restore(session, "moves.room.*", nullptr) == 0 && hashes("moves.room.*") == before,
          "22: with room they come, whole");
    for (auto &one : spec)
        if (hbm_attach(session, one.name, HBM_RW, 0, 5000, &lease) == 0)
            put_away(session, lease);
}

/* ---- Codecs ---- */

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
    struct hbm_spec spec = spec_of("moves.hard", 0);
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
    struct hbm_spec spec = spec_of("moves.parked", 0);
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
    struct hbm_spec spec = spec_of("moves.huge", 0);
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

/* ---- A captured graph ---- */

static unsigned long long replay(cudaGraphExec_t graph, cudaStream_t stream, unsigned long long *sum)
{
    unsigned long long host = 0;

    if (cudaMemsetAsync(sum, 0, sizeof(host), stream) || cudaGraphLaunch(graph, stream) ||
        cudaMemcpyAsync(&host, sum, sizeof(host), cudaMemcpyDeviceToHost, stream) || cudaStreamSynchronize(stream))
        note("replay: %s", cudaGetErrorName(cudaGetLastError()));
    return host;
}

static unsigned long long sum_of(unsigned seed, uint64_t size)
{
    auto bytes = pattern(seed, size);
    unsigned long long sum = 0;

    for (uint64_t i = 0; i < size; i += 4) {
        unsigned word;
        memcpy(&word, &bytes[i], 4);
        sum += word;
    }
    return sum;
}

static void graph_over_moves(hbm_session *session)
{
    struct hbm_spec spec = spec_of("moves.graph", 8 * MIB);
    unsigned long long *sum, right = sum_of(8, spec.size);
    cudaGraphExec_t exec = nullptr;
    cudaStream_t stream;
    cudaGraph_t graph;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 8, spec.size) &&
                   !cudaMalloc(&sum, sizeof(*sum)) && !cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
               "graph: a buffer"))
        return;
    const unsigned *words = (const unsigned *)hbm_pointer(lease);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    sum_words<<<64, 256, 0, stream>>>(words, spec.size / 4, sum);
    check(!cudaStreamEndCapture(stream, &graph) && !cudaGraphInstantiate(&exec, graph, 0),
          "graph: a kernel that reads it is captured");
    check(replay(exec, stream, sum) == right, "graph: it reads the right bytes");
    for (enum hbm_tier tier : {HBM_TIER_HOST, HBM_TIER_DISK, HBM_TIER_HOST}) {
        bool moved =
            hbm_unlock(lease, (void **)&stream, 1) == 0 && hbm_offload(session, spec.name, tier, 0, nullptr) == 0;
        bool away = tier_of(spec.name) == hbm_tier_name(tier);
        bool back = hbm_lock(lease, 10000) == 0 && hbm_pointer(lease) == words;
        check(moved && away && back && replay(exec, stream, sum) == right, "graph: after a way to %s and back, too",
              hbm_tier_name(tier));
    }
    write_pattern(hbm_pointer(lease), 9, spec.size);
    check(replay(exec, stream, sum) == sum_of(9, spec.size), "graph: and what is written after that");
    check(put_away(session, lease), "graph: it is freed");
    cudaFree(sum);
    cudaStreamDestroy(stream);
}

static void tests(hbm_session *session)
{
    uint64_t used_at_first = used();

    graph_over_moves(session);
    offload_twice(session, HBM_TIER_HOST);
    offload_twice(session, HBM_TIER_DISK);
    part_and_whole(session);
    one_after_the_other(session);
    twenty_cycles(session);
    freed_bytes(session);
    no_room_for_both(session);
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
