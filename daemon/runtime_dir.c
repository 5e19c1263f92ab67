#include "daemon/runtime_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "daemon/base/cleanup.h"

#define WHY_MAX 256
#define LOCK_TRIES 50 /* in a second */
#define SAY(why, ...) snprintf(why, WHY_MAX, __VA_ARGS__)

static bool join(char path[DIR_PATH_MAX], const char *directory, const char *name, char *why)
{
    int n = snprintf(path, DIR_PATH_MAX, "%s%s", directory, name);

    if (n > 0 && n < DIR_PATH_MAX && *path == '/')
        return true;
    SAY(why, "the directory %.100s%s is no absolute path of at most %d characters", directory, name,
        DIR_PATH_MAX - 1);
    return false;
}

static bool configured_path(char path[DIR_PATH_MAX], const char *configured, char *why)
{
    char here[DIR_PATH_MAX], within[DIR_PATH_MAX];

    if (*configured == '/' || !getcwd(here, sizeof(here)))
        return join(path, configured, "", why);
    return join(within, here, "/", why) && join(path, within, configured, why);
}

static bool choose_runtime_dir(const char *configured, char path[DIR_PATH_MAX], char *why)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");

    if (*configured)
        return configured_path(path, configured, why);
    if (geteuid() == 0)
        return join(path, "/run/hbmd", "", why);
    if (xdg && *xdg)
        return join(path, xdg, "/hbmd", why);
    SAY(why, "there is no place for the sockets: XDG_RUNTIME_DIR is not set; name one with --runtime-dir");
    return false;
}

bool runtime_dir_path(const char *configured, char path[DIR_PATH_MAX], char *why)
{
    size_t longest = sizeof(((struct sockaddr_un *)0)->sun_path) - sizeof("/control.sock");

    if (!choose_runtime_dir(configured, path, why))
        return false;
    if (strlen(path) <= longest)
        return true;
    SAY(why, "the directory %.100s... is too long for a socket's address: %zu characters are the most", path,
        longest);
    return false;
}

bool state_dir_path(const char *configured, char path[DIR_PATH_MAX], char *why)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (*configured)
        return configured_path(path, configured, why);
    if (geteuid() == 0)
        return join(path, "/var/lib/hbmd", "", why);
    if (xdg && *xdg)
        return join(path, xdg, "/hbmd", why);
    if (home && *home)
        return join(path, home, "/.local/state/hbmd", why);
    SAY(why,
        "there is no place for spill files: neither XDG_STATE_HOME nor HOME is set; name one with --state-dir");
    return false;
}

/* Opens a directory that we, and nobody else, may change. */
static int open_own(const char *path, mode_t mode, char *why)
{
    struct stat status;
    bool made = mkdir(path, mode) == 0;

    if (!made && errno != EEXIST) {
        SAY(why, "cannot make %.120s: %s; make it, or choose another", path, strerror(errno));
        return -1;
    }
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0 || (made && fchmod(fd, mode) < 0)) /* whatever the umask */
        SAY(why, "cannot open %.120s: %s; mend that, or choose another", path,
            errno == ELOOP || errno == ENOTDIR ? "it is a link or no directory" : strerror(errno));
    else if (status.st_uid != geteuid())
        SAY(why, "%.120s belongs to uid %u: give it to uid %u, or choose another", path, status.st_uid, geteuid());
    else if (status.st_mode & 022)
        SAY(why, "%.120s may be written by others (mode %04o): chmod go-w it, or choose another", path,
            status.st_mode & 07777);
    else
        return TAKE_FD(fd);
    return -1;
}

/* The worker that a killed daemon was about to start has a copy of its lock until it execs. */
static int lock_soon(int fd)
{
    int tries = LOCK_TRIES;

    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || --tries == 0)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 1000000000 / LOCK_TRIES}, NULL);
    }
    return 0;
}

int runtime_dir_open(const char *path, int *lock_fd, char *why)
{
    _cleanup_fd_ int fd = open_own(path, 0755, why);
    _cleanup_fd_ int lock = -1;

    if (fd < 0)
        return -1;
    lock = openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0) {
        SAY(why, "cannot make %.120s/lock: %s; mend that, or choose another", path, strerror(errno));
        return -1;
    }
    if (lock_soon(lock) < 0) {
        if (errno == EWOULDBLOCK)
            SAY(why, "another hbmd serves %.120s: stop it first, or choose another directory with --runtime-dir",
                path);
        else
            SAY(why, "cannot lock %.120s/lock: %s; choose another, on a local disk or tmpfs", path,
                strerror(errno));
        return -1;
    }
    *lock_fd = TAKE_FD(lock);
    return TAKE_FD(fd);
}

int socket_dir_open(const char *path, int runtime_dir_fd, char *why)
{
    struct stat ours, runtime;
    _cleanup_fd_ int fd = open_own(path, 0755, why);

    if (fd < 0)
        return -1;
    if (fstat(fd, &ours) < 0 || fstat(runtime_dir_fd, &runtime) < 0)
        SAY(why, "cannot look at %.150s: %s", path, strerror(errno));
    else if (ours.st_dev == runtime.st_dev && ours.st_ino == runtime.st_ino)
        SAY(why, "%.120s is the runtime directory: the operators' socket is in there; choose another", path);
    else if (lock_soon(fd) < 0)
        SAY(why, "another hbmd serves %.120s: stop it first, or choose another directory", path);
    else
        return TAKE_FD(fd);
    return -1;
}

bool state_dir_make(const char *path, char *why)
{
    char parent[DIR_PATH_MAX];

    /* ~/.local/state may be missing on a fresh account; each of its parts is made as the last one. */
    snprintf(parent, sizeof(parent), "%s", path);
    for (char *slash = strchr(parent + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(parent, 0700);
        *slash = '/';
    }
    int fd = open_own(path, 0700, why);
    fd_close(fd);
    return fd >= 0;
}
