/* Sharing between processes, as it went wrong elsewhere: CASES 1-10 and 30, against a running
 * daemon: `cases_gpu RUNTIME_DIR`. A line a result; 77: no GPU here. */
#include <dirent.h>

#include "tests/gpu/gpu_test.h"

#define MANY_IDS 10000
#define MANY_MS 30000
#define MANY_ROUNDS 1000
#define DEADLINE_MS 8000

static const uint64_t sizes[] = {4, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 12792628, 64 * KIB + 3};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static std::string name_of_size(unsigned handle, size_t i)
{
    return std::string("cases.") + hbm_handle_name(handle) + "." + std::to_string(i);
}

static unsigned seed_of_size(unsigned handle, size_t i)
{
    return 100 * (handle + 1) + (unsigned)i;
}

__global__ void fill_with(unsigned *p, size_t n, unsigned value)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = value;
}

/* ---- Roles of children ---- */

/* Attaches, says so, and once it hears something sees whether the bytes are still there. */
static int hold(hbm_session *session, char **arguments)
{
    unsigned seed = (unsigned)atoi(arguments[1]);
    uint64_t size = strtoull(arguments[2], nullptr, 10);
    hbm_lease *lease;

    if (hbm_attach(session, arguments[0], HBM_RO, 0, 5000, &lease)) {
        fprintf(stderr, "child: %s\n", hbm_last_error_detail());
        return 1;
    }
    bool good = has_pattern(hbm_pointer(lease), seed, size);
    printf("holding\n");
    fflush(stdout);
    getchar();
    return good && has_pattern(hbm_pointer(lease), seed, size) && hbm_detach(lease) == 0 ? 0 : 2;
}

static int verify_all(hbm_session *session)
{
    hbm_lease *leases[2][N_SIZES];
    int wrong = 0;

    for (unsigned handle = 0; handle < 2; handle++)
        for (size_t i = 0; i < N_SIZES; i++)
            if (hbm_attach(session, name_of_size(handle, i).c_str(), HBM_RO, 0, 10000, &leases[handle][i])) {
                fprintf(stderr, "child: %s: %s\n", name_of_size(handle, i).c_str(), hbm_last_error_detail());
                return 100;
            }
    for (unsigned handle = 0; handle < 2; handle++)
        for (size_t i = 0; i < N_SIZES; i++)
            wrong += !has_pattern(hbm_pointer(leases[handle][i]), seed_of_size(handle, i), sizes[i]);
    return wrong;
}

static int be_child(hbm_session *session, char **role)
{
    return strcmp(role[0], "hold") ? verify_all(session) : hold(session, role + 1);
}

static struct child spawn_holder(const char *name, unsigned seed, uint64_t size)
{
    return spawn({"hold", name, std::to_string(seed), std::to_string(size)});
}

/* ---- Cases ---- */

static bool make(hbm_session *session, const struct hbm_spec &spec, unsigned seed, hbm_lease **lease)
{
    return hbm_alloc(session, &spec, lease) == 0 && write_pattern(hbm_pointer(*lease), seed, spec.size);
}

static void back_to_zero(hbm_session *session, unsigned handle)
{
    struct hbm_spec spec = spec_of("cases.brief", 16 * MIB, handle, 0);
    const char *kind = hbm_handle_name(handle);
    uint64_t used_before = used(), free_before = driver_free();
    hbm_lease *lease;

    if (!check(make(session, spec, 1, &lease), "1: %s: granted", kind))
        return;
    struct child child = spawn_holder(spec.name, 1, spec.size);
    check(says(child, "holding"), "1: %s: attached in a second process", kind);
    check(hbm_detach(lease) == 0 && used() == used_before + spec.size, "1: %s: counted while the other one has it",
          kind);
    close(child.in);
    child.in = -1;
    check(finish(child) == 0, "1: %s: released there", kind);
    uint64_t used_after = used();
    check(used_after == used_before, "1: %s: the bytes in use are back at once (%+.1f MiB)", kind,
          mib_between(used_before, used_after));
    double start = now_ms(), kept;
    while ((kept = mib_between(driver_free(), free_before)) > 1 && now_ms() - start < 2000)
        sleep_ms(1);
    check(kept <= 1, "1: %s: and the driver's %.0f ms later (%+.1f MiB)", kind, now_ms() - start, kept);
}

static bool is_device_memory(const void *p)
{
    struct cudaPointerAttributes attributes = {};
    bool known = cudaPointerGetAttributes(&attributes, p) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;

    cudaGetLastError();
    return known;
}

static void attach_thrice(hbm_session *session, unsigned handle)
{
    struct hbm_spec spec = spec_of("cases.thrice", 3 * MIB, handle);
    const char *kind = hbm_handle_name(handle);
    hbm_lease *lease, *again[3] = {};

    if (!check(make(session, spec, 2, &lease), "2: %s: a buffer", kind))
        return;
    uint64_t id = id_of(lease);
    bool same = hbm_detach(lease) == 0, readable = true;
    for (auto &one : again)
        same &= hbm_attach_id(session, id, HBM_RO, 0, 5000, &one) == 0;
    same = same && hbm_pointer(again[0]) == hbm_pointer(again[1]) && hbm_pointer(again[1]) == hbm_pointer(again[2]);
    check(same, "2, 3: %s: attached three times in one process, it has one pointer", kind);
    if (!same)
        return;
    void *pointer = hbm_pointer(again[0]);
    for (auto &one : again) {
        readable &= has_pattern(pointer, 2, spec.size);
        hbm_detach(one);
    }
    check(readable, "2, 3: %s: which is there until the third release", kind);
    check(!is_device_memory(pointer), "2: %s: and is gone after it", kind);
    check(hbm_free(session, id) == 0, "2: %s: nothing holds it any more", kind);
}

static unsigned open_fds()
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(directory))
        n++;
    closedir(directory);
    return n;
}

static void many_ids(hbm_session *session)
{
    uint64_t used_before = used(), free_before = driver_free();
    unsigned fds = open_fds(), n = 0;
    double start = now_ms(), in_alloc = 0;
    bool good = true;

    for (; n < MANY_IDS && good && now_ms() - start < MANY_MS; n++) {
        struct hbm_spec spec = spec_of(nullptr, 4096);
        hbm_lease *lease;
        double before = now_ms();
        good = hbm_alloc(session, &spec, &lease) == 0 && hbm_pointer(lease);
        in_alloc += now_ms() - before;
        good = good && hbm_detach(lease) == 0;
    }
    double took = now_ms() - start, grown = mib_between(driver_free(), free_before);
    note("%u ids, %.3f ms each, %.3f of it to allocate", n, took / n, in_alloc / n);
    check(good && n == MANY_IDS, "2: %u different ids, one after the other", n);
    check(used() == used_before && open_fds() == fds && grown <= 4,
          "2: leave descriptors, counted bytes and the device's memory as they were (%+.1f MiB)", grown);
}

/* The first one dies, the next takes its place: the old id never gets the new one's bytes. */
static void reused_slot(hbm_session *session, hbm_session *other, unsigned handle)
{
    struct hbm_spec spec = spec_of("cases.slot", 2 * MIB, handle);
    const char *kind = hbm_handle_name(handle);
    hbm_lease *a, *b, *c = nullptr;
    bool stale = true;

    for (unsigned round = 0; round < 20 && stale; round++) {
        stale = make(session, spec, 4, &a);
        uint64_t id = stale ? id_of(a) : 0;
        stale = stale && hbm_attach_id(other, id, HBM_RO, 0, 5000, &c) == 0 && hbm_detach(c) == 0 &&
                put_away(session, a) && hbm_alloc(session, &spec, &b) == 0 &&
                hbm_attach_id(other, id, HBM_RO, 0, 5000, &c) == HBM_E_STALE &&
                hbm_free(other, id) == HBM_E_STALE && id_of(b) != id;
        std::vector<unsigned char> zeros(spec.size), bytes(spec.size, 1);
        stale = stale && !cudaMemcpy(bytes.data(), hbm_pointer(b), spec.size, cudaMemcpyDeviceToHost) &&
                bytes == zeros && put_away(session, b);
    }
    check(stale, "4: %s: an id whose slot was taken is STALE, and the new buffer starts as zeros", kind);
}

static void stale_with_copy_in_flight(hbm_session *session, hbm_session *other)
{
    struct hbm_spec spec = spec_of("cases.flight", 2 * GIB);
    struct hbm_op_status status = {};
    hbm_lease *lease, *late = nullptr;
    hbm_op *op = nullptr;

    if (!check(hbm_alloc(session, &spec, &lease) == 0, "5: 2 GiB"))
        return;
    fill_with<<<512, 256>>>((unsigned *)hbm_pointer(lease), spec.size / 4, 0x11111111);
    cudaDeviceSynchronize();
    uint64_t id = id_of(lease);
    bool held =
        hbm_detach(lease) == 0 && hbm_attach_id(other, id, HBM_RO, 0, 5000, &late) == 0 && hbm_detach(late) == 0;
    hbm_offload(session, spec.name, HBM_TIER_DISK, 0, &op);
    double start = now_ms();
    while (op && hbm_op_wait(op, 0, &status) == HBM_E_TIMEOUT && !status.bytes_done && now_ms() - start < 5000)
        ;
    double asked = now_ms();
    int freed = hbm_free(session, id);
    double answered = now_ms() - asked;
    check(held && !status.done && (freed == HBM_E_BUSY || freed == 0) && answered < 1000,
          "5: freeing it while a copy is in flight is answered: %s, %.1f ms", hbm_error_name(freed), answered);
    asked = now_ms();
    int attached = hbm_attach_id(other, id, HBM_RO, 0, DEADLINE_MS, &late);
    answered = now_ms() - asked;
    int ended = op ? hbm_op_wait(op, DEADLINE_MS, nullptr) : HBM_E_INTERNAL;
    check(attached == (freed ? 0 : HBM_E_STALE) && answered < DEADLINE_MS && ended != HBM_E_TIMEOUT,
          "5: attaching it then calls the copy off: %s after %.1f ms, the copy ends %s", hbm_error_name(attached),
          answered, hbm_error_name(ended));
    if (!attached)
        hbm_detach(late);
    hbm_op_free(op);
    check(!freed || hbm_free(session, id) == 0, "5: then it can be freed");
    spec.size = 2 * MIB;
    bool next = hbm_alloc(session, &spec, &lease) == 0;
    asked = now_ms();
    attached = hbm_attach_id(other, id, HBM_RO, 0, DEADLINE_MS, &late);
    check(next && attached == HBM_E_STALE && now_ms() - asked < 1000,
          "5: and its id is STALE, whatever came after it");
    if (next)
        put_away(session, lease);
}

static void eight_processes(hbm_session *session)
{
    hbm_lease *leases[2][N_SIZES] = {};
    std::vector<struct child> children;
    bool all = true;

    for (unsigned handle = 0; handle < 2; handle++)
        for (size_t i = 0; i < N_SIZES; i++) {
            std::string name = name_of_size(handle, i);
            bool good = make(session, spec_of(name.c_str(), sizes[i], handle), seed_of_size(handle, i),
                             &leases[handle][i]) &&
                        has_pattern(hbm_pointer(leases[handle][i]), seed_of_size(handle, i), sizes[i]);
            all &= check(good, "7: %s: %llu bytes hold what is written", hbm_handle_name(handle),
                         (unsigned long long)sizes[i]);
        }
    if (!all)
        return;
    double start = now_ms();
    for (int i = 0; i < 8; i++)
        children.push_back(spawn({"verify"}));
    for (auto &child : children) {
        int wrong = finish(child);
        check(wrong == 0, "6: process %d sees the same bytes in all twelve (%d differ)", child.pid, wrong);
    }
    note("eight processes at once take %.0f ms, contexts and all", now_ms() - start);
    for (unsigned handle = 0; handle < 2; handle++)
        for (size_t i = 0; i < N_SIZES; i++)
            all &= put_away(session, leases[handle][i]);
    check(all, "6: all are freed at once after them");
}

static void middle_of_an_arena(hbm_session *session, hbm_session *other)
{
    static const uint64_t bytes[] = {1000, 3 * MIB + 4, 5000};
    static const char *const names[] = {"head", "middle", "tail"};
    struct hbm_publish_buffer buffers[3] = {};
    struct hbm_publish spec = {};
    hbm_model *model = nullptr;
    struct hbm_info info[3];
    cudaIpcMemHandle_t handle;
    hbm_lease *lease;
    int must_build = 0;
    bool good = true;

    for (unsigned i = 0; i < 3; i++) {
        buffers[i].name = names[i];
        buffers[i].group = "one";
        buffers[i].dtype = HBM_U8;
        buffers[i].rank = 1;
        buffers[i].dims[0] = bytes[i];
    }
    spec.name = "cases";
    spec.device = device;
    spec.buffers = buffers;
    spec.n_buffers = 3;
    good = hbm_publish_begin(session, &spec, 5000, &model, &must_build) == 0 && must_build;
    for (unsigned i = 0; good && i < 3; i++) {
        hbm_model_buffer(model, i, &info[i]);
        good = write_pattern(info[i].pointer, 30 + i, bytes[i]);
    }
    if (!check(good && hbm_publish_commit(model) == 0, "8: three tensors share an arena") ||
        !check(hbm_model_attach(session, "cases", HBM_RO, 0, 5000, &model) == 0, "8: which is attached as a model"))
        return;
    for (unsigned i = 0; i < 3; i++)
        hbm_model_buffer(model, (unsigned)hbm_model_find(model, names[i]), &info[i]);
    ptrdiff_t offset = (char *)info[1].pointer - (char *)info[0].pointer;
    check(offset > 0 && offset % HBM_ALIGN == 0 && (uint64_t)offset >= bytes[0],
          "8: the middle one lies %td bytes after the first", offset);
    struct child child = spawn_holder("cases/middle", 31, bytes[1]);
    check(says(child, "holding"), "8: another process attaches it by itself");
    dprintf(child.in, "\n");
    check(finish(child) == 0, "8: and sees its bytes, not the arena's first");
    if (check(hbm_attach(other, "cases/middle", HBM_RO, 0, 5000, &lease) == 0, "8: another session does")) {
        check(has_pattern(hbm_pointer(lease), 31, bytes[1]), "8: with the same bytes");
        struct hbm_info alone;
        hbm_lease_info(lease, &alone);
        check(alone.size == bytes[1] && alone.handle == HBM_HANDLE_FD,
              "8: it has its own size, and no cuda-ipc handle");
        hbm_detach(lease);
    }
    cudaError_t refusal = cudaIpcGetMemHandle(&handle, info[1].pointer);
    check(refusal != cudaSuccess, "8: the driver clearly refuses a cuda-ipc handle of it: %s",
          cudaGetErrorName(refusal));
    cudaGetLastError();
    check(has_pattern(info[1].pointer, 31, bytes[1]) && has_pattern(info[2].pointer, 32, bytes[2]),
          "8: which changes nothing");
    check(hbm_free(session, info[1].id) == HBM_E_INVALID, "8: it cannot be freed without its model");
    hbm_model_detach(model);
    check(ask("hbm.rm", "{\"model\":\"cases\"}").find("\"error\"") == std::string::npos, "8: the model is removed");
}

static void error_not_blamed_later(hbm_session *session)
{
    struct hbm_spec small = spec_of("cases.float", 0), large = spec_of(nullptr, 4 * GIB);
    struct hbm_compress how = {};
    hbm_lease *lease;
    void *rest = nullptr;

    small.dtype = HBM_F32;
    small.rank = 2;
    small.dims[0] = 64;
    small.dims[1] = 512;
    if (!check(hbm_alloc(session, &small, &lease) == 0, "9: a tensor"))
        return;
    hbm_detach(lease);
    check(!hashes("cases.float").empty(), "9: the worker has a context");
    uint64_t all = driver_free();
    check(cudaMalloc(&rest, all - 2 * GIB) == cudaSuccess, "9: something else takes all but 2 GiB of the device");
    for (unsigned handle : {HBM_HANDLE_CUDA_IPC, HBM_HANDLE_FD}) {
        large.handle = handle;
        double start = now_ms();
        int error = hbm_alloc(session, &large, &lease);
        check(error == HBM_E_NO_MEMORY, "9: %s: then 4 GiB are NO_MEMORY: %s (%.0f ms)", hbm_handle_name(handle),
              hbm_last_error_detail(), now_ms() - start);
        check(cudaPeekAtLastError() == cudaSuccess, "9: %s: which leaves no CUDA error in this process",
              hbm_handle_name(handle));
        if (!error)
            hbm_detach(lease);
        struct hbm_spec two = spec_of(nullptr, 2 * MIB, handle);
        bool good =
            make(session, two, 9, &lease) && has_pattern(hbm_pointer(lease), 9, two.size) && hbm_detach(lease) == 0;
        check(good, "9: %s: 2 MiB right after it are had", hbm_handle_name(handle));
    }
    cudaFree(rest);
    how.sel = small.name;
    how.codec = HBM_CODEC_INT8;
    how.granularity = HBM_PER_CHANNEL;
    check(hbm_compress(session, &how, nullptr, nullptr) == 0,
          "9: the kernels that the worker then runs are not blamed for it");
    check(hbm_attach(session, "cases.nobody", HBM_RO, 0, 0, &lease) == HBM_E_NOT_FOUND &&
              cudaGetLastError() == cudaSuccess,
          "9: an attach of nothing is NOT_FOUND, and no CUDA error");
    if (check(hbm_attach(session, small.name, HBM_RW, 0, 5000, &lease) == 0, "9: and the next attach is good"))
        put_away(session, lease);
}

static void thousand_rounds(hbm_session *session, unsigned handle, int rounds)
{
    struct hbm_spec spec = spec_of("cases.round", 8 * MIB, handle);
    const char *kind = hbm_handle_name(handle);
    uint64_t used_then = 0, free_then = 0;
    unsigned fds = 0;
    hbm_lease *lease;
    bool good = true;

    if (!check(make(session, spec, 10, &lease), "10: %s: a buffer", kind))
        return;
    uint64_t id = id_of(lease);
    hbm_detach(lease);
    double start = now_ms();
    for (int i = 0; i < rounds && good; i++) {
        good = hbm_attach(session, spec.name, HBM_RW, 0, 5000, &lease) == 0 && hbm_pointer(lease);
        if (good && i % 100 == 0)
            good = has_pattern(hbm_pointer(lease), 10, spec.size);
        good = good && hbm_detach(lease) == 0;
        if (i == 10)
            used_then = used(), free_then = driver_free(), fds = open_fds();
    }
    double took = now_ms() - start, grown = mib_between(driver_free(), free_then);
    note("%s: a round of attach and detach takes %.3f ms", kind, took / rounds);
    check(good, "10: %s: attached and detached %d times", kind, rounds);
    check(used() == used_then && open_fds() == fds && grown <= 2,
          "10: %s: bytes, descriptors and the device's memory are flat (%+.1f MiB)", kind, grown);
    check(hbm_free(session, id) == 0, "10: %s: it is freed", kind);
}

static void one_of_two_releases(hbm_session *session, unsigned handle)
{
    struct hbm_spec spec = spec_of("cases.two", 4 * MIB, handle);
    const char *kind = hbm_handle_name(handle);
    hbm_lease *lease, *again;

    if (!check(make(session, spec, 11, &lease), "30: %s: a buffer", kind))
        return;
    uint64_t id = id_of(lease);
    struct child first = spawn_holder(spec.name, 11, spec.size), second = spawn_holder(spec.name, 11, spec.size);
    bool both = says(first, "holding") && says(second, "holding");
    check(both && hbm_detach(lease) == 0, "30: %s: its maker releases it", kind);
    dprintf(first.in, "\n");
    check(finish(first) == 0, "30: %s: the next one reads on, and releases it", kind);
    check(hbm_free(session, id) == HBM_E_BUSY, "30: %s: it is BUSY while the last one has it", kind);
    dprintf(second.in, "\n");
    check(finish(second) == 0, "30: %s: whose mapping is untouched", kind);
    if (check(hbm_attach_id(session, id, HBM_RW, 0, 5000, &again) == 0 &&
                  has_pattern(hbm_pointer(again), 11, spec.size),
              "30: %s: and the buffer lives on", kind))
        put_away(session, again);
}

static void tests(hbm_session *session)
{
    uint64_t used_at_first = used();
    hbm_session *other = nullptr;

    struct hbm_spec first = spec_of(nullptr, MIB, HBM_HANDLE_CUDA_IPC);
    hbm_lease *lease;

    if (!check(open_session(&other), "opens another session"))
        return;
    /* From here on the worker has a context: what the driver counts for that is not the buffers'. */
    check(hbm_alloc(session, &first, &lease) == 0 && hbm_detach(lease) == 0, "a cuda-ipc buffer");
    for (unsigned handle : {HBM_HANDLE_FD, HBM_HANDLE_CUDA_IPC}) {
        back_to_zero(session, handle);
        attach_thrice(session, handle);
        reused_slot(session, other, handle);
        thousand_rounds(session, handle, MANY_ROUNDS);
        one_of_two_releases(session, handle);
    }
    many_ids(session);
    eight_processes(session);
    middle_of_an_arena(session, other);
    stale_with_copy_in_flight(session, other);
    error_not_blamed_later(session);
    hbm_close(other);
    check(used() == used_at_first, "no byte more is used than at first");
}

int main(int argc, char **argv)
{
    return run_program(argc, argv, be_child, tests);
}
