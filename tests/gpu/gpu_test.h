/* What the GPU tests that are clients of a running daemon share: a line a result, the operators' socket, children
 * (this program executed again, since CUDA survives no fork), the driver's list of processes, and bytes that can be
 * told apart. */
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/hbm.h"

#define WAIVED 77
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

inline unsigned passed, failed;
inline const char *self, *dir; /* this program, and the daemon's runtime directory */
inline unsigned device;        /* the daemon's first GPU */

/* ---- Results ---- */

__attribute__((format(printf, 2, 3))) inline bool check(bool good, const char *sentence, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, sentence);
    vsnprintf(text, sizeof(text), sentence, arguments);
    va_end(arguments);
    if (good)
        printf("ok - %s\n", text);
    else
        printf("FAIL - %s (hbm: %s; cuda: %s)\n", text, hbm_last_error_detail(),
               cudaGetErrorName(cudaPeekAtLastError()));
    fflush(stdout);
    (good ? passed : failed)++;
    return good;
}

__attribute__((format(printf, 1, 2))) inline void note(const char *format, ...)
{
    va_list arguments;

    printf("# ");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

inline double now_ms()
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

inline void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - (double)(time_t)(ms / 1e3) * 1e3) * 1e6)};

    nanosleep(&t, nullptr);
}

/* ---- The operators' socket ---- */

/* One line there, one line back; "" if none came within half a minute, or the daemon went away: the next call then
 * connects again. */
inline std::string ask_line(const std::string &line)
{
    static int fd = -1;
    static std::string rest;
    std::string whole = line + "\n";
    char bytes[65536];
    auto give_up = [] {
        close(fd);
        fd = -1;
        rest.clear();
        return std::string();
    };

    if (fd < 0) {
        struct sockaddr_un address = {};
        struct timeval patience = {30, 0};
        address.sun_family = AF_UNIX;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/control.sock", dir);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
            return give_up();
    }
    if (send(fd, whole.data(), whole.size(), MSG_NOSIGNAL) != (ssize_t)whole.size())
        return give_up();
    for (;;) {
        size_t end = rest.find('\n');
        if (end != std::string::npos) {
            std::string answer = rest.substr(0, end);
            rest.erase(0, end + 1);
            return answer;
        }
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0)
            return give_up();
        rest.append(bytes, (size_t)n);
    }
}

inline std::string ask(const std::string &method, const std::string &params = "{}")
{
    return ask_line("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"" + method + "\",\"params\":" + params + "}");
}

/* The innermost object that the mark lies in; "" if there is none. No name here has braces. */
inline std::string row_of(const std::string &answer, const std::string &mark)
{
    size_t at = answer.find(mark), start, end;
    int depth = 0;

    if (at == std::string::npos)
        return "";
    for (start = at; start > 0 && !(answer[start] == '{' && depth == 0); start--)
        depth += (answer[start] == '}') - (answer[start] == '{');
    for (depth = 0, end = start; end < answer.size(); end++) {
        depth += (answer[end] == '{') - (answer[end] == '}');
        if (depth == 0)
            return answer.substr(start, end - start + 1);
    }
    return "";
}

inline uint64_t number_in(const std::string &row, const std::string &key)
{
    size_t at = row.find("\"" + key + "\":");

    return at == std::string::npos ? UINT64_MAX : strtoull(row.c_str() + at + key.size() + 3, nullptr, 10);
}

inline std::string text_in(const std::string &row, const std::string &key)
{
    size_t at = row.find("\"" + key + "\":\"");

    if (at == std::string::npos)
        return "";
    at += key.size() + 4;
    return row.substr(at, row.find('"', at) - at);
}

/* The newest event of that name; "" if none is among the last forty. */
inline std::string last_event(const std::string &event)
{
    std::string answer = ask("hbm.events", "{\"limit\":40}"), mark = "\"event\":\"" + event + "\"";
    size_t at = answer.rfind(mark);

    return at == std::string::npos ? "" : row_of(answer.substr(answer.rfind('{', at)), mark);
}

/* Of an answer that holds devices; the tests' machines have one. */
inline uint64_t tier_in(const std::string &answer, const char *tier, const char *key)
{
    return number_in(row_of(answer, "\"tier\":\"" + std::string(tier) + "\""), key);
}

/* Once what has been let go of is given back, which is in a moment. */
inline uint64_t used(const char *tier = "device")
{
    std::string answer = ask("hbm.devices");

    for (double start = now_ms(); tier_in(answer, tier, "closing") && now_ms() - start < 5000; answer = ask("hbm.devices"))
        sleep_ms(1);
    return tier_in(answer, tier, "used");
}

inline std::string tier_of(const std::string &name)
{
    return text_in(row_of(ask("hbm.ls", "{\"glob\":\"" + name + "\"}"), "\"name\":\"" + name + "\""), "tier");
}

/* The daemon's own hashes of what `sel` names, in one text to compare; "" if it could not say. */
inline std::string hashes(const std::string &sel)
{
    std::string answer = ask("hbm.hash", "{\"sel\":\"" + sel + "\"}"), all;

    for (size_t at = 0; (at = answer.find("\"hash\":\"", at)) != std::string::npos; at++)
        all += answer.substr(at + 8, 16) + " ";
    if (all.empty() || answer.find("\"error\"") != std::string::npos) {
        note("hash of %s: %s", sel.c_str(), answer.c_str());
        return "";
    }
    return all;
}

/* ---- Children ---- */

struct child {
    pid_t pid;
    int pidfd, in, out; /* in: what it reads; out: what it prints */
};

inline struct child spawn(std::vector<std::string> arguments)
{
    struct child child = {};
    int in[2], out[2];
    std::vector<char *> list = {const_cast<char *>(self), const_cast<char *>(dir)};

    for (auto &one : arguments)
        list.push_back(&one[0]);
    list.push_back(nullptr);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        abort();
    child.pid = fork();
    if (child.pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execv(self, list.data());
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    child.in = in[1];
    child.out = out[0];
    child.pidfd = (int)syscall(SYS_pidfd_open, child.pid, 0);
    return child;
}

inline bool is_readable(int fd, int timeout_ms)
{
    struct pollfd one = {fd, POLLIN, 0};

    return poll(&one, 1, timeout_ms) == 1;
}

/* The next line that the child prints. */
inline std::string hear(const struct child &child)
{
    std::string text;
    char c;

    while (is_readable(child.out, 30000) && read(child.out, &c, 1) == 1 && c != '\n')
        text += c;
    return text;
}

/* True once the child has printed that line. */
inline bool says(const struct child &child, const char *line)
{
    std::string text = hear(child);

    if (text != line)
        note("child %d says \"%s\" instead of \"%s\"", child.pid, text.c_str(), line);
    return text == line;
}

/* Its exit status, 128 + the signal, or -1 if it had to be killed. */
inline int finish(struct child &child, int timeout_ms = 60000)
{
    bool ended = is_readable(child.pidfd, timeout_ms);
    int status = 0;

    if (!ended)
        kill(child.pid, SIGKILL);
    waitpid(child.pid, &status, 0);
    close(child.pidfd);
    close(child.in);
    close(child.out);
    return !ended ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- The driver's list of processes, as the worker reads it ---- */

inline bool nvml_lists(pid_t pid)
{
    struct process {
        unsigned pid;
        unsigned long long used;
        unsigned gpu_instance, compute_instance;
    } list[256];
    static void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    static auto init = (int (*)())(library ? dlsym(library, "nvmlInit_v2") : nullptr);
    static auto count = (int (*)(unsigned *))(library ? dlsym(library, "nvmlDeviceGetCount_v2") : nullptr);
    static auto get =
        (int (*)(unsigned, void **))(library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : nullptr);
    static auto processes = (int (*)(void *, unsigned *, struct process *))(
        library ? dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3") : nullptr);
    static bool ready = init && count && get && processes && init() == 0;
    unsigned gpus = 0;

    if (!ready || count(&gpus))
        return false;
    for (unsigned i = 0; i < gpus; i++) {
        unsigned n = sizeof(list) / sizeof(list[0]);
        void *gpu = nullptr;
        if (get(i, &gpu) || processes(gpu, &n, list))
            continue;
        for (unsigned k = 0; k < n; k++)
            if (list[k].pid == (unsigned)pid)
                return true;
    }
    return false;
}

/* ---- Buffers and their bytes ---- */

inline struct hbm_spec spec_of(const char *name, uint64_t size, unsigned handle = HBM_HANDLE_FD,
                               unsigned flags = HBM_KEEP)
{
    struct hbm_spec spec = {};

    spec.size = size;
    spec.device = device;
    spec.dtype = HBM_U8;
    spec.handle = handle;
    spec.name = name;
    spec.flags = name ? flags : 0;
    return spec;
}

inline uint64_t id_of(const hbm_lease *lease)
{
    struct hbm_info info;

    hbm_lease_info(lease, &info);
    return info.id;
}

inline std::vector<unsigned char> pattern(unsigned seed, uint64_t size)
{
    std::vector<unsigned char> bytes(size);

    for (uint64_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)((i + 1) * (2654435761u + 2 * seed) >> 15);
    return bytes;
}

/* Ends with the copy on the device: a detach right after may unmap. */
inline bool write_pattern(void *to, unsigned seed, uint64_t size)
{
    auto bytes = pattern(seed, size);

    return cudaMemcpy(to, bytes.data(), size, cudaMemcpyHostToDevice) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
}

inline bool has_pattern(const void *at, unsigned seed, uint64_t size)
{
    std::vector<unsigned char> bytes(size);

    return cudaMemcpy(bytes.data(), at, size, cudaMemcpyDeviceToHost) == cudaSuccess &&
           bytes == pattern(seed, size);
}

inline uint64_t driver_free()
{
    size_t free_now = 0, total = 0;

    return cudaMemGetInfo(&free_now, &total) == cudaSuccess ? free_now : 0;
}

/* What of a driver's figure differs from another, in MiB, signed. */
inline double mib_between(uint64_t before, uint64_t after)
{
    return ((double)after - (double)before) / (double)MIB;
}

/* A child that has ended holds its leases for as long as its GPU context takes to go. */
inline bool free_soon(hbm_session *session, uint64_t id)
{
    double start = now_ms();
    int error;

    while ((error = hbm_free(session, id)) == HBM_E_BUSY && now_ms() - start < 3000)
        sleep_ms(1);
    return error == 0;
}

/* Frees a kept buffer by its lease. */
inline bool put_away(hbm_session *session, hbm_lease *lease)
{
    uint64_t id = id_of(lease);

    return hbm_detach(lease) == 0 && free_soon(session, id);
}

/* ---- The program ---- */

inline bool open_session(hbm_session **session)
{
    struct hbm_options options = {};
    struct hbm_device_info info;

    options.runtime_dir = dir;
    if (hbm_open(&options, session))
        return false;
    for (int i = 0; i < hbm_device_count(*session); i++)
        if (!hbm_device_get(*session, (unsigned)i, &info) && info.is_cuda) {
            device = (unsigned)i;
            return true;
        }
    fprintf(stderr, "the daemon serves no GPU\n");
    return false;
}

/* For parents and children alike. child: the roles of a child, its exit status; tests: the parent's. */
inline int run_program(int argc, char **argv, int (*child)(hbm_session *, char **), void (*tests)(hbm_session *))
{
    hbm_session *session = nullptr;

    if (argc < 2) {
        fprintf(stderr, "usage: %s RUNTIME_DIR, that of a daemon on a GPU\n", argv[0]);
        return 2;
    }
    self = argv[0];
    dir = argv[1];
    if (cudaFree(nullptr) != cudaSuccess) {
        printf("waived: %s\n", cudaGetErrorString(cudaGetLastError()));
        return WAIVED;
    }
    if (argc > 2) {
        int status = open_session(&session) ? child(session, argv + 2) : 3;
        hbm_close(session);
        return status;
    }
    if (check(open_session(&session), "opens a session on a GPU"))
        tests(session);
    hbm_close(session);
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
