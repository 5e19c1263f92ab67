/* The fds that came back from the store. A name says what its fd is for; whether it is that is looked at here, as
 * far as the kernel tells: what is used for something else than it is would crash us, or give wrong bytes. What is
 * not taken is left to the caller, who drops it. */
#include "daemon/core/readopt.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/base/cleanup.h"
#include "daemon/base/log.h"

static struct kept_fd *find(struct readopt *readopt, const char *name)
{
    for (size_t i = 0; i < readopt->n_kept; i++)
        if (readopt->kept[i].fd >= 0 && !strcmp(readopt->kept[i].name, name))
            return &readopt->kept[i];
    return NULL;
}

static int take(struct kept_fd *kept, bool sound)
{
    if (!kept)
        return -1;
    if (sound)
        return TAKE_FD(kept->fd);
    log_error("what was kept as %s is something else, and is dropped", kept->name);
    return -1;
}

/* No memory of the size that the ledger has, where the fd can say. A GPU's has no size to ask for. */
static bool is_memory(int fd, const struct device *device, enum job_extent_kind kind, uint64_t size)
{
    struct stat status;

    if (device->state == DEVICE_FAILED) /* nobody uses it before the device is back */
        return true;
    if (fstat(fd, &status) < 0)
        return false;
    if (!S_ISREG(status.st_mode))
        return device->is_cuda && kind != JOB_EXTENT_DISK;
    return kind == JOB_EXTENT_DISK ? (uint64_t)status.st_size >= size : (uint64_t)status.st_size == size;
}

int readopt_take_memory(struct readopt *readopt, const char *name, const struct device *device,
                        enum job_extent_kind kind, uint64_t size)
{
    struct kept_fd *kept = find(readopt, name);

    return take(kept, kept && is_memory(kept->fd, device, kind, size));
}

int readopt_take_pidfd(struct readopt *readopt, const char *name)
{
    struct kept_fd *kept = find(readopt, name);
    siginfo_t info;

    /* No child of ours, for sure, but only what is no pidfd at all is INVAL. */
    return take(kept, kept && !(waitid(P_PIDFD, (id_t)kept->fd, &info, WEXITED | WNOHANG | WNOWAIT) < 0 &&
                                errno != ECHILD));
}

int readopt_take_sized(struct readopt *readopt, const char *name, uint64_t size)
{
    struct kept_fd *kept = find(readopt, name);
    struct stat status;

    /* Mapped, and a mapping that shrinks is a signal. */
    return take(kept, kept && fstat(kept->fd, &status) == 0 && (uint64_t)status.st_size == size &&
                          (fcntl(kept->fd, F_GET_SEALS) & F_SEAL_SHRINK) > 0);
}
