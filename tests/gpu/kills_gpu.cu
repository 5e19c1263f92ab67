/* Nothing that dies takes a byte along. A daemon of its own, under --supervise, with HBM_KILLS_GIB (60) of the
 * GPU's memory resident and hashed; three clients, one of them replaying a CUDA graph. Under them the owner is
 * killed, the worker, both at once; the worker's context is spoilt; the program is replaced by a newer one; the
 * memory that the graph reads is moved away and comes back. After each: no client has met an error, and every hash
 * is what it was. `kills_gpu`; a line a result; 77: no GPU here. Figures are printed, none is a condition. */
#include "tests/gpu/kills_clients.cuh"

#include <sys/stat.h>

static std::string home;
static pid_t supervisor;

/* ---- The daemon ---- */

static bool copy_file(const std::string &from, const std::string &to)
{
    int source = open(from.c_str(), O_RDONLY | O_CLOEXEC),
        target = open(to.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0755);
    char bytes[65536];
    ssize_t n = -1;

    while (source >= 0 && target >= 0 && (n = read(source, bytes, sizeof(bytes))) > 0)
        if (write(target, bytes, (size_t)n) != n)
            break;
    close(source);
    close(target);
    return n == 0;
}

/* build/tests/kills_gpu is beside build/hbmd. */
static std::string built(const char *program)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    std::string here(path, n > 0 ? (size_t)n : 0);

    here.erase(here.rfind('/'));
    return here.substr(0, here.rfind('/') + 1) + program;
}

static bool start_daemon()
{
    char name[] = "/tmp/hbm-kills.XXXXXX";
    static std::string runtime;

    if (!mkdtemp(name))
        return false;
    home = name;
    runtime = home + "/run";
    dir = runtime.c_str();
    std::string program = home + "/hbmd", worker = home + "/hbm-worker-cuda", log = home + "/log",
                state = home + "/state";
    if (!copy_file(built("hbmd"), program) || symlink(built("hbm-worker-cuda").c_str(), worker.c_str()))
        return false;
    setenv("HBM_WORKER_FAULT", "copy:sticky", 1);
    setenv("HBM_WORKER_FAULT_ONCE", (home + "/struck").c_str(), 1);
    supervisor = fork();
    if (supervisor == 0) {
        int fd = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execl(program.c_str(), program.c_str(), "--supervise", "--device", "cuda", "--runtime-dir", dir,
              "--state-dir", state.c_str(), nullptr);
        _exit(127);
    }
    return supervisor > 0;
}

static pid_t owner_pid()
{
    std::string path = "/proc/" + std::to_string(supervisor) + "/task/" + std::to_string(supervisor) + "/children";
    char text[32] = "";
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0)
        text[0] = 0;
    close(fd);
    return (pid_t)atoi(text);
}

static pid_t worker_pid()
{
    std::string row = row_of(ask("hbm.devices"), "\"kind\":\"cuda\"");
    uint64_t pid = number_in(row, "worker_pid");

    return text_in(row, "state") == "ready" && pid && pid != UINT64_MAX ? (pid_t)pid : 0;
}

static bool answers_with(const char *method, const char *text, const char *params = "{}")
{
    return ask(method, params).find(text) != std::string::npos;
}

/* HELLO, answered. */
static bool is_greeted()
{
    struct hbm_options options = {};
    hbm_session *session;

    options.runtime_dir = dir;
    options.flags = HBM_NO_RECONNECT | HBM_NO_THREAD;
    bool greeted = hbm_open(&options, &session) == 0;
    if (greeted)
        hbm_close(session);
    return greeted;
}

/* From the exec of the next owner: its first answer to HELLO, and a worker that is ready again. */
static void await_owner(pid_t old, double killed, const char *what)
{
    pid_t now;

    while ((now = owner_pid()) == old || !now)
        if (now_ms() - killed > PATIENCE_MS)
            break;
    double born = now_ms();
    while (!is_greeted() && now_ms() - born < PATIENCE_MS)
        ;
    double greeted = now_ms();
    while (!answers_with("hbm.events", "device.ready") && now_ms() - born < PATIENCE_MS)
        sleep_ms(1);
    note("%s: the next owner starts %.1f ms after the kill, answers its first hello %.1f ms after its start, and "
         "has a worker after %.0f ms",
         what, born - killed, greeted - born, now_ms() - born);
}

static void await_worker(pid_t old, double killed, const char *what)
{
    pid_t fresh = 0;

    while ((!fresh || fresh == old) && now_ms() - killed < PATIENCE_MS)
        fresh = worker_pid();
    double ready = now_ms();
    bool hashed = false;
    while (!hashed && now_ms() - killed < PATIENCE_MS)
        hashed = answers_with("hbm.hash", "\"hash\"", "{\"sel\":\"kills.small\"}");
    check(hashed && fresh != old, "%s: a fresh worker is ready %.0f ms after, and has hashed 3 MiB %.0f ms after",
          what, ready - killed, now_ms() - killed);
}

static void kill_owner(const char *what)
{
    pid_t old = owner_pid();

    sleep_ms(1200); /* the supervisor lets one that dies young wait */
    double killed = now_ms();
    check(old && kill(old, SIGKILL) == 0, "%s", what);
    await_owner(old, killed, what);
}

/* ---- The tests ---- */

/* In pieces, and half a GiB that fills none. */
static uint64_t bytes_wanted()
{
    const char *text = getenv("HBM_KILLS_GIB");
    uint64_t wanted = text ? strtoull(text, nullptr, 10) * GIB : 60 * GIB;
    uint64_t room = tier_in(ask("hbm.devices"), "device", "capacity") / 10 * 8;

    return std::min(wanted, room) / PIECE * PIECE + 512 * MIB;
}

struct clients {
    struct child at[3];
};

static const char *const roles[] = {"reader", "locker", "replayer"};

static struct child spawn_role(const char *role, uint64_t bytes)
{
    return spawn({role, std::to_string(bytes / PIECE + 1), std::to_string(bytes % PIECE)});
}

static struct clients start_clients(uint64_t bytes)
{
    struct clients clients;

    for (unsigned i = 0; i < 3; i++)
        clients.at[i] = spawn_role(roles[i], bytes);
    for (unsigned i = 0; i < 3; i++)
        check(says(clients.at[i], "running"), "the %s is at work", roles[i]);
    return clients;
}

static void all_is_well(const struct clients &clients, const std::string &before, const char *what)
{
    for (unsigned i = 0; i < 3; i++) {
        std::string line = write(clients.at[i].in, "\n", 1) == 1 ? hear(clients.at[i]) : "";
        check(line.rfind("0 errors", 0) == 0, "%s: the %s: %s", what, roles[i], line.c_str());
    }
    double start = now_ms();
    bool same = hashes("kills.*") == before;
    check(same, "%s: every hash is as before (%.0f ms for all)", what, now_ms() - start);
}

/* The first copy of this daemon's life runs a kernel where nothing is mapped: HBM_WORKER_FAULT. */
static void spoil_worker(hbm_session *session)
{
    pid_t old = worker_pid();
    int error = hbm_offload(session, "kills.small.1", HBM_TIER_HOST, 0, nullptr);

    check(error == HBM_E_CUDA, "the job that meets a sticky error says so: %s", hbm_last_error_detail());
    await_worker(old, now_ms(), "a sticky error");
    check(hbm_offload(session, "kills.small.1", HBM_TIER_HOST, 0, nullptr) == 0 &&
              hbm_restore(session, "kills.small.1", nullptr) == 0,
          "and the same copy goes well the next time");
}

static void upgrade()
{
    struct stat before = {}, after = {};
    std::string program = home + "/hbmd", fresh = home + "/hbmd.new";

    stat(program.c_str(), &before);
    check(copy_file(built("hbmd"), fresh) && rename(fresh.c_str(), program.c_str()) == 0,
          "another hbmd takes the place of the one that runs");
    kill_owner("an upgrade: the running owner is ended");
    stat(("/proc/" + std::to_string(owner_pid()) + "/exe").c_str(), &after);
    check(after.st_ino && after.st_ino != before.st_ino, "the one that answers is the new program");
}

/* Between two replays of one graph its memory goes to the host and comes back. */
static void move_under_graph(hbm_session *session, const struct child &replayer)
{
    for (unsigned i = 0; i < 3; i++) {
        check(write(replayer.in, "u", 1) == 1 && says(replayer, "let go"), "the replayer lets go of what its graph reads");
        int error = hbm_offload(session, "kills.graph", HBM_TIER_HOST, HBM_FORCE, nullptr);
        check(error == 0 && tier_of("kills.graph") == "host", "that goes to host memory");
        check(write(replayer.in, "l", 1) == 1 && says(replayer, "has it back") && tier_of("kills.graph") == "device",
              "and comes back with its lock");
    }
}

static void tests(hbm_session *session)
{
    uint64_t bytes = bytes_wanted();

    kill_owner("the owner is killed with nothing in it");
    double start = now_ms();
    struct child maker = spawn_role("maker", bytes);
    bool made = finish(maker) == 0;
    if (!check(made, "%.1f GiB and %u small buffers are resident after %.0f ms", (double)bytes / (double)GIB,
               SMALLS + 1, now_ms() - start))
        return;
    start = now_ms();
    std::string before = hashes("kills.*");
    double hashing = now_ms() - start;
    check(!before.empty(), "and hashed: %.0f ms, %.0f GB/s", hashing, (double)bytes / hashing / 1e6);
    struct clients clients = start_clients(bytes);
    all_is_well(clients, before, "at first");
    for (unsigned i = 0; i < 3; i++) {
        kill_owner("the owner is killed");
        all_is_well(clients, before, "after that");
    }
    pid_t worker = worker_pid();
    double killed = now_ms();
    check(worker && kill(worker, SIGKILL) == 0, "the worker is killed");
    await_worker(worker, killed, "the worker is killed");
    all_is_well(clients, before, "after that");
    worker = worker_pid();
    check(worker && kill(worker, SIGKILL) == 0, "the worker is killed, and");
    kill_owner("the owner with it");
    all_is_well(clients, before, "after that");
    spoil_worker(session);
    all_is_well(clients, before, "after that");
    upgrade();
    all_is_well(clients, before, "after that");
    move_under_graph(session, clients.at[2]);
    all_is_well(clients, before, "after that");
    for (unsigned i = 0; i < 3; i++) {
        close(clients.at[i].in);
        clients.at[i].in = open("/dev/null", O_RDONLY | O_CLOEXEC);
        int status = finish(clients.at[i]);
        check(status == 0, "the %s ends well (%d)", roles[i], status);
    }
}

static void free_everything(hbm_session *session)
{
    std::string answer;
    double start = now_ms();

    do
        answer = ask("hbm.free", "{\"sel\":\"kills.*\"}");
    while ((answer.empty() || answer.find("\"error\"") != std::string::npos) && now_ms() - start < 10000);
    check(used() == 0, "with everything freed no byte is used: %s", text_in(answer, "message").c_str());
    hbm_close(session);
}

/* Of all GPUs, by the driver's word; no process of ours has a context then. */
static uint64_t driver_used()
{
    struct memory {
        unsigned long long total, free, used;
    } memory;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *gpu;
    auto init = (int (*)())(library ? dlsym(library, "nvmlInit_v2") : nullptr);
    auto by_index =
        (int (*)(unsigned, void **))(library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : nullptr);
    auto ask_memory =
        (int (*)(void *, struct memory *))(library ? dlsym(library, "nvmlDeviceGetMemoryInfo") : nullptr);
    uint64_t all = 0;

    if (!init || !by_index || !ask_memory || init())
        return 0;
    for (unsigned i = 0; by_index(i, &gpu) == 0 && ask_memory(gpu, &memory) == 0; i++)
        all += memory.used;
    return all;
}

static void stop_daemon(uint64_t used_before)
{
    int status = -1;
    pid_t worker = worker_pid();

    kill(supervisor, SIGTERM);
    waitpid(supervisor, &status, 0);
    check(status == 0, "the daemon stops well (status 0x%x)", status);
    double start = now_ms();
    while ((driver_used() != used_before || (worker && kill(worker, 0) == 0)) && now_ms() - start < 10000)
        sleep_ms(10);
    check(driver_used() == used_before, "the driver has every byte back that it had before (%+.3f MiB)",
          mib_between(driver_used(), used_before));
    check(!worker || kill(worker, 0), "and the worker is gone");
}

static void show_log()
{
    char bytes[8192];
    FILE *log = fopen((home + "/log").c_str(), "re");

    while (log && fgets(bytes, sizeof(bytes), log))
        printf("# log: %s", bytes);
    if (log)
        fclose(log);
}

int main(int argc, char **argv)
{
    hbm_session *session = nullptr;
    int gpus = 0;

    self = argv[0];
    if (argc > 2) {
        dir = argv[1];
        return be_client(argv + 2);
    }
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) { /* which makes no context */
        printf("waived: %s\n", cudaGetErrorString(cudaGetLastError()));
        return WAIVED;
    }
    signal(SIGPIPE, SIG_IGN);
    uint64_t used_before = driver_used();
    bool started = check(start_daemon(), "a daemon of its own starts");
    double start = now_ms();
    while (started && !worker_pid() && now_ms() - start < PATIENCE_MS)
        sleep_ms(20);
    if (check(started && open_session(&session), "opens a session on a GPU, %.0f ms after the start",
              now_ms() - start)) {
        tests(session);
        free_everything(session);
    }
    if (started)
        stop_daemon(used_before);
    if (failed)
        show_log();
    std::string command = "rm -rf " + home;
    if (home.rfind("/tmp/hbm-kills.", 0) == 0 && system(command.c_str()))
        note("%s is left", home.c_str());
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
