/* Faults that only a GPU shows, against a running daemon: `faults_gpu RUNTIME_DIR`. Clients die with kernels
 * running (FAULTS 2, 3), write where they may only read (15), have not finished or never finish when memory is
 * wanted (16), ask for sizes that cannot be (17); the worker dies in the middle of a copy (24). A line a result;
 * 77: no GPU here. */
#include "tests/gpu/gpu_test.h"

#define WORDS 32 /* that a writing kernel counts up in each of its two buffers */
#define BUFFER (4 * MIB)
#define PRIVATE (64 * MIB)
#define KERNEL_MS 4000
#define GRANDCHILD_MS 1500

enum { FORKS_NOT, FORKS_RAW, FORKS_WELL };

static pid_t worker_pid();

__device__ unsigned long long clock_ns()
{
    unsigned long long now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void keep_writing(volatile unsigned long long *a, volatile unsigned long long *b, unsigned long long ms)
{
    unsigned long long end = clock_ns() + ms * 1000000;

    for (unsigned long long n = 1; clock_ns() < end; n++) {
        a[threadIdx.x] = n;
        b[threadIdx.x] = n;
    }
}

__global__ void write_one(volatile unsigned *at)
{
    *at = 0x5a5a5a5a;
}

/* Nothing for ms, then everything. */
__global__ void write_late(unsigned *p, size_t n, unsigned add, unsigned long long ms)
{
    unsigned long long end = clock_ns() + ms * 1000000;
    size_t step = (size_t)gridDim.x * blockDim.x;

    while (clock_ns() < end)
        ;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        p[i] += add;
}

__global__ void count_differing(const unsigned *p, size_t n, unsigned value, unsigned long long *differing)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        if (p[i] != value)
            atomicAdd(differing, 1ull);
}

__global__ void fill(unsigned long long *p, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        p[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
}

static bool all_are(const void *p, size_t n, unsigned value)
{
    unsigned long long *differing, host = 1;

    if (cudaMalloc(&differing, sizeof(host)) || cudaMemset(differing, 0, sizeof(host)))
        return false;
    count_differing<<<256, 256>>>((const unsigned *)p, n, value, differing);
    bool told = cudaMemcpy(&host, differing, sizeof(host), cudaMemcpyDeviceToHost) == cudaSuccess;
    cudaFree(differing);
    if (host)
        note("%llu of %zu words differ from %u", host, n, value);
    return told && host == 0;
}

/* ---- Roles of children ---- */

static void grandchild()
{
    sleep_ms(GRANDCHILD_MS);
    _exit(0);
}

/* Writes into both buffers, and into memory of its own, until it is killed. */
static int writer(hbm_session *session, char **arguments)
{
    struct hbm_spec own = spec_of(nullptr, PRIVATE);
    hbm_lease *a, *b, *c;
    int forks = atoi(arguments[2]);

    if (hbm_attach(session, arguments[0], HBM_RW, 0, 5000, &a) ||
        hbm_attach(session, arguments[1], HBM_RW, 0, 5000, &b) || hbm_alloc(session, &own, &c))
        return 1;
    keep_writing<<<1, WORDS>>>((unsigned long long *)hbm_pointer(a), (unsigned long long *)hbm_pointer(b),
                               KERNEL_MS);
    if (cudaStreamQuery(nullptr) != cudaErrorNotReady)
        return 2;
    /* The raw call runs no handlers: the grandchild keeps the parent's socket and GPU files. */
    if ((forks == FORKS_RAW && syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) ||
        (forks == FORKS_WELL && fork() == 0))
        grandchild();
    printf("running\n");
    fflush(stdout);
    cudaDeviceSynchronize();
    return 3;
}

static int stray(hbm_session *session, char **arguments)
{
    hbm_lease *lease;

    if (hbm_attach(session, arguments[0], HBM_RO, 0, 5000, &lease))
        return 1;
    write_one<<<1, 1>>>((unsigned *)hbm_pointer(lease));
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(error));
    fflush(stdout);
    return error == cudaSuccess ? 2 : 0;
}

static int stubborn(hbm_session *session, char **arguments)
{
    hbm_lease *lease;

    if (hbm_attach(session, arguments[0], HBM_RW, 0, 5000, &lease))
        return 1;
    printf("holding\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* An engine: a kernel a step, a safe point after each. */
static int stepper(hbm_session *session, char **arguments)
{
    unsigned steps = (unsigned)atoi(arguments[1]), waited = 0;
    size_t n = 64 * MIB / sizeof(unsigned);
    cudaStream_t stream;
    hbm_lease *lease;

    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
        hbm_attach(session, arguments[0], HBM_RW, 0, 5000, &lease))
        return 1;
    for (unsigned i = 0; i < steps; i++) {
        write_late<<<64, 256, 0, stream>>>((unsigned *)hbm_pointer(lease), n, 1, 10);
        if (i == 0)
            printf("stepping\n");
        fflush(stdout);
        double before = now_ms();
        if (hbm_safepoint(session, (void **)&stream, 1, 10000)) {
            fprintf(stderr, "safe point of step %u: %s\n", i, hbm_last_error_detail());
            return 2;
        }
        waited += now_ms() - before > 1; /* without, it is a load an arena */
    }
    if (cudaStreamSynchronize(stream))
        return 3;
    printf("stepped\n");
    fflush(stdout);
    fprintf(stderr, "# of %u safe points %u had something to wait for\n", steps, waited);
    return all_are(hbm_pointer(lease), n, steps) ? 0 : 4;
}

static int be_child(hbm_session *session, char **role)
{
    if (!strcmp(role[0], "writer"))
        return writer(session, role + 1);
    if (!strcmp(role[0], "stray"))
        return stray(session, role + 1);
    if (!strcmp(role[0], "stubborn"))
        return stubborn(session, role + 1);
    return stepper(session, role + 1);
}

/* ---- FAULTS 2 and 3 ---- */

struct words {
    unsigned long long at[WORDS];
    bool operator==(const struct words &other) const
    {
        return !memcmp(at, other.at, sizeof(at));
    }
};

static struct words read_words(const hbm_lease *lease)
{
    struct words words = {};

    if (cudaMemcpy(&words, hbm_pointer(lease), sizeof(words), cudaMemcpyDeviceToHost))
        note("cannot read: %s", cudaGetErrorName(cudaGetLastError()));
    return words;
}

/* When each thing was first seen, ms after the signal; below 0: not. */
struct timeline {
    double quarantined, pidfd, unlisted, grandchild, released, last_write, moved;
    bool early_release, early_move, early_bytes;
};

static void first(double &when, bool seen, double start)
{
    if (seen && when < 0)
        when = now_ms() - start;
}

/* Everything is asked after the release was seen, or can only have become true before it: none of it is a race. */
static struct timeline watch(const struct child &victim, const hbm_lease *lease, hbm_op *move, uint64_t used_alive,
                             pid_t worker)
{
    struct timeline seen = {-1, -1, -1, -1, -1, -1, -1, false, false, false};
    std::string mark = "\"pid\":" + std::to_string(victim.pid) + ",";
    struct words old = read_words(lease);
    double start = now_ms();

    kill(victim.pid, SIGKILL);
    if (worker)
        kill(worker, SIGKILL);
    while (seen.released < 0 && now_ms() - start < 20000) {
        struct words now = read_words(lease);
        if (!(now == old))
            seen.last_write = now_ms() - start;
        old = now;
        bool moved = move && hbm_op_wait(move, 0, nullptr) == 0;
        std::string status = ask("hbm.status"), row = row_of(ask("hbm.sessions"), mark);
        seen.early_bytes |=
            number_in(status, "quarantined") == 1 && tier_in(status, "device", "used") != used_alive;
        seen.early_move |= moved && !row.empty();
        first(seen.moved, moved, start);
        first(seen.quarantined, text_in(row, "state") == "quarantined", start);
        first(seen.released, row.empty(), start);
        first(seen.pidfd, is_readable(victim.pidfd, 0), start);
        first(seen.grandchild, is_readable(victim.out, 0), start);
        first(seen.unlisted, !nvml_lists(victim.pid), start);
    }
    seen.early_release = seen.pidfd < 0 || seen.unlisted < 0;
    return seen;
}

static void print_timeline(const struct timeline &seen)
{
    note("t=+0.0 ms SIGKILL");
    note("t=%+.1f ms session quarantined", seen.quarantined);
    note("t=%+.1f ms pidfd readable", seen.pidfd);
    note("t=%+.1f ms last write seen", seen.last_write);
    note("t=%+.1f ms grandchild seen gone (or never was)", seen.grandchild);
    note("t=%+.1f ms NVML no longer lists it", seen.unlisted);
    note("t=%+.1f ms session released", seen.released);
}

static void die_writing(hbm_session *session, int forks, bool with_worker, const char *who)
{
    struct hbm_spec written_spec = spec_of("faults.written", BUFFER), twin_spec = spec_of("faults.twin", BUFFER);
    hbm_lease *written = nullptr, *twin = nullptr;
    hbm_op *move = nullptr;

    if (!check(hbm_alloc(session, &written_spec, &written) == 0 && hbm_alloc(session, &twin_spec, &twin) == 0 &&
                   hbm_detach(twin) == 0,
               "%s: two buffers for it to write", who))
        return;
    uint64_t used_before = used();
    struct child victim = spawn({"writer", "faults.written", "faults.twin", std::to_string(forks)});
    bool running = says(victim, "running");
    struct words first_look = read_words(written);
    sleep_ms(20);
    check(running && !(read_words(written) == first_look), "%s: its kernel writes before the signal", who);
    check(nvml_lists(victim.pid), "%s: NVML lists it while it lives", who);
    uint64_t used_alive = used();
    check(used_alive == used_before + PRIVATE, "%s: its own memory is counted", who);
    hbm_offload(session, "faults.twin", HBM_TIER_HOST, 0, &move);
    struct timeline seen = watch(victim, written, move, used_alive, with_worker ? worker_pid() : 0);
    struct words after = read_words(written);
    bool grandchild_alive = !is_readable(victim.out, 0);
    uint64_t used_after = used();
    std::string event = last_event("session.reclaimed");
    print_timeline(seen);
    check(seen.quarantined >= 0 && seen.released >= 0, "%s: quarantined when it dies, and released", who);
    check(!seen.early_release, "%s: not released before its pidfd fired and NVML unlisted it", who);
    check(!seen.early_bytes, "%s: its own memory is not counted free while it is quarantined", who);
    check(used_after <= used_before, "%s: its own memory is counted free with the release", who);
    check(!seen.early_move, "%s: a buffer that it could write is not moved before the release", who);
    check(number_in(event, "pid") == (uint64_t)victim.pid && event.find("quiescent after") != std::string::npos,
          "%s: the event says so: %s", who, text_in(event, "detail").c_str());
    sleep_ms(100);
    check(read_words(written) == after, "%s: not a byte changes after the release", who);
    if (forks == FORKS_RAW)
        check(seen.grandchild >= 0 && !grandchild_alive, "%s: not released while its child held the GPU files",
              who);
    if (forks == FORKS_WELL)
        check(grandchild_alive, "%s: its child's life does not hold the release up", who);
    int ended = move ? hbm_op_wait(move, 10000, nullptr) : HBM_E_INTERNAL;
    check(ended == 0 || (with_worker && ended == HBM_E_WORKER_DIED), "%s: the move that waited for it ends: %s",
          who, hbm_error_name(ended));
    hbm_op_free(move);
    if (check(hbm_attach(session, "faults.twin", HBM_RW, 0, 10000, &twin) == 0, "%s: the moved buffer comes back",
              who)) {
        struct words moved = read_words(twin);
        bool last = true;
        for (unsigned i = 0; i < WORDS; i++) /* the kernel may end between its two stores */
            last &= after.at[i] - moved.at[i] <= 1;
        check(last, "%s: with the last that it wrote", who);
        put_away(session, twin);
    }
    check(put_away(session, written), "%s: and everything is freed", who);
    finish(victim);
}

/* ---- FAULTS 15 ---- */

static void write_through_read_only(hbm_session *session)
{
    struct hbm_spec spec = spec_of("faults.read-only", BUFFER);
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && write_pattern(hbm_pointer(lease), 1, BUFFER),
               "a buffer to be read only"))
        return;
    struct child child = spawn({"stray", spec.name});
    check(says(child, "cudaErrorIllegalAddress"),
          "a stray write through a read-only lease is an illegal address in the writer");
    check(finish(child) == 0, "and the writer's alone: it could tell of it");
    check(has_pattern(hbm_pointer(lease), 1, BUFFER), "the bytes are as they were, and this mapping works");
    write_one<<<1, 1>>>((unsigned *)hbm_pointer(lease));
    check(cudaDeviceSynchronize() == cudaSuccess, "who may write still does");
    check(put_away(session, lease), "the faulted writer holds nothing");
}

/* ---- FAULTS 16 ---- */

static void unlock_while_running(hbm_session *session)
{
    struct hbm_spec spec = spec_of("faults.late", 64 * MIB);
    size_t n = spec.size / sizeof(unsigned);
    cudaStream_t stream;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0 && !cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
               "a buffer to be written late"))
        return;
    void *before = hbm_pointer(lease);
    double start = now_ms();
    write_late<<<64, 256, 0, stream>>>((unsigned *)before, n, 7, 500);
    bool unlocked = hbm_unlock(lease, (void **)&stream, 1) == 0;
    double unlock_ms = now_ms() - start;
    check(unlocked && unlock_ms < 250 && cudaStreamQuery(stream) == cudaErrorNotReady,
          "an unlock behind a running kernel returns at once (%.1f ms)", unlock_ms);
    int error = hbm_offload(session, spec.name, HBM_TIER_HOST, 0, nullptr);
    double moved_ms = now_ms() - start;
    check(error == 0 && moved_ms >= 495, "the offload waits for that kernel (500 ms): %.1f ms", moved_ms);
    check(cudaStreamQuery(stream) == cudaSuccess, "which ended well");
    check(tier_of(spec.name) == "host" && hbm_lock(lease, 10000) == 0 && hbm_pointer(lease) == before,
          "it comes back to the same address");
    check(all_are(before, n, 7), "with all that the kernel wrote");
    check(put_away(session, lease), "and is freed");
    cudaStreamDestroy(stream);
}

static void reclaim_between_steps(hbm_session *session)
{
    struct hbm_spec spec = spec_of("faults.step", 64 * MIB);
    unsigned moved = 0, cancelled = 0, others = 0;
    hbm_lease *lease;

    if (!check(hbm_alloc(session, &spec, &lease) == 0, "a buffer to step on"))
        return;
    uint64_t id = id_of(lease);
    hbm_detach(lease);
    struct child child = spawn({"stepper", spec.name, "60"});
    bool stepping = says(child, "stepping");
    while (stepping && !is_readable(child.out, 0)) {
        int error = hbm_offload(session, spec.name, HBM_TIER_HOST, 0, nullptr);
        (error == 0 ? moved : error == HBM_E_CANCELLED ? cancelled : others)++;
    }
    note("offloads while it steps: %u went, %u were called off by its next lock, %u neither", moved, cancelled,
         others);
    check(finish(child) == 0, "moves asked for in the middle of steps cost the steps nothing: every one counts");
    check(moved + cancelled > 1, "and none of them waits for the end of all steps");
    check(free_soon(session, id), "the buffer is freed");
}

/* ---- FAULTS 17 ---- */

static void refuse_size(hbm_session *session, unsigned handle, uint64_t size, int expected, const char *what)
{
    struct hbm_spec spec = spec_of(nullptr, size, handle);
    hbm_lease *lease;
    double start = now_ms();
    int error = hbm_alloc(session, &spec, &lease);
    double took = now_ms() - start;

    check(error == expected && took < 3000, "%s: %s is %s (%s, %.0f ms)", hbm_handle_name(handle), what,
          hbm_error_name(expected), hbm_error_name(error), took);
    if (!error)
        hbm_detach(lease);
}

static void sizes(hbm_session *session, unsigned handle)
{
    static const uint64_t good[] = {1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1};
    const char *kind = hbm_handle_name(handle);
    uint64_t used_before = used(), capacity = tier_in(ask("hbm.devices"), "device", "capacity");
    uint64_t whole = capacity - capacity % (2 * MIB);
    hbm_lease *lease;

    for (uint64_t size : good) {
        struct hbm_spec spec = spec_of(nullptr, size, handle);
        if (!check(hbm_alloc(session, &spec, &lease) == 0, "%s: %llu bytes can be had", kind,
                   (unsigned long long)size))
            continue;
        check(write_pattern(hbm_pointer(lease), 3, size) && has_pattern(hbm_pointer(lease), 3, size),
              "%s: all %llu can be written and read", kind, (unsigned long long)size);
        hbm_detach(lease);
    }
    struct hbm_spec one = spec_of(nullptr, MIB);
    bool held = hbm_alloc(session, &one, &lease) == 0;
    refuse_size(session, handle, 0, HBM_E_INVALID, "0 bytes");
    refuse_size(session, handle, whole, HBM_E_NO_MEMORY, "all of the device while some is used");
    refuse_size(session, handle, capacity + 1, HBM_E_TOO_LARGE, "more than the device");
    refuse_size(session, handle, (uint64_t)1 << 63, HBM_E_TOO_LARGE, "2^63");
    refuse_size(session, handle, ((uint64_t)1 << 63) + 1, HBM_E_TOO_LARGE, "2^63 + 1");
    refuse_size(session, handle, UINT64_MAX, HBM_E_TOO_LARGE, "2^64 - 1");
    struct hbm_spec shape = spec_of(nullptr, 0, handle);
    shape.dtype = HBM_F32;
    shape.rank = 2;
    shape.dims[0] = shape.dims[1] = (uint64_t)1 << 33;
    check(hbm_alloc(session, &shape, &lease) == HBM_E_INVALID, "%s: a shape of 2^66 elements is INVALID", kind);
    shape.dims[0] = shape.dims[1] = 8;
    shape.size = 255;
    check(hbm_alloc(session, &shape, &lease) == HBM_E_INVALID, "%s: 255 bytes for 64 floats are INVALID", kind);
    if (held)
        hbm_detach(lease);
    check(used() == used_before, "%s: and no byte stays counted", kind);
}

/* ---- FAULTS 24 ---- */

static pid_t worker_pid()
{
    std::string row = row_of(ask("hbm.devices"), "\"kind\":\"cuda\"");
    uint64_t pid = number_in(row, "worker_pid");

    return text_in(row, "state") == "ready" && pid && pid != UINT64_MAX ? (pid_t)pid : 0;
}

static void kill_worker_in_copy(hbm_session *session, enum hbm_tier tier, const std::string &before)
{
    const char *where = hbm_tier_name(tier);
    uint64_t used_device = used(), used_disk = used("disk");
    struct hbm_op_status status = {};
    hbm_op *op = nullptr;
    pid_t old = worker_pid(), fresh = 0;

    hbm_offload(session, "faults.big", tier, 0, &op);
    double start = now_ms();
    while (op && hbm_op_wait(op, 0, &status) == HBM_E_TIMEOUT && status.bytes_done == 0 && now_ms() - start < 5000)
        ;
    kill(old, SIGKILL);
    double killed = now_ms();
    note("the worker is killed %.1f ms into the offload to %s, %llu of %llu bytes on", killed - start, where,
         (unsigned long long)status.bytes_done, (unsigned long long)status.bytes_total);
    int error = op ? hbm_op_wait(op, 10000, nullptr) : HBM_E_INTERNAL;
    check(error == HBM_E_WORKER_DIED,
          "a copy to %s whose worker is killed ends with WORKER_DIED (%s, %.1f ms after)", where,
          hbm_error_name(error), now_ms() - killed);
    hbm_op_free(op);
    while ((!fresh || fresh == old) && now_ms() - killed < 15000)
        fresh = worker_pid();
    check(fresh && fresh != old, "a fresh worker is ready %.0f ms later", now_ms() - killed);
    check(tier_of("faults.big") == "device" && hashes("faults.[bs]*") == before, "every hash is as before");
    /* Host memory is pooled for the next move, and counted while it is. */
    check(used() == used_device && used("disk") == used_disk, "and every byte counted as before");
}

static void lose_worker(hbm_session *session)
{
    struct hbm_spec big = spec_of("faults.big", 3 * GIB), small = spec_of("faults.small", 5 * MIB + 3),
                    legacy = spec_of("faults.legacy", 3 * MIB, HBM_HANDLE_CUDA_IPC);
    hbm_lease *a, *b, *c, *d;

    if (!check(hbm_alloc(session, &big, &a) == 0 && hbm_alloc(session, &small, &b) == 0 &&
                   hbm_alloc(session, &legacy, &c) == 0,
               "a big, a small and a cuda-ipc buffer"))
        return;
    fill<<<512, 256>>>((unsigned long long *)hbm_pointer(a), big.size / 8);
    bool written = write_pattern(hbm_pointer(b), 5, small.size) && write_pattern(hbm_pointer(c), 6, legacy.size);
    uint64_t id_a = id_of(a), id_b = id_of(b);
    check(written && hbm_detach(a) == 0 && hbm_detach(b) == 0, "all are filled");
    std::string before = hashes("faults.[bs]*");
    check(!before.empty(), "and hashed");
    kill_worker_in_copy(session, HBM_TIER_HOST, before);
    int error = hbm_attach(session, legacy.name, HBM_RO, 0, 1000, &d);
    check(error == HBM_E_LOST, "the cuda-ipc buffer is LOST for a new attach (%s)", hbm_error_name(error));
    check(has_pattern(hbm_pointer(c), 6, legacy.size), "who has it mapped reads on");
    kill_worker_in_copy(session, HBM_TIER_DISK, before);
    check(has_pattern(hbm_pointer(c), 6, legacy.size), "and on");
    check(hbm_offload(session, big.name, HBM_TIER_HOST, 0, nullptr) == 0 && tier_of(big.name) == "host",
          "now the copy goes well");
    check(hbm_restore(session, big.name, nullptr) == 0 && hashes("faults.[bs]*") == before,
          "and back, with the same hashes");
    check(put_away(session, c) && hbm_free(session, id_a) == 0 && hbm_free(session, id_b) == 0,
          "all can be freed, the lost one too");
}

static void tests(hbm_session *session)
{
    struct hbm_spec held = spec_of("faults.held", BUFFER);
    uint64_t used_at_first = used();
    hbm_op *refused = nullptr;
    hbm_lease *lease;

    /* Asked for first and looked at late: the daemon waits five seconds for a client that never lets go. */
    check(hbm_alloc(session, &held, &lease) == 0 && hbm_detach(lease) == 0,
          "a buffer that a client never lets go of");
    struct child stubborn = spawn({"stubborn", held.name});
    check(says(stubborn, "holding") && hbm_offload(session, held.name, HBM_TIER_HOST, 0, &refused) == 0,
          "its offload is asked for");
    die_writing(session, FORKS_NOT, false, "a client killed in a kernel");
    die_writing(session, FORKS_RAW, false, "one that had forked behind libhbm's back");
    die_writing(session, FORKS_RAW, true, "the same with the worker killed, who asks the driver");
    die_writing(session, FORKS_WELL, false, "one that had forked by fork()");
    write_through_read_only(session);
    unlock_while_running(session);
    reclaim_between_steps(session);
    int error = hbm_op_wait(refused, 10000, nullptr);
    std::string holder = "pid " + std::to_string(stubborn.pid);
    check(error == HBM_E_BUSY && strstr(hbm_last_error_detail(), holder.c_str()),
          "the offload ends BUSY and names %s: %s", holder.c_str(), hbm_last_error_detail());
    check(tier_of(held.name) == "device", "and the buffer stayed");
    kill(stubborn.pid, SIGKILL);
    check(finish(stubborn) == 128 + SIGKILL && hbm_offload(session, held.name, HBM_TIER_HOST, 0, nullptr) == 0,
          "once that client is gone it goes");
    hbm_op_free(refused);
    if (hbm_attach(session, held.name, HBM_RW, 0, 5000, &lease) == 0)
        put_away(session, lease);
    sizes(session, HBM_HANDLE_FD);
    sizes(session, HBM_HANDLE_CUDA_IPC);
    lose_worker(session);
    check(used() == used_at_first, "no byte more is used than at first");
}

int main(int argc, char **argv)
{
    return run_program(argc, argv, be_child, tests);
}
