/* Buffers that leave the GPU and come back as they were, against a running daemon: `moves_gpu RUNTIME_DIR`.
 * CASES 15-18, FAULTS 22, and a captured CUDA graph over memory that moved. A line a result; 77: no GPU. */
#include <cmath>

#include "tests/gpu/gpu_test.h"

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
        good = good && cudaMemset(hbm_pointer(lease), 0x5a, GIB) == cudaSuccess &&
               cudaDeviceSynchronize() == cudaSuccess && hbm_detach(lease) == 0;
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
