/* Preloaded into the real programs: makes the n-th call of memory or of the kernel fail, as it might at any time.
 *
 * HBM_INJECT names a file that all of them map. Its words are set by run.py: who is meant, which call, which of the
 * errors that the call may have; nothing fails while nobody is meant. So that one daemon can be driven through
 * thousands of failures, a call is struck once and never again until the page is set anew. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* CUDA_*: the driver's calls in there, and nothing else. */
enum role { NOBODY, OWNER, WORKER, CLIENT, KEEPER, CTL, CUDA_WORKER, CUDA_CLIENT };

struct page {
    _Atomic uint64_t role;    /* who is meant */
    _Atomic uint64_t n;       /* the call that fails, from 1; 0: they are only counted */
    _Atomic uint64_t variant; /* which of its errors */
    _Atomic uint64_t count;   /* calls so far */
    _Atomic uint64_t trace;   /* the struck call says where it was on stderr */
    _Atomic uint64_t error;   /* what it got; SHORT: less than it asked for */
    _Atomic uint64_t pid;
    _Atomic uint64_t caller;  /* in its module */
    _Atomic uint64_t choices; /* so many errors it may have */
    char site[32];
    char module[64];
};

#define SHORT 10000

static struct page *page;
static enum role role;
static _Thread_local bool inside; /* what finding out calls is no call of theirs */
static _Thread_local bool begun;  /* nor is what a sanitizer calls before a thread has */

static enum role role_of_program(void)
{
    const char *name = program_invocation_short_name;
    char arguments[4096] = "";
    FILE *file;
    size_t n = 0;

    if (!strncmp(name, "hbm-worker", 10))
        return WORKER;
    if (!strcmp(name, "hbmctl"))
        return CTL;
    if (!strcmp(name, "flow_client"))
        return CLIENT;
    if (strcmp(name, "hbmd"))
        return NOBODY;
    if ((file = fopen("/proc/self/cmdline", "r"))) {
        n = fread(arguments, 1, sizeof(arguments), file);
        fclose(file);
    }
    return memmem(arguments, n, "--supervise", 11) ? KEEPER : OWNER;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("HBM_INJECT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd >= 0 ? mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0)
        close(fd);
    role = role_of_program();
    begun = true;
    if (mapped != MAP_FAILED)
        page = mapped;
}

/* glibc's setlocale loses a string of its own when memory runs out in it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:_nl_normalize_codeset\n";
}

static void note(const char *site, int error, void *caller)
{
    Dl_info info = {0};

    inside = true;
    atomic_store(&page->error, (uint64_t)error);
    atomic_store(&page->pid, (uint64_t)getpid());
    if (dladdr(caller, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        snprintf(page->module, sizeof(page->module), "%s", slash ? slash + 1 : info.dli_fname);
        atomic_store(&page->caller, (uint64_t)((char *)caller - (char *)info.dli_fbase));
    }
    snprintf(page->site, sizeof(page->site), "%s", site);
    if (atomic_load(&page->trace)) {
        void *frames[32];
        dprintf(STDERR_FILENO, "injected: %s in pid %d: %s\n", site, getpid(),
                error == SHORT ? "short" : strerror(error));
        backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    }
    inside = false;
}

/* The error that a call gets which is one of those meant, or 0. */
static int draw(const char *site, void *caller, const int *errors)
{
    unsigned n_errors = 0;

    while (errors[n_errors])
        n_errors++;
    uint64_t n = atomic_load(&page->n);
    if (!n_errors || atomic_fetch_add(&page->count, 1) + 1 != n)
        return 0;
    int error = errors[atomic_load(&page->variant) % n_errors];
    atomic_store(&page->choices, n_errors);
    note(site, error, caller);
    errno = error == SHORT ? 0 : error;
    return error;
}

static int strike(const char *site, void *caller, const int *errors)
{
    bool meant = page && !inside && begun && atomic_load(&page->role) == role && role != NOBODY;

    return meant ? draw(site, caller, errors) : 0;
}

/* For inject_cuda.c: out of memory, not supported, unknown, and an illegal address, after which a context is no good. */
int inject_cuda_call(const char *name, void *caller);
int inject_cuda_call(const char *name, void *caller)
{
    static const int errors[] = {2, 801, 999, 700, 0};
    uint64_t meant = page ? atomic_load(&page->role) : NOBODY;

    if (inside || !((meant == CUDA_WORKER && role == WORKER) || (meant == CUDA_CLIENT && role == CLIENT)))
        return 0;
    return draw(name, caller, errors);
}

#define ERRORS(...) ((const int[]){__VA_ARGS__, 0})
static const int NONE[] = {0};
#define HERE __builtin_return_address(0)
#define NEXT(name)                                                                                           \
    ({                                                                                                       \
        if (!real)                                                                                           \
            real = (__typeof__(real))dlsym(RTLD_NEXT, #name);                                                \
        real;                                                                                                \
    })

/* TYPE NAME(parameters) that fails with one of errors as `failed` says, where errno is set already. */
#define WRAP(type, name, parameters, arguments, failed, errors)                                              \
    type name parameters;                                                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        static type(*real) parameters;                                                                       \
        if (strike(#name, HERE, errors))                                                                     \
            return failed;                                                                                   \
        return NEXT(name) arguments;                                                                         \
    }

/* ---- What a descriptor is says what may happen to it ---- */

static const int *errors_of_transfer(int fd, bool writes)
{
    struct stat status;
    int saved = errno;
    const int *errors = NONE;

    if (fd <= STDERR_FILENO || !page || atomic_load(&page->role) != role)
        return NONE;
    bool was_inside = inside;
    inside = true;
    if (!fstat(fd, &status)) {
        bool waits = !(fcntl(fd, F_GETFL) & O_NONBLOCK);
        static const int written[] = {ENOSPC, EIO, EINTR, SHORT, 0}, read_[] = {EIO, EINTR, SHORT, 0},
                         calm[] = {EINTR, 0}, busy[] = {EAGAIN, EINTR, 0};
        bool full = S_ISSOCK(status.st_mode) && !waits; /* an eventfd, or a signal's own pipe, is not */
        errors = S_ISREG(status.st_mode) ? (writes ? written : read_) : full ? busy : calm;
    }
    inside = was_inside;
    errno = saved;
    return errors;
}

static const int *errors_of_message(int fd, bool sends, bool with_fds)
{
    static const int sent[] = {ENOMEM, EINTR, 0}, sent_busy[] = {EAGAIN, ENOMEM, ENOBUFS, EINTR, 0},
                     fds_sent[] = {ETOOMANYREFS, ENOMEM, EINTR, 0}, fds_sent_busy[] = {ETOOMANYREFS, EAGAIN, ENOMEM, EINTR, 0},
                     heard[] = {ENOMEM, EINTR, 0}, heard_busy[] = {EAGAIN, ENOMEM, EINTR, 0};

    if (!page || atomic_load(&page->role) != role)
        return NONE;
    bool was_inside = inside;
    inside = true;
    bool waits = !(fcntl(fd, F_GETFL) & O_NONBLOCK);
    inside = was_inside;
    if (sends)
        return with_fds ? (waits ? fds_sent : fds_sent_busy) : (waits ? sent : sent_busy);
    return waits ? heard : heard_busy;
}

#define WRAP_TRANSFER(name, writes, bytes_type, parameters, arguments, short_arguments)                      \
    ssize_t name parameters;                                                                                 \
    ssize_t name parameters                                                                                  \
    {                                                                                                        \
        static ssize_t(*real) parameters;                                                                    \
        int error = strike(#name, HERE, errors_of_transfer(fd, writes));                                     \
        if (error == SHORT)                                                                                  \
            return NEXT(name) short_arguments;                                                               \
        return error ? -1 : NEXT(name) arguments;                                                            \
    }

WRAP_TRANSFER(read, false, void *, (int fd, void *bytes, size_t size), (fd, bytes, size), (fd, bytes, (size + 1) / 2))
WRAP_TRANSFER(write, true, const void *, (int fd, const void *bytes, size_t size), (fd, bytes, size),
              (fd, bytes, (size + 1) / 2))
WRAP_TRANSFER(pread, false, void *, (int fd, void *bytes, size_t size, off_t at), (fd, bytes, size, at),
              (fd, bytes, (size + 1) / 2, at))
WRAP_TRANSFER(pwrite, true, const void *, (int fd, const void *bytes, size_t size, off_t at), (fd, bytes, size, at),
              (fd, bytes, (size + 1) / 2, at))

WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), -1,
     errors_of_message(fd, true, message->msg_controllen))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), -1,
     errors_of_message(fd, false, false))
WRAP(ssize_t, send, (int fd, const void *bytes, size_t size, int flags), (fd, bytes, size, flags), -1,
     errors_of_message(fd, true, false))
WRAP(ssize_t, recv, (int fd, void *bytes, size_t size, int flags), (fd, bytes, size, flags), -1,
     errors_of_message(fd, false, false))

/* ---- Memory ---- */

WRAP(void *, malloc, (size_t size), (size), NULL, ERRORS(ENOMEM))
WRAP(void *, calloc, (size_t n, size_t size), (n, size), NULL, ERRORS(ENOMEM))
WRAP(void *, realloc, (void *old, size_t size), (old, size), NULL, ERRORS(ENOMEM))
WRAP(void *, reallocarray, (void *old, size_t n, size_t size), (old, n, size), NULL, ERRORS(ENOMEM))
WRAP(char *, strdup, (const char *text), (text), NULL, ERRORS(ENOMEM))
WRAP(char *, strndup, (const char *text, size_t size), (text, size), NULL, ERRORS(ENOMEM))
WRAP(FILE *, open_memstream, (char **text, size_t *size), (text, size), NULL, ERRORS(ENOMEM))
WRAP(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset), MAP_FAILED, ERRORS(ENOMEM))
WRAP(void *, mmap64, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset), MAP_FAILED, ERRORS(ENOMEM))
WRAP(int, madvise, (void *at, size_t size, int advice), (at, size, advice), -1, ERRORS(ENOMEM))
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, ERRORS(EMFILE, ENOMEM))

/* ---- Files and their descriptors ---- */

#define WRAP_OPEN(name)                                                                                      \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        static int (*real)(const char *, int, ...);                                                          \
        mode_t mode;                                                                                         \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                     \
        va_end(more);                                                                                        \
        if (strike(#name, HERE, ERRORS(EMFILE, ENOMEM)))                                                     \
            return -1;                                                                                       \
        return NEXT(name)(path, flags, mode);                                                                \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)

int openat(int dir, const char *path, int flags, ...)
{
    static int (*real)(int, const char *, int, ...);
    mode_t mode;
    va_list more;

    va_start(more, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (strike("openat", HERE, ERRORS(EMFILE, ENOMEM)))
        return -1;
    return NEXT(openat)(dir, path, flags, mode);
}

static const int *errors_of_fcntl(int command)
{
    static const int full[] = {EMFILE, 0}, sealed[] = {EBUSY, 0};

    return command == F_DUPFD_CLOEXEC || command == F_DUPFD ? full : command == F_ADD_SEALS ? sealed : NONE;
}

#define WRAP_FCNTL(name)                                                                                     \
    int name(int fd, int command, ...)                                                                       \
    {                                                                                                        \
        static int (*real)(int, int, ...);                                                                   \
        void *argument;                                                                                      \
        va_list more;                                                                                        \
        va_start(more, command);                                                                             \
        argument = va_arg(more, void *);                                                                     \
        va_end(more);                                                                                        \
        if (strike(#name, HERE, errors_of_fcntl(command)))                                                   \
            return -1;                                                                                       \
        return NEXT(name)(fd, command, argument);                                                            \
    }

WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)

/* Linux has closed it whatever it says. */
int close(int fd)
{
    static int (*real)(int);
    int error = strike("close", HERE, ERRORS(EIO, EINTR));
    int result = NEXT(close)(fd);

    errno = error ? error : errno;
    return error ? -1 : result;
}

WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, ERRORS(EMFILE, ENOMEM))
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), NULL, ERRORS(EMFILE, ENOMEM))
WRAP(int, dup2, (int from, int to), (from, to), -1, ERRORS(EBUSY))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), -1, ERRORS(ENOSPC, EIO))
WRAP(int, posix_fallocate, (int fd, off_t from, off_t size), (fd, from, size), errno, ERRORS(ENOSPC, EIO, EINTR))
/* The owner asks it of memory and pidfds, of which Linux can always tell. */
WRAP(int, fstat, (int fd, struct stat *status), (fd, status), -1, role == OWNER ? NONE : ERRORS(ENOMEM))
WRAP(int, fstatvfs, (int fd, struct statvfs *status), (fd, status), -1, ERRORS(EIO, EINTR))
WRAP(int, statvfs, (const char *path, struct statvfs *status), (path, status), -1, ERRORS(EIO, EINTR))
WRAP(int, fsync, (int fd), (fd), -1, ERRORS(EIO, ENOSPC))
WRAP(int, fdatasync, (int fd), (fd), -1, ERRORS(EIO, ENOSPC))
WRAP(int, renameat, (int from_dir, const char *from, int to_dir, const char *to), (from_dir, from, to_dir, to), -1,
     ERRORS(ENOSPC, EIO))
WRAP(int, rename, (const char *from, const char *to), (from, to), -1, ERRORS(ENOSPC, EIO))
WRAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), -1, ERRORS(EIO))
WRAP(int, mkostemp, (char *path, int flags), (path, flags), -1, ERRORS(EMFILE, ENOSPC))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, ERRORS(ENOSPC))
WRAP(int, flock, (int fd, int what), (fd, what), -1, ERRORS(ENOLCK, EINTR))

/* What a name service does within is its own: how much that is is another on each machine. */
struct group *getgrnam(const char *name)
{
    static struct group *(*real)(const char *);

    if (strike("getgrnam", HERE, ERRORS(ENOMEM, EMFILE)))
        return NULL;
    bool was_inside = inside;
    inside = true;
    struct group *group = NEXT(getgrnam)(name);
    inside = was_inside;
    return group;
}

/* ---- Sockets, events, processes ---- */

WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, ERRORS(EMFILE, ENOBUFS))
WRAP(int, socketpair, (int domain, int type, int protocol, int pair[2]), (domain, type, protocol, pair), -1,
     ERRORS(EMFILE, ENFILE))
WRAP(int, pipe2, (int pair[2], int flags), (pair, flags), -1, ERRORS(EMFILE, ENFILE))
WRAP(int, bind, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size), -1, ERRORS(ENOSPC))
WRAP(int, listen, (int fd, int backlog), (fd, backlog), -1, ERRORS(EADDRINUSE))
WRAP(int, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags), (fd, address, size, flags), -1,
     ERRORS(EMFILE, ECONNABORTED, ENOMEM, EINTR))
WRAP(int, connect, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size), -1,
     ERRORS(EAGAIN, ECONNREFUSED, EINTR))
WRAP(int, getsockopt, (int fd, int level, int option, void *value, socklen_t *size), (fd, level, option, value, size), -1,
     ERRORS(ENOPROTOOPT, ENOBUFS))
WRAP(int, setsockopt, (int fd, int level, int option, const void *value, socklen_t size),
     (fd, level, option, value, size), -1, ERRORS(ENOBUFS))
WRAP(int, poll, (struct pollfd *fds, nfds_t n, int timeout), (fds, n, timeout), -1, ERRORS(EINTR, ENOMEM))
WRAP(int, epoll_create1, (int flags), (flags), -1, ERRORS(EMFILE, ENOMEM))
/* Where the owner's loop cannot watch a descriptor, libuv ends the process; the next one goes on with all memory. */
WRAP(int, epoll_ctl, (int fd, int what, int which, struct epoll_event *event), (fd, what, which, event), -1,
     role == CLIENT ? ERRORS(ENOMEM, ENOSPC) : NONE)
WRAP(int, epoll_wait, (int fd, struct epoll_event *events, int n, int timeout), (fd, events, n, timeout), -1,
     ERRORS(EINTR))
WRAP(int, epoll_pwait, (int fd, struct epoll_event *events, int n, int timeout, const sigset_t *mask),
     (fd, events, n, timeout, mask), -1, ERRORS(EINTR))
WRAP(int, eventfd, (unsigned value, int flags), (value, flags), -1, ERRORS(EMFILE, ENOMEM))
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags), -1, ERRORS(EMFILE, ENOMEM))
WRAP(int, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags), -1, ERRORS(EMFILE, ENOMEM))
WRAP(pid_t, fork, (void), (), -1, ERRORS(EAGAIN, ENOMEM))
WRAP(pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options), -1, ERRORS(EINTR))

struct thread {
    void *(*start)(void *);
    void *argument;
};

static void *begin_thread(void *argument)
{
    struct thread thread = *(struct thread *)argument;

    free(argument);
    begun = true;
    return thread.start(thread.argument);
}

int pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    struct thread *thread;

    if (strike("pthread_create", HERE, ERRORS(EAGAIN)))
        return EAGAIN;
    inside = true;
    thread = malloc(sizeof(*thread));
    inside = false;
    *thread = (struct thread){start, argument};
    int error = NEXT(pthread_create)(id, attributes, begin_thread, thread);
    if (error)
        free(thread);
    return error;
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list more;

    va_start(more, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_pidfd_open && strike("pidfd_open", HERE, ERRORS(EMFILE, ENOMEM)))
        return -1;
    return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- io_uring, which answers with the error itself ---- */

struct io_uring;
struct io_uring_cqe;
WRAP(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags), (entries, ring, flags), -errno,
     ERRORS(ENOMEM, ENOSYS))
WRAP(int, io_uring_submit, (struct io_uring * ring), (ring), -errno, ERRORS(EAGAIN, EBUSY))
