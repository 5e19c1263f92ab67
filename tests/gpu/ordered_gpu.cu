/* hbm_lock_on: a stream that waits for the bytes, and what comes of it when they do not come. `ordered_gpu`, with daemons of its
 * own; a line a result; 77: no GPU here. Figures are printed, none is a condition. */
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "tests/gpu/gpu_test.h"

#define SIZE (256 * MIB)
#define NAME "ordered.w"

__global__ void sum_words(const unsigned *p, size_t n, unsigned long long *sum)
{
    unsigned long long mine = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        mine += p[i];
    atomicAdd(sum, mine);
}

__global__ void nothing() {}

static unsigned long long sum_of(const std::vector<unsigned char> &bytes)
{
    unsigned long long sum = 0;

    for (uint64_t i = 0; i < bytes.size(); i += 4) {
        unsigned word;
        memcpy(&word, &bytes[i], 4);
        sum += word;
    }
    return sum;
}

/* ---- Daemons ---- */

static char home[] = "/tmp/hbm-ordered.XXXXXX";
static std::string run_dir;

/* hbmd is beside this program; its first worker strikes its n-th copy so ("" for none). */
static pid_t start_daemon(const std::string &fault)
{
    static unsigned n;
    std::string place = std::string(home) + "/" + std::to_string(n++), program = self;
    program = program.substr(0, program.rfind("/tests/")) + "/hbmd";
    mkdir(place.c_str(), 0700);
    run_dir = place + "/run";
    dir = run_dir.c_str();
    pid_t pid = fork();
    if (pid)
        return pid;
    if (!fault.empty()) {
        setenv("HBM_WORKER_FAULT", fault.c_str(), 1);
        setenv("HBM_WORKER_FAULT_ONCE", (place + "/struck").c_str(), 1);
    }
    int log = open((place + "/log").c_str(), O_CREAT | O_WRONLY, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execl(program.c_str(), program.c_str(), "--supervise", "--device", "cuda", "--runtime-dir", dir, "--state-dir",
          (place + "/state").c_str(), nullptr);
    _exit(127);
}

static bool is_ready()
{
    std::string answer = ask("hbm.devices");

    return answer.find("\"ready\"") != std::string::npos && answer.find("\"starting\"") == std::string::npos;
}

static bool await_ready()
{
    for (double start = now_ms(); now_ms() - start < 30000; sleep_ms(20))
        if (access((run_dir + "/control.sock").c_str(), F_OK) == 0 && is_ready())
            return true;
    return false;
}

static void stop_daemon(pid_t pid)
{
    int status = 0;

    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the daemon ends well");
}

/* ---- A client with a buffer in host memory ---- */

struct user {
    pid_t daemon;
    hbm_session *session;
    hbm_lease *lease;
    cudaStream_t stream;
    unsigned long long *sum;
    unsigned long long right;
};

static bool begin(struct user *user, const char *fault)
{
    struct hbm_spec spec;

    *user = {};
    user->daemon = start_daemon(fault);
    if (!check(await_ready() && open_session(&user->session), "%s: a daemon", *fault ? fault : "no fault"))
        return false;
    spec = spec_of(NAME, SIZE);
    user->right = sum_of(pattern(3, SIZE));
    return check(!cudaMalloc(&user->sum, sizeof(*user->sum)) &&
                     !cudaStreamCreateWithFlags(&user->stream, cudaStreamNonBlocking) &&
                     hbm_alloc(user->session, &spec, &user->lease) == 0 &&
                     write_pattern(hbm_pointer(user->lease), 3, SIZE) && hbm_unlock(user->lease, nullptr, 0) == 0 &&
                     hbm_offload(user->session, NAME, HBM_TIER_HOST, 0, nullptr) == 0 &&
                     !cudaMemset(user->sum, 0, sizeof(*user->sum)) && !cudaDeviceSynchronize(),
                 "a buffer in host memory");
}

static void end(struct user *user)
{
    hbm_close(user->session);
    cudaStreamDestroy(user->stream);
    cudaFree(user->sum);
    stop_daemon(user->daemon);
}

static void launch(struct user *user)
{
    sum_words<<<256, 256, 0, user->stream>>>((const unsigned *)hbm_pointer(user->lease), SIZE / 4, user->sum);
}

/* The stream's end, waited for without trusting that there is one. */
static bool ends(cudaStream_t stream, double ms)
{
    for (double start = now_ms(); now_ms() - start < ms; sleep_ms(1))
        if (cudaStreamQuery(stream) == cudaSuccess)
            return true;
    return false;
}

static unsigned long long sum_here(struct user *user)
{
    unsigned long long sum = 0;

    cudaMemcpy(&sum, user->sum, sizeof(sum), cudaMemcpyDeviceToHost);
    cudaMemset(user->sum, 0, sizeof(sum));
    cudaDeviceSynchronize();
    return sum;
}

/* As if nothing had been: the bytes are right, by a lock of either kind. */
static void is_well(struct user *user, const char *what)
{
    check(hbm_lock_on(user->lease, user->stream, 30000) == 0, "%s: it can be locked again", what);
    launch(user);
    check(ends(user->stream, 30000) && sum_here(user) == user->right, "%s: and a kernel reads what was stored", what);
    check(hbm_unlock(user->lease, (void **)&user->stream, 1) == 0, "%s: and it is unlocked", what);
    check(cudaGetLastError() == cudaSuccess, "%s: the context is sound", what);
}

/* ---- Tests ---- */

static void reads_the_right_bytes()
{
    struct user user;
    cudaStream_t other;
    void *memory = nullptr;

    if (!begin(&user, ""))
        return;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    for (unsigned turn = 0; turn < 20; turn++) {
        double start = now_ms();
        int error = hbm_lock_on(user.lease, user.stream, 30000);
        double locked = now_ms();
        launch(&user);
        double launched = now_ms();
        bool waits = cudaStreamQuery(user.stream) == cudaErrorNotReady;
        nothing<<<1, 1, 0, other>>>();
        cudaStreamSynchronize(other);
        double free = now_ms();
        bool right = !error && ends(user.stream, 30000) && sum_here(&user) == user.right;
        double there = now_ms();
        if (turn < 3 || !right)
            note("locked after %.2f ms, launched %.2f, another stream's kernel %.2f, bytes %.2f", locked - start,
                 launched - start, free - start, there - start);
        check(right && (turn == 0 || waits), "turn %u: the kernel waits on the GPU and reads the right bytes", turn);
        if (hbm_unlock(user.lease, (void **)&user.stream, 1) || hbm_offload(user.session, NAME, HBM_TIER_HOST, 0, nullptr)) {
            check(false, "turn %u: it goes away again", turn);
            break;
        }
    }
    bool good = true; /* calls that wait for streams, with the gate shut */
    for (unsigned turn = 0; turn < 5 && good; turn++) {
        good = hbm_lock_on(user.lease, user.stream, 30000) == 0;
        launch(&user);
        for (unsigned i = 0; i < 5000; i++) /* more than a queue holds */
            nothing<<<1, 1, 0, user.stream>>>();
        good = good && !cudaMalloc(&memory, 64 * MIB) && !cudaFree(memory) && !cudaDeviceSynchronize() &&
               sum_here(&user) == user.right && hbm_unlock(user.lease, (void **)&user.stream, 1) == 0 &&
               hbm_offload(user.session, NAME, HBM_TIER_HOST, 0, nullptr) == 0;
    }
    check(good, "launches past the queue's room, cudaMalloc, cudaFree and cudaDeviceSynchronize meanwhile hang nothing");

    cudaGraph_t graph;
    cudaStreamBeginCapture(user.stream, cudaStreamCaptureModeThreadLocal);
    int error = hbm_lock_on(user.lease, user.stream, 30000);
    cudaStreamEndCapture(user.stream, &graph);
    check(error == HBM_E_INVALID, "a stream that is being captured is refused (%s)", hbm_error_name(error));
    check(hbm_lock_on(user.lease, nullptr, 30000) == 0 && !cudaDeviceSynchronize() &&
              has_pattern(hbm_pointer(user.lease), 3, SIZE) && hbm_unlock(user.lease, nullptr, 0) == 0,
          "the default stream waits as well");
    cudaStreamDestroy(other);
    end(&user);
}

/* The restore, which is the second copy, ends so. */
static void fails(const char *fault, int expected)
{
    struct user user;

    if (!begin(&user, fault))
        return;
    check(hbm_lock_on(user.lease, user.stream, 30000) == 0, "%s: locked", fault);
    launch(&user);
    bool drained = ends(user.stream, 30000);
    check(drained && cudaGetLastError() == cudaSuccess, "%s: the stream goes on, and no address is wrong", fault);
    int error = hbm_lock(user.lease, 1000), unlocked = hbm_unlock(user.lease, (void **)&user.stream, 1);
    check(error == expected && unlocked == expected, "%s: the next calls say %s (%s, %s)", fault,
          hbm_error_name(expected), hbm_error_name(error), hbm_error_name(unlocked));
    sum_here(&user);
    await_ready();
    is_well(&user, fault);
    end(&user);
}

/* The copy goes on for ever: the stream's patience ends first, or the owner. */
static void hangs(bool kill_owner)
{
    const char *what = kill_owner ? "an owner killed in the copy" : "a copy without end";
    struct user user;

    if (!begin(&user, "copy:hold:2"))
        return;
    check(hbm_lock_on(user.lease, user.stream, kill_owner ? 60000 : 2000) == 0, "%s: locked", what);
    launch(&user);
    sleep_ms(200);
    check(cudaStreamQuery(user.stream) == cudaErrorNotReady, "%s: the stream waits, and this thread does not", what);
    std::atomic<bool> launched{false};
    std::thread engine([&] { /* which may hold the driver's locks until the stream goes on */
        for (unsigned i = 0; i < 5000; i++)
            nothing<<<1, 1, 0, user.stream>>>();
        launched = true;
    });
    sleep_ms(200);
    note("the engine's 5000 launches have %s by then", launched ? "returned" : "filled the queue");
    double start = now_ms();
    if (kill_owner)
        kill((pid_t)number_in(ask("hbm.status"), "pid"), SIGKILL);
    engine.join();
    bool drained = ends(user.stream, 30000);
    note("the stream goes on %.0f ms later", now_ms() - start);
    int error = hbm_unlock(user.lease, (void **)&user.stream, 1), expected = kill_owner ? HBM_E_RETRY : HBM_E_TIMEOUT;
    check(drained && error == expected && cudaGetLastError() == cudaSuccess, "%s: the stream goes on and unlock says %s (%s)",
          what, hbm_error_name(expected), hbm_error_name(error));
    sum_here(&user);
    await_ready();
    if (!kill_owner) {
        std::string row = row_of(ask("hbm.ops"), "\"state\":\"running\"");
        ask("hbm.cancel", "{\"op\":\"" + text_in(row, "op") + "\"}");
    }
    is_well(&user, what);
    end(&user);
}

int main(int argc, char **argv)
{
    (void)argc;
    self = argv[0];
    if (cudaFree(nullptr) != cudaSuccess) {
        printf("waived: %s\n", cudaGetErrorString(cudaGetLastError()));
        return WAIVED;
    }
    if (!mkdtemp(home))
        return 2;
    reads_the_right_bytes();
    fails("copy:kill:2", HBM_E_WORKER_DIED);
    fails("copy:checksum:2", HBM_E_CHECKSUM);
    hangs(false);
    hangs(true);
    std::string remove = std::string("rm -rf ") + home;
    if (!failed && system(remove.c_str()))
        note("%s is left", home);
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
