/* The clients of kills_gpu: what they make and hold, and how they notice what must not happen. Each is a process of its own,
 * which goes on until its input ends. */
#pragma once

#include "tests/gpu/gpu_test.h"

#include <algorithm>

#define PIECE (4 * GIB)       /* a buffer; the last one is smaller */
#define GRAPH_BYTES (1 * GIB) /* what the graph reads: a buffer that nobody else holds */
#define GRAPH_SEED 1000u
#define SMALL (3 * MIB)
#define SMALLS 64u
#define COUNTERS 1024u
#define PATIENCE_MS 60000

/* ---- Bytes ---- */

__device__ unsigned long long word_at(unsigned seed, size_t i)
{
    return (i + 1 + ((unsigned long long)seed << 40)) * 0x9e3779b97f4a7c15ull;
}

__global__ void fill_words(unsigned long long *p, size_t n, unsigned seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        p[i] = word_at(seed, i);
}

__global__ void count_wrong_words(const unsigned long long *p, size_t n, unsigned seed, unsigned long long *wrong)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        mine += p[i] != word_at(seed, i);
    if (mine)
        atomicAdd(wrong, mine);
}

/* What an engine's step does: reads weights, changes state of its own. */
__global__ void step_of_engine(const unsigned long long *weights, size_t n, unsigned seed,
                               unsigned long long *counters, unsigned long long *wrong)
{
    size_t step = (size_t)gridDim.x * blockDim.x, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long mine = 0;

    for (size_t i = first; i < n; i += step)
        mine += weights[i] != word_at(seed, i);
    if (mine)
        atomicAdd(wrong, mine);
    if (first < COUNTERS)
        counters[first]++;
}

static std::string piece_name(unsigned i)
{
    return "kills." + std::to_string(i);
}

/* ---- Clients: each goes on until its input ends, and says on each line of it how it has fared ---- */

struct tally {
    unsigned long long calls, errors;
    double longest_ms;
    std::string first;
};

static void count(struct tally &tally, const char *call, int error, double since)
{
    tally.calls++;
    tally.longest_ms = std::max(tally.longest_ms, now_ms() - since);
    if (error && !tally.errors++)
        tally.first = std::string(call) + ": " + hbm_last_error_detail();
}

static void must_be(struct tally &tally, bool good, const char *what)
{
    if (!good && !tally.errors++)
        tally.first = std::string(what) + " (" + cudaGetErrorName(cudaGetLastError()) + ")";
}

#define CALL(tally, call)                                                                                          \
    do {                                                                                                           \
        double since_ = now_ms();                                                                                  \
        count(tally, #call, call, since_);                                                                         \
    } while (0)

/* False at the end of input. Whoever can do more than tell how it fares is given what else was asked. */
static bool go_on(struct tally &tally, char *asked = nullptr)
{
    char c;

    if (!is_readable(STDIN_FILENO, 0))
        return true;
    if (read(STDIN_FILENO, &c, 1) != 1)
        return false;
    if (asked && c != '\n') {
        *asked = c;
        return true;
    }
    printf("%llu errors in %llu calls, the longest %.0f ms%s%s\n", tally.errors, tally.calls, tally.longest_ms,
           tally.errors ? "; first: " : "", tally.first.c_str());
    fflush(stdout);
    tally.longest_ms = 0;
    return true;
}

static bool attach_wide(hbm_session *session, const std::string &name, unsigned access, hbm_lease **lease)
{
    return hbm_attach(session, name.c_str(), access, 0, 30000, lease) == 0;
}

/* Holds all there is, reads one piece after the other, and comes to a safe point after each. */
static int reader(hbm_session *session, unsigned n, uint64_t last_bytes)
{
    std::vector<hbm_lease *> leases(n);
    unsigned long long *wrong, host;
    struct hbm_device_info info;
    struct tally tally = {};

    for (unsigned i = 0; i < n; i++)
        if (!attach_wide(session, piece_name(i), HBM_RO, &leases[i]))
            return 1;
    if (cudaMalloc(&wrong, sizeof(*wrong)))
        return 2;
    puts("running");
    fflush(stdout);
    for (unsigned i = 0; go_on(tally); i = (i + 1) % n) {
        uint64_t bytes = i + 1 < n ? PIECE : last_bytes;
        cudaMemset(wrong, 0, sizeof(*wrong));
        count_wrong_words<<<512, 256>>>((const unsigned long long *)hbm_pointer(leases[i]), bytes / 8, i, wrong);
        must_be(tally, !cudaMemcpy(&host, wrong, sizeof(host), cudaMemcpyDeviceToHost) && host == 0,
                "what the reader reads");
        CALL(tally, hbm_device_get(session, 0, &info));
        CALL(tally, hbm_safepoint(session, nullptr, 0, PATIENCE_MS));
        sleep_ms(2);
    }
    return tally.errors ? 3 : 0;
}

/* Attaches, locks, unlocks and detaches without a pause. */
static int locker(hbm_session *session)
{
    unsigned long long word, right;
    struct tally tally = {};
    hbm_lease *held;

    if (!attach_wide(session, "kills.small", HBM_RW, &held) ||
        cudaMemcpy(&right, hbm_pointer(held), sizeof(right), cudaMemcpyDeviceToHost))
        return 1;
    puts("running");
    fflush(stdout);
    while (go_on(tally)) {
        hbm_lease *lease = nullptr;
        CALL(tally, hbm_attach(session, "kills.small", HBM_RO, 0, PATIENCE_MS, &lease));
        CALL(tally, hbm_unlock(held, nullptr, 0));
        CALL(tally, hbm_lock(held, PATIENCE_MS));
        must_be(tally, !cudaMemcpy(&word, hbm_pointer(held), sizeof(word), cudaMemcpyDeviceToHost) && word == right,
                "what the locker reads");
        if (lease)
            CALL(tally, hbm_detach(lease));
    }
    return tally.errors ? 3 : 0;
}

/* Unlocks until it is told to go on. */
static void let_go(hbm_lease *lease, struct tally &tally)
{
    char c;

    CALL(tally, hbm_unlock(lease, nullptr, 0));
    puts("let go");
    fflush(stdout);
    must_be(tally, read(STDIN_FILENO, &c, 1) == 1, "the word to go on");
    CALL(tally, hbm_lock(lease, PATIENCE_MS));
    puts("has it back");
    fflush(stdout);
}

/* Replays a captured graph that reads a piece and counts up in memory of its own; a safe point between replays. */
static int replayer(hbm_session *session)
{
    struct hbm_spec own = spec_of(nullptr, COUNTERS * sizeof(unsigned long long));
    unsigned long long *wrong, host = 0, counters[COUNTERS], replays = 0;
    hbm_lease *weights, *state;
    struct tally tally = {};
    cudaGraphExec_t exec;
    cudaStream_t stream;
    cudaGraph_t graph;

    if (!attach_wide(session, "kills.graph", HBM_RO, &weights) || hbm_alloc(session, &own, &state) ||
        cudaMalloc(&wrong, sizeof(*wrong)) || cudaMemset(wrong, 0, sizeof(*wrong)) ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) || cudaDeviceSynchronize())
        return 1;
    void *before = hbm_pointer(weights);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    step_of_engine<<<256, 256, 0, stream>>>((const unsigned long long *)before, GRAPH_BYTES / 8, GRAPH_SEED,
                                            (unsigned long long *)hbm_pointer(state), wrong);
    if (cudaStreamEndCapture(stream, &graph) || cudaGraphInstantiate(&exec, graph, 0))
        return 2;
    puts("running");
    fflush(stdout);
    char asked = 0;
    for (; go_on(tally, &asked); asked = 0) {
        if (asked)
            let_go(weights, tally);
        must_be(tally, !cudaGraphLaunch(exec, stream), "a replay");
        CALL(tally, hbm_safepoint(session, (void **)&stream, 1, PATIENCE_MS));
        must_be(tally, !cudaStreamSynchronize(stream), "a replay's end");
        must_be(tally, !cudaMemcpy(&host, wrong, sizeof(host), cudaMemcpyDeviceToHost) && host == 0,
                "what the graph reads");
        must_be(tally, hbm_pointer(weights) == before, "the address");
        replays++;
    }
    must_be(tally, !cudaMemcpy(counters, hbm_pointer(state), sizeof(counters), cudaMemcpyDeviceToHost),
            "the graph's own memory");
    for (unsigned long long counter : counters)
        must_be(tally, counter == replays, "every replay has counted in every counter");
    if (tally.errors)
        fprintf(stderr, "# replayer: %s\n", tally.first.c_str());
    fprintf(stderr, "# %llu replays\n", replays);
    return tally.errors ? 3 : 0;
}

static bool make(hbm_session *session, const std::string &name, uint64_t size, unsigned seed)
{
    struct hbm_spec spec = spec_of(name.c_str(), size);
    hbm_lease *lease;

    if (hbm_alloc(session, &spec, &lease))
        return false;
    fill_words<<<512, 256>>>((unsigned long long *)hbm_pointer(lease), size / 8, seed);
    return !cudaDeviceSynchronize() && hbm_detach(lease) == 0;
}

/* Everything that the others read, kept. */
static int maker(hbm_session *session, unsigned n, uint64_t last_bytes)
{
    bool good = make(session, "kills.graph", GRAPH_BYTES, GRAPH_SEED);

    for (unsigned i = 0; i < n && good; i++)
        good = make(session, piece_name(i), i + 1 < n ? PIECE : last_bytes, i);
    for (unsigned i = 0; i < SMALLS && good; i++)
        good = make(session, i ? "kills.small." + std::to_string(i) : "kills.small", SMALL, GRAPH_SEED + 1 + i);
    if (!good)
        fprintf(stderr, "# maker: %s\n", hbm_last_error_detail());
    return good ? 0 : 1;
}

static int be_client(char **role)
{
    struct hbm_options options = {};
    struct hbm_device_info info;
    hbm_session *session;
    int status = 9;

    options.runtime_dir = dir;
    options.client = role[0];
    options.reconnect_ms = PATIENCE_MS;
    if (cudaFree(nullptr) || hbm_open(&options, &session))
        return 8;
    if (hbm_device_get(session, 0, &info) == 0 && info.is_cuda)
        device = 0;
    if (!strcmp(role[0], "maker"))
        status = maker(session, (unsigned)atoi(role[1]), strtoull(role[2], nullptr, 10));
    else if (!strcmp(role[0], "reader"))
        status = reader(session, (unsigned)atoi(role[1]), strtoull(role[2], nullptr, 10));
    else if (!strcmp(role[0], "locker"))
        status = locker(session);
    else if (!strcmp(role[0], "replayer"))
        status = replayer(session);
    hbm_close(session);
    return status;
}
