/* Memory that a client uses while it lies in host memory, against a running daemon: `live_gpu RUNTIME_DIR`. Live
 * demotion and promotion under kernels and a captured CUDA graph, and leases in place. A line a result; 77: no GPU. */
#include "tests/gpu/gpu_test.h"

__global__ void sum_words(const unsigned *p, size_t n, unsigned long long *sum)
{
    unsigned long long mine = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        mine += p[i];
    atomicAdd(sum, mine);
}

__global__ void write_words(unsigned *p, size_t n, unsigned value)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = value;
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

static enum hbm_tier tier_here(const hbm_lease *lease)
{
    struct hbm_info info;

    hbm_lease_info(lease, &info);
    return (enum hbm_tier)info.tier;
}

/* ---- A graph that reads a buffer: captured once, replayed wherever the buffer lies ---- */

struct reader {
    cudaStream_t stream;
    cudaGraphExec_t graph;
    unsigned long long *sum;
};

static bool capture(struct reader *reader, const void *words, uint64_t size)
{
    cudaGraph_t graph;

    if (cudaMalloc(&reader->sum, sizeof(*reader->sum)) ||
        cudaStreamCreateWithFlags(&reader->stream, cudaStreamNonBlocking) ||
        cudaStreamBeginCapture(reader->stream, cudaStreamCaptureModeGlobal))
        return false;
    sum_words<<<64, 256, 0, reader->stream>>>((const unsigned *)words, size / 4, reader->sum);
    return !cudaStreamEndCapture(reader->stream, &graph) && !cudaGraphInstantiate(&reader->graph, graph, 0);
}

static unsigned long long replay(const struct reader *reader)
{
    unsigned long long host = 0;

    if (cudaMemsetAsync(reader->sum, 0, sizeof(host), reader->stream) ||
        cudaGraphLaunch(reader->graph, reader->stream) ||
        cudaMemcpyAsync(&host, reader->sum, sizeof(host), cudaMemcpyDeviceToHost, reader->stream) ||
        cudaStreamSynchronize(reader->stream))
        note("replay: %s", cudaGetErrorName(cudaGetLastError()));
    return host;
}

static void drop(struct reader *reader)
{
    cudaGraphExecDestroy(reader->graph);
    cudaStreamDestroy(reader->stream);
    cudaFree(reader->sum);
}

/* An engine's loop until the operation has ended: a step, a safe point. Its error; *wrong counts the steps that read
 * anything else. */
static int work_through(hbm_session *session, hbm_op *op, const struct reader *reader, unsigned long long right,
                        unsigned *wrong)
{
    int error;

    while ((error = hbm_op_wait(op, 0, nullptr)) == HBM_E_TIMEOUT) {
        *wrong += replay(reader) != right;
        if (hbm_safepoint(session, (void **)&reader->stream, 1, 60000)) {
            note("safe point: %s", hbm_last_error_detail());
            error = HBM_E_INTERNAL;
            break;
        }
    }
    hbm_op_free(op);
    return error;
}

static int move(hbm_session *session, const char *name, enum hbm_tier tier, const struct reader *reader,
                unsigned long long right, unsigned *wrong)
{
    hbm_op *op = nullptr;
    int error = tier == HBM_TIER_HOST ? hbm_offload(session, name, HBM_TIER_HOST, HBM_LIVE, &op)
                                      : hbm_restore(session, name, &op);

    return error ? error : work_through(session, op, reader, right, wrong);
}

/* ---- Demotion and promotion ---- */

/* False where the driver shares no host memory: then it is refused, and nothing has moved. */
static bool can_demote(hbm_session *session)
{
    struct hbm_spec spec = spec_of("live.probe", 4 * MIB);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && hbm_unlock(lease, nullptr, 0) == 0, "probe: a buffer"))
        return false;
    int error = hbm_offload(session, spec.name, HBM_TIER_HOST, HBM_LIVE, nullptr);
    if (error)
        check(error == HBM_E_UNSUPPORTED && tier_of(spec.name) == "device",
              "probe: without host memory that processes share it is refused, and nothing has moved (%s)",
              hbm_strerror(error));
    put_away(session, lease);
    return error == 0;
}

static void graph_under_demotion(hbm_session *session, unsigned access, uint64_t size)
{
    const char *how = access == HBM_RW ? "writer" : "reader";
    struct hbm_spec spec = spec_of("live.graph", size);
    unsigned long long right = sum_of(8, size);
    uint64_t used_before = used();
    struct reader reader = {};
    unsigned wrong = 0;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 8, size), "%s: a buffer", how))
        return;
    if (access == HBM_RO) {
        hbm_detach(lease);
        if (!check(hbm_attach(session, spec.name, HBM_RO, 0, 5000, &lease) == 0, "%s: attached", how))
            return;
    }
    void *words = hbm_pointer(lease);
    uint64_t used_device = used();
    std::string before = hashes(spec.name);
    check(capture(&reader, words, size) && replay(&reader) == right, "%s: a captured graph reads it", how);
    for (unsigned turn = 0; turn < 3; turn++) {
        int error = move(session, spec.name, HBM_TIER_HOST, &reader, right, &wrong);
        check(error == 0 && tier_of(spec.name) == "host" && tier_here(lease) == HBM_TIER_HOST &&
                  hbm_pointer(lease) == words && used() == used_before,
              "%s: it is demoted between two steps, at the same address, and the device has its room (%s)", how,
              hbm_strerror(error));
        check(wrong == 0 && replay(&reader) == right, "%s: the graph reads the right bytes before, meanwhile and after", how);
        check(hbm_lock(lease, 0) == 0 && hbm_unlock(lease, nullptr, 0) == 0 && tier_of(spec.name) == "host",
              "%s: a lock finds it resident there", how);
        check(hashes(spec.name) == before && has_pattern(words, 8, size), "%s: the daemon and a copy see the same", how);
        error = move(session, spec.name, HBM_TIER_DEVICE, &reader, right, &wrong);
        check(error == 0 && tier_here(lease) == HBM_TIER_DEVICE && used() == used_device && wrong == 0 &&
                  replay(&reader) == right && hashes(spec.name) == before,
              "%s: it is back the same way, and the graph reads on (%s)", how, hbm_strerror(error));
    }
    drop(&reader);
    check(put_away(session, lease), "%s: it is freed", how);
}

static void writes_in_host_memory(hbm_session *session)
{
    struct hbm_spec spec = spec_of("live.written", 8 * MIB);
    struct reader reader = {};
    unsigned wrong = 0;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 1, spec.size) &&
                   capture(&reader, hbm_pointer(lease), spec.size),
               "written: a buffer"))
        return;
    unsigned *words = (unsigned *)hbm_pointer(lease);
    check(move(session, spec.name, HBM_TIER_HOST, &reader, sum_of(1, spec.size), &wrong) == 0, "written: it is demoted");
    write_words<<<64, 256, 0, reader.stream>>>(words, spec.size / 4, 5);
    check(replay(&reader) == 5 * spec.size / 4, "written: a kernel writes it where it lies");
    check(move(session, spec.name, HBM_TIER_DEVICE, &reader, 5 * spec.size / 4, &wrong) == 0 && wrong == 0 &&
              replay(&reader) == 5 * spec.size / 4,
          "written: and that comes back");
    check(move(session, spec.name, HBM_TIER_HOST, &reader, 5 * spec.size / 4, &wrong) == 0 &&
              write_pattern(words, 2, spec.size) && replay(&reader) == sum_of(2, spec.size),
          "written: a copy from the host writes it, too");
    check(move(session, spec.name, HBM_TIER_DEVICE, &reader, sum_of(2, spec.size), &wrong) == 0 && wrong == 0 &&
              has_pattern(words, 2, spec.size),
          "written: likewise");
    drop(&reader);
    check(put_away(session, lease), "written: it is freed");
}

static void nobody_who_is_in_a_step(hbm_session *session)
{
    struct hbm_spec spec = spec_of("live.held", 8 * MIB);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 3, spec.size), "held: a buffer"))
        return;
    uint64_t used_device = used();
    struct child holder = spawn({"hold", spec.name});
    check(says(holder, "held"), "held: by another process, in a step without end");
    hbm_unlock(lease, nullptr, 0);
    int error = hbm_offload(session, spec.name, HBM_TIER_HOST, HBM_LIVE, nullptr);
    std::string pid = "pid " + std::to_string(holder.pid);
    check(error == HBM_E_BUSY && strstr(hbm_last_error_detail(), pid.c_str()),
          "held: the demotion is BUSY, and names it (%s)", hbm_last_error_detail());
    check(hbm_lock(lease, 10000) == 0 && tier_here(lease) == HBM_TIER_DEVICE && tier_of(spec.name) == "device" &&
              used() == used_device && has_pattern(hbm_pointer(lease), 3, spec.size),
          "held: nothing has moved");
    close(holder.in);
    holder.in = -1;
    check(finish(holder) == 0, "held: it ends well");
    check(put_away(session, lease), "held: it is freed");
}

/* No bound: what it was is written down. */
static void how_long_it_stands_still(hbm_session *session)
{
    struct hbm_spec spec = spec_of("live.large", GIB);
    cudaStream_t stream = nullptr;
    double longest = 0;
    hbm_lease *lease;
    hbm_op *op;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && hbm_detach(lease) == 0 &&
                   hbm_attach(session, spec.name, HBM_RO, 0, 5000, &lease) == 0,
               "pause: 1 GiB, attached to read"))
        return;
    for (enum hbm_tier tier : {HBM_TIER_HOST, HBM_TIER_DEVICE}) {
        int error = tier == HBM_TIER_HOST ? hbm_offload(session, spec.name, HBM_TIER_HOST, HBM_LIVE, &op)
                                          : hbm_restore(session, spec.name, &op);
        longest = 0;
        while (!error && (error = hbm_op_wait(op, 0, nullptr)) == HBM_E_TIMEOUT) {
            double start = now_ms();
            error = hbm_safepoint(session, (void **)&stream, 1, 60000);
            longest = now_ms() - start > longest ? now_ms() - start : longest;
        }
        hbm_op_free(op);
        check(error == 0, "pause: moved to %s under its reader (%s)", hbm_tier_name(tier), hbm_strerror(error));
        note("pause: the longest safe point took %.1f ms for 1 GiB to %s", longest, hbm_tier_name(tier));
    }
    check(put_away(session, lease), "pause: it is freed");
}

/* ---- In place ---- */

/* What an engine does that copies by itself: a graph that brings the layer to memory of its own. */
static void copies_from_where_it_lies(hbm_session *session)
{
    struct hbm_spec spec = spec_of("live.place", 8 * MIB);
    cudaGraphExec_t exec = nullptr;
    cudaStream_t stream;
    cudaGraph_t graph;
    void *own = nullptr;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 4, spec.size) &&
                   hbm_detach(lease) == 0 && hbm_offload(session, spec.name, HBM_TIER_DISK, 0, nullptr) == 0,
               "in place: a buffer, on disk"))
        return;
    uint64_t used_device = used();
    if (!check(hbm_attach(session, spec.name, HBM_RO, HBM_IN_PLACE, 10000, &lease) == 0 &&
                   tier_here(lease) == HBM_TIER_HOST && tier_of(spec.name) == "host" && used() == used_device,
               "in place: it comes to host memory, and takes nothing of the device"))
        return;
    void *there = hbm_pointer(lease);
    check(!memcmp(there, pattern(4, spec.size).data(), spec.size), "in place: the CPU reads it");
    if (cudaMalloc(&own, spec.size) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) ||
        cudaMemcpyAsync(own, there, spec.size, cudaMemcpyDefault, stream) || cudaStreamEndCapture(stream, &graph) ||
        cudaGraphInstantiate(&exec, graph, 0)) {
        check(false, "in place: a copy is captured");
        return;
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        bool copied = !cudaMemsetAsync(own, 0, spec.size, stream) && !cudaGraphLaunch(exec, stream) &&
                      !cudaStreamSynchronize(stream);
        check(copied && has_pattern(own, 4, spec.size), "in place: the captured copy brings its bytes, turn %u", turn);
        bool away = hbm_unlock(lease, (void **)&stream, 1) == 0 &&
                    hbm_offload(session, spec.name, HBM_TIER_DISK, 0, nullptr) == 0;
        check(away && hbm_lock(lease, 10000) == 0 && hbm_pointer(lease) == there && tier_here(lease) == HBM_TIER_HOST,
              "in place: after a way to disk it is there again, turn %u", turn);
    }
    bool restored = hbm_unlock(lease, (void **)&stream, 1) == 0 && hbm_restore(session, spec.name, nullptr) == 0 &&
                    hbm_lock(lease, 10000) == 0;
    check(restored && tier_here(lease) == HBM_TIER_DEVICE && hbm_pointer(lease) == there &&
              has_pattern(there, 4, spec.size),
          "in place: what was restored is mapped on the device, at the same address");
    cudaGraphExecDestroy(exec);
    cudaStreamDestroy(stream);
    cudaFree(own);
    check(put_away(session, lease), "in place: it is freed");
}

static void tests(hbm_session *session)
{
    uint64_t used_at_first = used();

    if (!can_demote(session))
        return;
    graph_under_demotion(session, HBM_RW, 8 * MIB);
    graph_under_demotion(session, HBM_RO, 64 * MIB);
    writes_in_host_memory(session);
    nobody_who_is_in_a_step(session);
    copies_from_where_it_lies(session);
    how_long_it_stands_still(session);
    check(used() == used_at_first, "no byte more is used than at first");
}

/* hold NAME: attached and locked until its standard input ends. */
static int be_child(hbm_session *session, char **words)
{
    hbm_lease *lease;
    char c;

    if (strcmp(words[0], "hold") || hbm_attach(session, words[1], HBM_RW, 0, 5000, &lease))
        return 2;
    printf("held\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    return hbm_detach(lease) == 0 ? 0 : 4;
}

int main(int argc, char **argv)
{
    return run_program(argc, argv, be_child, tests);
}
